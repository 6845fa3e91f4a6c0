/* The reduce: ranges by bandwidth against brute force; whole attempts among members that lose messages; orders and
 * chunks that contradict the plan. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "parallel/reduce.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

/* ---- ranges ---- */

static void check_cover(const struct msg_reduce_member *m, uint32_t n, uint64_t n_elems)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        assert_true(m[i].lo == at && m[i].hi >= at);
        at = m[i].hi;
    }
    assert_true(at == n_elems);
}

static void ranges_cover_the_group_whatever_its_size(void **state)
{
    (void)state;
    struct msg_reduce_member m[9];

    for (uint32_t n = 1; n <= 9; n++)
        for (uint64_t elems = 1; elems < 40; elems++) {
            reduce_ranges(elems, NULL, n, m);
            check_cover(m, n, elems);
            for (uint32_t i = 0; i < n; i++)
                assert_in_range(m[i].hi - m[i].lo, elems / n > 1 ? elems / n - 1 : 0, elems / n + 1);
        }
    reduce_ranges(REDUCE_PIECE_ELEMS * 40u + 3, NULL, 3, m);
    check_cover(m, 3, REDUCE_PIECE_ELEMS * 40u + 3);
    assert_int_equal(m[0].hi % REDUCE_PIECE_ELEMS, 0); /* large ones on whole pieces */
}

/* The least T for which the fractions (T U_i - 1) / (n - 2), within [0, 1], can add up to one, by bisection. */
static double least_time(const double *bw, uint32_t n)
{
    double lo = 0, hi = 1, u_min = bw[0];

    for (uint32_t i = 0; i < n; i++)
        u_min = fmin(u_min, bw[i]);
    hi = n / u_min;
    for (int k = 0; k < 100; k++) {
        double t = (lo + hi) / 2, sum = 0;

        for (uint32_t i = 0; i < n; i++)
            sum += fmin(1, fmax(0, (t * bw[i] - 1) / (n - 2)));
        if (sum >= 1)
            hi = t;
        else
            lo = t;
    }
    return fmax(hi, 1 / u_min);
}

static void ranges_by_bandwidth_take_the_least_time(void **state)
{
    (void)state;
    struct rng rng = rng_make(1, "bandwidths");
    const uint64_t elems = UINT64_C(1) << 40;
    struct msg_reduce_member m[16];

    for (int round = 0; round < 2000; round++) {
        uint32_t n = 3 + (uint32_t)rng_below(&rng, 14);
        double bw[16], worst = 0;

        for (uint32_t i = 0; i < n; i++)
            bw[i] = round % 2 ? 1 + rng_unit(&rng) : exp(6 * rng_unit(&rng));
        reduce_ranges(elems, bw, n, m);
        check_cover(m, n, elems);
        for (uint32_t i = 0; i < n; i++)
            worst = fmax(worst, (1 + (n - 2) * (double)(m[i].hi - m[i].lo) / (double)elems) / bw[i]);
        assert_true(worst <= least_time(bw, n) * (1 + 1e-4));
    }
}

static void two_members_halve_and_unknown_rates_are_equal(void **state)
{
    (void)state;
    const double bw[] = {1, 100}, some[] = {1, 0, 5};
    struct msg_reduce_member m[3];

    reduce_ranges(1000, bw, 2, m);
    assert_int_equal(m[0].hi, 500);
    reduce_ranges(999, some, 3, m);
    assert_int_equal(m[0].hi, 333);
    assert_int_equal(m[1].hi, 666);
}

/* ---- attempts ---- */

#define MEMBERS 4
#define ELEMS   (3 * (uint64_t)REDUCE_PIECE_ELEMS + 11)

struct rig {
    struct plan plan;
    struct plan_peer peers[MEMBERS];
    struct plan_group group;
    uint32_t tensor, members[MEMBERS];
    int64_t offset;
    struct msg_reduce order;
    struct msg_reduce_member order_members[MEMBERS];
    bool joining[MEMBERS];
    struct reduce *reduces[MEMBERS];
    struct effects fx[MEMBERS];
    float *stored[MEMBERS];
    struct rng rng;
    double loss;
    int64_t now;
};

