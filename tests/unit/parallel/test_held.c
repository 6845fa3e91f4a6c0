/* Held messages: taken out in the order in which they came, bounded per sender in number and bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "parallel/held.h"
#include "runtime/base/mem.h"

static struct msg *message(uint64_t number, struct blob *body)
{
    struct msg *m = msg_new(MSG_BOUNDARY, 1);

    m->boundary.key.step = number;
    m->body = blob_ref(body);
    return m;
}

static void release(struct held_entry *entries, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        msg_free(entries[i].msg);
    mem_free(entries);
}

static void what_came_first_is_taken_first(void **state)
{
    (void)state;
    struct held h = {0};
    struct held_entry *entries;
    struct key a = {{1}}, b = {{2}};

    for (uint64_t i = 0; i < 40; i++)
        assert_int_equal(held_add(&h, i % 2 ? &a : &b, message(i, NULL)), 0);
    assert_int_equal(held_take(&h, &entries), 40);
    assert_int_equal(h.n, 0);
    for (uint64_t i = 0; i < 40; i++) {
        assert_int_equal(entries[i].msg->boundary.key.step, i);
        assert_true(key_equal(&entries[i].from, i % 2 ? &a : &b));
    }
    release(entries, 40);
    assert_int_equal(held_take(&h, &entries), 0);
    mem_free(entries);
    held_done(&h);
}

static void one_sender_cannot_fill_it_for_the_others(void **state)
{
    (void)state;
    struct held h = {0};
    struct key a = {{1}}, b = {{2}};

    for (uint64_t i = 0; i < HELD_PER_SENDER_MAX; i++)
        assert_int_equal(held_add(&h, &a, message(i, NULL)), 0);
    assert_int_equal(held_add(&h, &a, message(0, NULL)), -E_TOOBIG);
    assert_int_equal(h.dropped, 1);
    assert_int_equal(held_add(&h, &b, message(0, NULL)), 0);
    held_done(&h);
}

static void bytes_are_bounded_too(void **state)
{
    (void)state;
    struct held h = {0};
    struct key a = {{1}};
    struct blob *body;
    uint32_t n = 0;

    assert_int_equal(blob_new(HELD_BYTES_PER_SENDER_MAX / 4, &body), 0);
    while (held_add(&h, &a, message(0, body)) == 0)
        n++;
    assert_in_range(n, 3, 4); /* the heads may count, too */
    blob_unref(body);
    held_done(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_came_first_is_taken_first),
        cmocka_unit_test(one_sender_cannot_fill_it_for_the_others),
        cmocka_unit_test(bytes_are_bounded_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
