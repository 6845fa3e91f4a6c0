/* Leases: the order of work, the limit on what is in flight, boundary tensors put together from pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "parallel/lease.h"
#include "parallel/task.h"

static struct lease *add(struct lease_queue *q, uint32_t microbatch, uint32_t mode, uint32_t u0, uint32_t u1)
{
    struct msg_lease info = {.microbatch = microbatch, .mode = mode, .u0 = u0, .u1 = u1};

    assert_int_equal(lease_add(q, 0, &info, 1, NULL, NULL, 0), 0);
    return lease_find(q, 0, microbatch, mode, u0);
}

static void a_lease_is_known_once(void **state)
{
    (void)state;
    struct lease_queue q = {0};
    struct msg_lease info = {.microbatch = 1, .mode = MSG_MODE_TRAIN, .u0 = 2, .u1 = 4};

    assert_int_equal(lease_add(&q, 5, &info, 1, NULL, NULL, 0), 0);
    assert_int_equal(lease_add(&q, 5, &info, 1, NULL, NULL, 0), -E_EXIST);
    info.mode = MSG_MODE_EVAL;
    assert_int_equal(lease_add(&q, 5, &info, 1, NULL, NULL, 0), 0);
    assert_int_equal(q.n, 2);
    assert_null(lease_find(&q, 6, 1, MSG_MODE_TRAIN, 2));
    lease_queue_drop_before(&q, 6);
    assert_int_equal(q.n, 0);
    lease_queue_done(&q);
}

static void backward_goes_before_forward_and_low_before_high(void **state)
{
    (void)state;
    struct lease_queue q = {0};
    struct lease *f3 = add(&q, 3, MSG_MODE_TRAIN, 1, 3), *f2 = add(&q, 2, MSG_MODE_TRAIN, 1, 3),
                 *b5 = add(&q, 5, MSG_MODE_TRAIN, 1, 3), *b4 = add(&q, 4, MSG_MODE_TRAIN, 1, 3),
                 *e7 = add(&q, 7, MSG_MODE_EVAL, 1, 3);

    f3->state = f2->state = e7->state = LEASE_READY_FORWARD;
    b5->state = b4->state = LEASE_READY_BACKWARD;
    assert_ptr_equal(lease_pick(&q, 0, 9), b4);
    b4->state = LEASE_DONE;
    assert_ptr_equal(lease_pick(&q, 0, 9), b5);
    b5->state = LEASE_DONE;
    assert_ptr_equal(lease_pick(&q, 0, 9), e7); /* nobody shall wait for it at the step's end */
    e7->state = LEASE_DONE;
    assert_ptr_equal(lease_pick(&q, 0, 9), f2);
    f2->state = LEASE_DONE;
    assert_ptr_equal(lease_pick(&q, 0, 9), f3);
    assert_null(lease_pick(&q, 1, 9)); /* another step's */
    lease_queue_done(&q);
}

static void in_flight_limits_what_begins_at_unit_0_and_nothing_else(void **state)
{
    (void)state;
    struct lease_queue q = {0};
    struct lease *l[3], *later;

    for (uint32_t m = 0; m < 3; m++)
        l[m] = add(&q, m, MSG_MODE_TRAIN, 0, 1);
    assert_ptr_equal(lease_pick(&q, 0, 2), l[0]);
    l[0]->state = LEASE_WAIT_GRADIENT;
    assert_ptr_equal(lease_pick(&q, 0, 2), l[1]);
    l[1]->state = LEASE_RUN_FORWARD;
    assert_null(lease_pick(&q, 0, 2));
    later = add(&q, 0, MSG_MODE_TRAIN, 2, 3); /* the same peer further down the route */
    later->state = LEASE_READY_FORWARD;
    assert_ptr_equal(lease_pick(&q, 0, 2), later);
    later->state = LEASE_DONE;
    l[0]->state = LEASE_DONE;
    assert_ptr_equal(lease_pick(&q, 0, 2), l[2]);
    lease_queue_done(&q);
}