static void open_rig(struct rig *r, uint64_t seed, double loss)
{
    *r = (struct rig){.rng = rng_make(seed, "reduce"), .loss = loss};
    r->plan = (struct plan){.n_peers = MEMBERS, .peers = r->peers};
    r->group = (struct plan_group){1, &r->tensor, &r->offset, (int64_t)ELEMS, MEMBERS, r->members, r->joining};
    r->order = (struct msg_reduce){1, 5, 0, 1, MEMBERS, r->order_members};
    for (uint32_t i = 0; i < MEMBERS; i++) {
        r->peers[i].key.bytes[0] = (uint8_t)(i + 1);
        r->members[i] = i;
        r->order_members[i] = (struct msg_reduce_member){.peer = i, .contributes = i != 2};
        r->stored[i] = mem_calloc(ELEMS, sizeof(float));
    }
    reduce_ranges(ELEMS, NULL, MEMBERS, r->order_members);
}

static int start(struct rig *r, uint32_t i, const struct msg_reduce *order)
{
    struct reduce_config config = {1, 1, 5, &r->plan, &r->group, 0, i, true, r->now};

    return reduce_new(&config, order, &r->fx[i], &r->reduces[i], NULL);
}

static void close_rig(struct rig *r)
{
    for (uint32_t i = 0; i < MEMBERS; i++) {
        reduce_free(r->reduces[i]);
        effects_done(&r->fx[i]);
        mem_free(r->stored[i]);
    }
}

static int64_t own(uint32_t member, uint64_t e)
{
    return (int64_t)((member + 1) * 1000003 + e * 7);
}

/* What the member's device does. */
static void run_task(struct rig *r, uint32_t i, struct task *t)
{
    if (t->kind == TASK_DIGEST) {
        hash_of(r->stored[i], ELEMS * sizeof(float), t->hash);
        t->sum_squares = mem_calloc(1, sizeof(double));
        return;
    }
    assert_true(t->offset + t->n <= ELEMS);
    if (t->kind == TASK_STORE) {
        memcpy(r->stored[i] + t->offset, t->in->data, t->n * sizeof(float));
        return;
    }
    assert_int_equal(blob_new(t->n * (t->kind == TASK_PARTIAL ? sizeof(int64_t) : sizeof(float)), &t->out), 0);
    for (uint64_t e = 0; e < t->n; e++) {
        int64_t sum = t->contributes ? own(i, t->offset + e) : 0;

        for (uint32_t p = 0; t->kind == TASK_SUM && p < t->n_parts; p++)
            sum += ((int64_t *)t->parts[p]->data)[e];
        if (t->kind == TASK_PARTIAL)
            ((int64_t *)t->out->data)[e] = own(i, t->offset + e);
        else if (t->kind == TASK_SUM)
            r->stored[i][t->offset + e] = ((float *)t->out->data)[e] = (float)sum;
        else
            ((float *)t->out->data)[e] = r->stored[i][t->offset + e];
    }
}

static void deliver(struct rig *r, uint32_t from, const struct effects_send *s)
{
    uint32_t to = (uint32_t)plan_find(&r->plan, &s->to);

    if (rng_unit(&r->rng) >= r->loss && r->reduces[to]) {
        if (s->msg->type == MSG_CHUNK)
            assert_int_equal(reduce_chunk(r->reduces[to], from, s->msg, r->now, &r->fx[to]), 0);
        else
            reduce_need(r->reduces[to], from, &s->msg->need.chunk, &r->fx[to]);
    }
}

/* Runs what member i wants done; false when that is nothing. */
static bool pump(struct rig *r, uint32_t i)
{
    struct effects fx = r->fx[i];

    r->fx[i] = (struct effects){0};
    for (uint32_t k = 0; k < fx.n_sends; k++)
        deliver(r, i, &fx.sends[k]);
    for (uint32_t k = 0; k < fx.n_tasks; k++) {
        run_task(r, i, fx.tasks[k]);
        reduce_task_done(r->reduces[i], fx.tasks[k], r->now, &r->fx[i]);
    }
    bool any = fx.n_sends + fx.n_tasks > 0;

    effects_done(&fx);
    return any;
}

