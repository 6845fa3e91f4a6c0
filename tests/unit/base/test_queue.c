/* The queue between two threads: order, bounds, closing, and the descriptor that a poll loop waits on. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/queue.h"
#include "runtime/base/status.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

static int items[8];

static int readable(const struct queue *q)
{
    struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
    return poll(&p, 1, 0);
}

static void items_leave_in_the_order_they_came(void **state)
{
    (void)state;
    struct queue *q = NULL;
    assert_int_equal(queue_new(3, &q), 0);
    assert_null(queue_pop(q));
    for (int round = 0; round < 4; round++) { /* goes around the ring */
        assert_int_equal(queue_push(q, &items[0]), 0);
        assert_int_equal(queue_push(q, &items[1]), 0);
        assert_ptr_equal(queue_pop(q), &items[0]);
        assert_int_equal(queue_push(q, &items[2]), 0);
        assert_ptr_equal(queue_pop(q), &items[1]);
        assert_ptr_equal(queue_pop(q), &items[2]);
        assert_null(queue_pop(q));
    }
    assert_null(queue_free(q));
    assert_null(queue_free(NULL));
}

static void full_queue_refuses_and_recovers(void **state)
{
    (void)state;
    struct queue *q = NULL;
    assert_int_equal(queue_new(2, &q), 0);
    assert_int_equal(queue_push(q, &items[0]), 0);
    assert_int_equal(queue_push(q, &items[1]), 0);
    assert_int_equal(queue_push(q, &items[2]), -E_AGAIN);
    assert_ptr_equal(queue_pop(q), &items[0]);
    assert_int_equal(queue_push(q, &items[2]), 0);
    assert_ptr_equal(queue_pop(q), &items[1]);
    assert_ptr_equal(queue_pop(q), &items[2]);
    queue_free(q);
}

static void descriptor_is_readable_exactly_while_items_are_inside(void **state)
{
    (void)state;
    struct queue *q = NULL;
    assert_int_equal(queue_new(4, &q), 0);
    assert_int_equal(readable(q), 0);
    for (int round = 0; round < 3; round++) {
        queue_push(q, &items[0]);
        assert_int_equal(readable(q), 1);
        queue_push(q, &items[1]);
        queue_pop(q);
        assert_int_equal(readable(q), 1);
        queue_pop(q);
        assert_int_equal(readable(q), 0);
        queue_pop(q);
        assert_int_equal(readable(q), 0);
    }
    queue_push(q, &items[0]);
    assert_ptr_equal(queue_wait(q, 0), &items[0]);
    assert_int_equal(readable(q), 0);
    queue_free(q);
}

static void closed_queue_refuses_items_but_gives_out_what_it_has(void **state)
{
    (void)state;
    struct queue *q = NULL;
    assert_int_equal(queue_new(4, &q), 0);
    assert_int_equal(queue_push(q, &items[0]), 0);
    queue_close(q);
    queue_close(q);
    assert_int_equal(queue_push(q, &items[1]), -E_CLOSED);
    assert_ptr_equal(queue_wait(q, -1), &items[0]);
    assert_null(queue_wait(q, -1));
    queue_free(q);
}

static void waiting_ends_at_the_time_out(void **state)
{
    (void)state;
    struct queue *q = NULL;
    assert_int_equal(queue_new(4, &q), 0);
    int64_t start = clock_now_ns();
    assert_null(queue_wait(q, 5 * NS_PER_MS));
    assert_true(clock_now_ns() - start >= 5 * NS_PER_MS);
    assert_null(queue_wait(q, 0));
    queue_free(q);
}

static void *wait_for_ever(void *arg)
{
    return queue_wait(arg, -1);
}

static void waiter_wakes_for_an_item_or_closing(void **state)
{
    (void)state;
    for (int close = 0; close <= 1; close++) {
        struct queue *q = NULL;
        pthread_t waiter;
        void *got = &items[7];
        assert_int_equal(queue_new(4, &q), 0);
        assert_int_equal(pthread_create(&waiter, NULL, wait_for_ever, q), 0);
        if (close)
            queue_close(q);
        else
            assert_int_equal(queue_push(q, &items[3]), 0);
        pthread_join(waiter, &got);
        assert_ptr_equal(got, close ? NULL : &items[3]);
        queue_free(q);
    }
}

#define PRODUCERS  3
#define PER_THREAD 5000

struct item {
    int producer, number;
};
struct producer {
    struct queue *q;
    struct item items[PER_THREAD];
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    for (int i = 0; i < PER_THREAD; i++)
        while (queue_push(p->q, &p->items[i]) == -E_AGAIN)
            sched_yield();
    return NULL;
}

/* by_poll: wait with poll on the descriptor as the I/O thread does, else with queue_wait. */
static void consume_all(int by_poll)
{
    static struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    struct queue *q = NULL;
    assert_int_equal(queue_new(16, &q), 0);
    for (int t = 0; t < PRODUCERS; t++) {
        producers[t].q = q;
        for (int i = 0; i < PER_THREAD; i++)
            producers[t].items[i] = (struct item){.producer = t, .number = i};
        assert_int_equal(pthread_create(&threads[t], NULL, produce, &producers[t]), 0);
    }
    int next[PRODUCERS] = {0};
    for (int n = 0; n < PRODUCERS * PER_THREAD; n++) {
        if (by_poll) {
            struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
            assert_int_equal(poll(&p, 1, 20000), 1);
        }
        struct item *item = by_poll ? queue_pop(q) : queue_wait(q, 20 * NS_PER_S);
        assert_non_null(item);
        assert_int_equal(item->number, next[item->producer]++);
    }
    for (int t = 0; t < PRODUCERS; t++)
        pthread_join(threads[t], NULL);
    queue_free(q);
}

static void many_producers_lose_nothing_and_keep_their_order(void **state)
{
    (void)state;
    consume_all(0);
}

static void poll_loop_misses_no_item(void **state)
{
    (void)state;
    consume_all(1);
}

static void out_of_memory_and_descriptors_are_told_apart(void **state)
{
    (void)state;
    struct queue *q = NULL;
    mem_fault_set(0);
    assert_int_equal(queue_new(4, &q), -E_NOMEM);
    mem_fault_set(-1);
    assert_int_equal(queue_new(SIZE_MAX / 4, &q), -E_NOMEM);
    struct rlimit old, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int r = queue_new(4, &q);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(r, -E_IO);
    assert_null(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_leave_in_the_order_they_came),
        cmocka_unit_test(full_queue_refuses_and_recovers),
        cmocka_unit_test(descriptor_is_readable_exactly_while_items_are_inside),
        cmocka_unit_test(closed_queue_refuses_items_but_gives_out_what_it_has),
        cmocka_unit_test(waiting_ends_at_the_time_out),
        cmocka_unit_test(waiter_wakes_for_an_item_or_closing),
        cmocka_unit_test(many_producers_lose_nothing_and_keep_their_order),
        cmocka_unit_test(poll_loop_misses_no_item),
        cmocka_unit_test(out_of_memory_and_descriptors_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