static void boundaries_find_their_ends(void **state)
{
    (void)state;
    struct lease_queue q = {0};
    struct lease *l = add(&q, 1, MSG_MODE_TRAIN, 2, 4);
    struct msg_boundary_key in = {0, 0, 1, MSG_MODE_TRAIN, 2, MSG_FORWARD}, out = in, grad = in, grad_out = in;

    out.unit = grad.unit = 4;
    grad.direction = grad_out.direction = MSG_BACKWARD;
    assert_ptr_equal(lease_receiver(&q, &in), l);
    assert_null(lease_sender(&q, &in));
    assert_ptr_equal(lease_sender(&q, &out), l);
    assert_null(lease_receiver(&q, &out));
    assert_ptr_equal(lease_receiver(&q, &grad), l);
    assert_ptr_equal(lease_sender(&q, &grad_out), l);
    lease_queue_done(&q);
}

/* One piece of a tensor of total elements, each with its number as value. */
static int give(struct lease *l, uint32_t direction, uint64_t offset, uint64_t n, uint64_t total)
{
    struct msg_boundary piece = {.key = {.direction = direction}, .offset = offset, .n = n, .total = total};
    struct blob *body;

    assert_int_equal(blob_new(n * sizeof(float), &body), 0);
    for (uint64_t i = 0; i < n; i++)
        ((float *)body->data)[i] = (float)(offset + i);
    int r = lease_piece(l, &piece, body, total);

    blob_unref(body);
    return r;
}

static void pieces_in_any_order_make_the_tensor(void **state)
{
    (void)state;
    const uint64_t P = LEASE_PIECE_ELEMS, total = 2 * P + 7;
    struct lease_queue q = {0};
    struct lease *l = add(&q, 0, MSG_MODE_TRAIN, 1, 2);

    assert_int_equal(give(l, MSG_FORWARD, 2 * P, 7, total), 0);
    assert_int_equal(give(l, MSG_FORWARD, 0, P, total), 0);
    assert_int_equal(give(l, MSG_FORWARD, 0, P, total), 0); /* twice */
    assert_int_equal(l->state, LEASE_WAIT_INPUT);
    assert_int_equal(give(l, MSG_FORWARD, P, P, total), 1);
    assert_int_equal(l->state, LEASE_READY_FORWARD);
    for (uint64_t i = 0; i < total; i++)
        assert_true(((float *)l->in.whole->data)[i] == (float)i);
    assert_int_equal(give(l, MSG_FORWARD, P, P, total), 0); /* late */
    lease_queue_done(&q);
}

static void pieces_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    const uint64_t P = LEASE_PIECE_ELEMS, total = 2 * P;
    struct lease_queue q = {0};
    struct lease *l = add(&q, 0, MSG_MODE_TRAIN, 1, 2), *e = add(&q, 0, MSG_MODE_EVAL, 1, 2);
    struct msg_boundary wrong_total = {.n = P, .total = total + 1};
    struct blob *body;

    assert_int_equal(give(l, MSG_FORWARD, 1, P, total), -E_PROTO);     /* not at a piece's start */
    assert_int_equal(give(l, MSG_FORWARD, 0, P - 1, total), -E_PROTO); /* too short */
    assert_int_equal(give(l, MSG_FORWARD, 2 * P, P, total), -E_PROTO); /* beyond the end */
    assert_int_equal(give(e, MSG_FORWARD, 0, 8, 8), 1);
    e->state = LEASE_WAIT_GRADIENT;
    assert_int_equal(give(e, MSG_BACKWARD, 0, 8, 8), -E_PROTO); /* an evaluation has no gradient */
    assert_int_equal(blob_new(P * sizeof(float), &body), 0);
    assert_int_equal(lease_piece(l, &wrong_total, body, total), -E_PROTO);
    blob_unref(body);
    lease_queue_done(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lease_is_known_once),
        cmocka_unit_test(backward_goes_before_forward_and_low_before_high),
        cmocka_unit_test(in_flight_limits_what_begins_at_unit_0_and_nothing_else),
        cmocka_unit_test(boundaries_find_their_ends),
        cmocka_unit_test(pieces_in_any_order_make_the_tensor),
        cmocka_unit_test(pieces_that_do_not_fit_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