static bool all_finished(const struct rig *r)
{
    for (uint32_t i = 0; i < MEMBERS; i++)
        if (!reduce_finished(r->reduces[i]))
            return false;
    return true;
}

static void run_attempt(struct rig *r)
{
    int64_t limit = 3600 * NS_PER_S;

    for (uint32_t i = 0; i < MEMBERS; i++)
        assert_int_equal(start(r, i, &r->order), 0);
    while (!all_finished(r) && r->now < limit) {
        bool any = false;

        for (uint32_t i = 0; i < MEMBERS; i++)
            any = pump(r, i) || any;
        if (any)
            continue;
        r->now += NS_PER_S;
        for (uint32_t i = 0; i < MEMBERS; i++)
            reduce_tick(r->reduces[i], r->now, &r->fx[i]);
    }
    assert_true(all_finished(r));
}

static void check_sums(const struct rig *r)
{
    for (uint32_t i = 0; i < MEMBERS; i++) {
        for (uint64_t e = 0; e < ELEMS; e++)
            if (r->stored[i][e] != (float)(own(0, e) + own(1, e) + own(3, e)))
                fail_msg("member %u, element %llu", i, (unsigned long long)e);
        assert_memory_equal(reduce_hash(r->reduces[i]), reduce_hash(r->reduces[0]), HASH_BYTES);
        struct msg *m = reduce_report(r->reduces[i]);

        assert_int_equal(m->reduced.attempt, 1);
        assert_int_equal(m->reduced.n_tensors, 1);
        msg_free(m);
    }
}

static void all_members_end_with_the_sum_of_the_contributors(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, 0, 0);
    run_attempt(&r);
    assert_true(r.now == 0); /* nothing was waited for */
    check_sums(&r);
    close_rig(&r);
}

static void lost_chunks_and_requests_are_made_up_for(void **state)
{
    (void)state;

    for (uint64_t seed = 0; seed < 10; seed++) {
        struct rig r;

        open_rig(&r, seed, 0.3);
        run_attempt(&r);
        assert_true(r.now > 0);
        check_sums(&r);
        close_rig(&r);
    }
}

static void orders_that_contradict_the_plan_are_refused(void **state)
{
    (void)state;
    struct rig r;
    struct msg_reduce order;

    open_rig(&r, 0, 0);
    order = r.order;
    order.n_members--;
    assert_int_equal(start(&r, 0, &order), -E_PROTO);
    r.order_members[1].peer = 3;
    assert_int_equal(start(&r, 0, &r.order), -E_PROTO);
    r.order_members[1].peer = 1;
    r.order_members[1].lo++;
    assert_int_equal(start(&r, 0, &r.order), -E_PROTO);
    r.order_members[1].lo--;
    r.order_members[3].hi--;
    assert_int_equal(start(&r, 0, &r.order), -E_PROTO);
    r.order_members[3].hi++;
    assert_int_equal(start(&r, MEMBERS, &r.order), -E_PROTO); /* not a member */
    assert_int_equal(start(&r, 0, &r.order), 0);
    close_rig(&r);
}

static int give(struct rig *r, uint32_t from, uint32_t kind, uint64_t offset, uint64_t n, bool fixed_point)
{
    struct msg *m = msg_new(MSG_CHUNK, 1);

    m->chunk = (struct msg_chunk){{1, 5, 0, 1, kind, offset, n}, fixed_point};
    assert_int_equal(blob_new(n * (fixed_point ? 8 : 4), &m->body), 0);
    int status = reduce_chunk(r->reduces[0], from, m, 0, &r->fx[0]);

    msg_free(m);
    return status;
}

static void chunks_that_contradict_the_order_are_refused(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, 0, 0);
    assert_int_equal(start(&r, 0, &r.order), 0);
    const struct msg_reduce_member *m = r.order_members;
    uint64_t n = m[0].hi, theirs = m[1].hi - m[1].lo;

    assert_true(n <= REDUCE_PIECE_ELEMS && theirs <= REDUCE_PIECE_ELEMS);
    assert_int_equal(give(&r, 1, MSG_CHUNK_PARTIAL, 1, n, true), -E_PROTO);            /* no piece begins there */
    assert_int_equal(give(&r, 1, MSG_CHUNK_PARTIAL, 0, n - 1, true), -E_PROTO);        /* nor ends */
    assert_int_equal(give(&r, 2, MSG_CHUNK_PARTIAL, 0, n, true), -E_PROTO);            /* does not contribute */
    assert_int_equal(give(&r, 0, MSG_CHUNK_PARTIAL, 0, n, true), -E_PROTO);            /* itself */
    assert_int_equal(give(&r, 1, MSG_CHUNK_PARTIAL, 0, n, false), -E_PROTO);           /* not exact */
    assert_int_equal(give(&r, 1, MSG_CHUNK_PARTIAL, m[1].lo, theirs, true), -E_PROTO); /* not ours to reduce */
    assert_int_equal(give(&r, 3, MSG_CHUNK_SUM, m[1].lo, theirs, false), -E_PROTO);    /* not theirs to finish */
    assert_int_equal(give(&r, 1, MSG_CHUNK_PARTIAL, 0, n, true), 0);
    assert_int_equal(give(&r, 1, MSG_CHUNK_PARTIAL, 0, n, true), 0); /* twice */
    assert_int_equal(give(&r, 1, MSG_CHUNK_SUM, m[1].lo, theirs, false), 0);
    close_rig(&r);
}

/* Member 2 gets every sum and gives nothing, asks its device for nothing, and says that it is there. */
static void who_joins_gets_the_sums_as_they_came(void **state)
{
    (void)state;

    for (uint64_t seed = 0; seed < 10; seed++) {
        struct msg_reduce_member workers[MEMBERS - 1];
        struct blob **sums = NULL;
        uint32_t n = 0;
        uint64_t at = 0, bytes;
        struct rig r;

        open_rig(&r, seed, seed ? 0.3 : 0);
        r.joining[2] = true;
        assert_int_equal(start(&r, 0, &r.order), -E_PROTO); /* it has a range */
        reduce_ranges(ELEMS, NULL, MEMBERS - 1, workers);
        for (uint32_t i = 0; i < MEMBERS; i++) {
            r.order_members[i].lo = i < 2 ? workers[i].lo : i == 2 ? workers[1].hi : workers[2].lo;
            r.order_members[i].hi = i < 2 ? workers[i].hi : i == 2 ? workers[1].hi : workers[2].hi;
        }
        run_attempt(&r);
        assert_true(reduce_joins(r.reduces[2]) && !reduce_joins(r.reduces[1]));
        assert_int_equal(reduce_sums(r.reduces[2], &sums, &n), 0);
        for (uint32_t i = 0; i < n; i++) {
            assert_memory_equal(sums[i]->data, r.stored[0] + at, sums[i]->size);
            at += sums[i]->size / sizeof(float);
            blob_unref(sums[i]);
        }
        mem_free(sums);
        assert_true(at == ELEMS);
        assert_true(r.stored[2][0] == 0);
        /* Its owners can give it again without a look at the device. */
        assert_true(reduce_keeps(r.reduces[0], &bytes) && bytes == (r.order_members[0].hi) * sizeof(float));
        assert_false(reduce_keeps(r.reduces[2], &bytes));
        reduce_need(r.reduces[0], 2, &(struct msg_chunk_key){1, 5, 0, 1, MSG_CHUNK_SUM, 0, REDUCE_PIECE_ELEMS},
                    &r.fx[0]);
        assert_int_equal(r.fx[0].n_sends, 1);
        assert_int_equal(r.fx[0].n_tasks, 0);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_cover_the_group_whatever_its_size),
        cmocka_unit_test(ranges_by_bandwidth_take_the_least_time),
        cmocka_unit_test(two_members_halve_and_unknown_rates_are_equal),
        cmocka_unit_test(all_members_end_with_the_sum_of_the_contributors),
        cmocka_unit_test(lost_chunks_and_requests_are_made_up_for),
        cmocka_unit_test(who_joins_gets_the_sums_as_they_came),
        cmocka_unit_test(orders_that_contradict_the_plan_are_refused),
        cmocka_unit_test(chunks_that_contradict_the_order_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
