/* State in and out of a compute, and the sums' ranges: what arrives from the network in pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "model/optimizer.h"
#include "model/params.h"
#include "peer/compute_impl.h"
#include "runtime/base/mem.h"
#include "tests/unit/peer/fleet.h"

#define TENSORS 64
#define ALONE   "units 0-3: 0\n"

typedef uint8_t digests[TENSORS][HASH_BYTES];

static void ranges_and_parts_of_wrong_size_are_refused(void **state)
{
    static const enum task_kind kinds[] = {TASK_PARTIAL, TASK_SUM, TASK_STORE, TASK_STORED};
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_setup(&f, false);
    struct compute *c = f.computes[0];
    uint32_t other = 0; /* a group of peer 1 alone */

    while (f.groups.groups[other].n_members != 1 || f.groups.groups[other].members[0] != 1)
        other++;
    const uint64_t n = (uint64_t)f.groups.groups[0].n_elems;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        fleet_refused(c, fleet_range(kinds[i], 0, n, 1), -E_PROTO);
        fleet_refused(c, fleet_range(kinds[i], 0, 1, UINT64_MAX), -E_PROTO);
        fleet_refused(c, fleet_range(kinds[i], other, 0, 1), -E_PROTO);
        fleet_refused(c, fleet_range(kinds[i], f.groups.n, 0, 1), -E_PROTO);
    }
    fleet_refused(c, fleet_range(TASK_DIGEST, other, 0, 0), -E_PROTO);
    struct task *t = fleet_range(TASK_SUM, 0, 0, 10); /* fp32 instead of fixed point */

    t->parts = mem_calloc(1, sizeof *t->parts);
    t->parts[t->n_parts++] = fleet_floats(10, 0);
    fleet_refused(c, t, -E_PROTO);
    t = fleet_range(TASK_STORE, 0, 0, 10);
    t->in = fleet_floats(11, 0);
    fleet_refused(c, t, -E_PROTO);
    fleet_refused(c, fleet_range(TASK_STORE, 0, 0, 10), -E_PROTO);
    fleet_close(&f);
}

static void without_contributions_a_sum_is_zero(void **state)
{
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    task_free(fleet_do(f.computes[0], fleet_forward(&f, 0, 0, 4, NULL)));
    task_free(fleet_do(f.computes[0], fleet_backward(&f, 0, 0, 4, NULL)));
    struct task *t = fleet_range(TASK_SUM, 0, 0, 10);

    t->contributes = true;
    fleet_do(f.computes[0], t);
    assert_true(((float *)t->out->data)[0] != 0);
    task_free(t);
    t = fleet_do(f.computes[0], fleet_range(TASK_SUM, 0, 0, 10));
    for (int i = 0; i < 10; i++)
        assert_true(((float *)t->out->data)[i] == 0);
    task_free(t);
    fleet_close(&f);
}

static void weight_decay_reaches_the_tensors_that_decay_only(void **state)
{
    struct fleet f;
    digests before, after;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_setup(&f, false);
    fleet_digests(&f, before);
    for (uint32_t i = 0; i < f.plan.n_peers; i++) {
        struct task *t = task_new(TASK_APPLY); /* of sums that are all zero */

        t->update = optimizer_step(&f.job, 0, 0, 0);
        task_free(fleet_do(f.computes[i], t));
    }
    fleet_digests(&f, after);
    for (uint32_t i = 0; i < f.model->n_tensors; i++)
        assert_int_equal(memcmp(before[i], after[i], HASH_BYTES) != 0, f.model->tensors[i].decay);
    fleet_close(&f);
}

static struct task *state_task(enum task_kind kind, uint32_t tensor, uint32_t part, uint64_t offset, uint64_t n)
{
    struct task *t = fleet_range(kind, 0, offset, n);

    t->tensor = tensor;
    t->part = part;
    return t;
}

/* Copies one part of a tensor from a snapshot of `from` to `to`, in two pieces. */
static void carry(struct fleet *from, struct compute *donor, struct compute *to, uint32_t tensor, uint32_t part)
{
    const uint64_t n = (uint64_t)from->model->tensors[tensor].n, cut = n / 3;

    for (int i = 0; i < 2; i++) {
        struct task *read = state_task(TASK_SNAPSHOT_READ, tensor, part, i ? cut : 0, i ? n - cut : cut);
        uint8_t hash[HASH_BYTES];

        read->version = from->version;
        fleet_do(donor, read);
        assert_int_equal(read->out->size, read->n * sizeof(float));
        hash_of(read->out->data, read->out->size, hash);
        assert_memory_equal(hash, read->hash, HASH_BYTES);
        struct task *write = state_task(TASK_STATE_WRITE, tensor, part, read->offset, read->n);

        write->in = TAKE_PTR(read->out);
        task_free(fleet_do(to, write));
        task_free(read);
    }
}

static void state_carried_to_other_peers_continues_with_the_same_bits(void **state)
{
    struct fleet f, g;
    digests want, got;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    fleet_step(&f);
    fleet_step(&f);
    fleet_digests(&f, want); /* the snapshot */
    fleet_open(&g, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_setup(&g, true);
    g.version = f.version;
    for (uint32_t i = 0; i < g.plan.n_peers; i++)
        for (uint32_t tensor = 0; tensor < g.model->n_tensors; tensor++)
            for (uint32_t part = 0; part < PARAMS_PARTS; part++)
                if (params_holds(g.computes[i]->params, tensor)) /* idle: nothing is submitted */
                    carry(&f, f.computes[0], g.computes[i], tensor, part);
    fleet_digests(&g, got);
    assert_memory_equal(want, got, f.model->n_tensors * HASH_BYTES);
    fleet_step(&f);
    fleet_step(&g);
    fleet_digests(&f, want);
    fleet_digests(&g, got);
    assert_memory_equal(want, got, f.model->n_tensors * HASH_BYTES);
    fleet_close(&f);
    fleet_close(&g);
}

static struct task *version_task(enum task_kind kind, uint64_t version)
{
    struct task *t = state_task(kind, 0, PARAMS_VALUE, 0, 1);

    t->version = version;
    return t;
}

static void snapshots_live_until_dropped_or_pushed_out(void **state)
{
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_setup(&f, false);
    struct compute *c = f.computes[0];

    fleet_refused(c, version_task(TASK_SNAPSHOT_READ, 5), -E_NOENT);
    struct task *once = fleet_do(c, version_task(TASK_SNAPSHOT, 5));
    struct task *again = fleet_do(c, version_task(TASK_SNAPSHOT, 5));

    assert_int_equal(once->n_digests, again->n_digests);
    assert_memory_equal(once->digests, again->digests, once->n_digests * HASH_BYTES);
    for (uint32_t i = 1; i < once->n_digests; i++)
        assert_true(once->digest_tensors[i] > once->digest_tensors[i - 1]);
    task_free(once);
    task_free(again);
    struct task *kept = fleet_do(c, version_task(TASK_SNAPSHOT_READ, 5));
    struct task *last = version_task(TASK_SNAPSHOT_READ, 5);

    last->tensor = f.model->n_tensors - 1; /* the other peer's */
    fleet_refused(c, last, -E_NOENT);
    fleet_setup(&f, false); /* a new plan leaves snapshots alone */
    for (uint64_t version = 6; version < 9; version++) {
        task_free(fleet_do(c, version_task(TASK_SNAPSHOT_READ, version - 1)));
        task_free(fleet_do(c, version_task(TASK_SNAPSHOT, version)));
    }
    fleet_refused(c, version_task(TASK_SNAPSHOT_READ, 5), -E_NOENT);
    task_free(fleet_do(c, version_task(TASK_SNAPSHOT_DROP, 8)));
    task_free(fleet_do(c, version_task(TASK_SNAPSHOT_DROP, 8)));
    fleet_refused(c, version_task(TASK_SNAPSHOT_READ, 8), -E_NOENT);
    task_free(fleet_do(c, version_task(TASK_SNAPSHOT_READ, 6)));
    assert_true(isfinite(*(float *)kept->out->data)); /* what was read stays */
    task_free(kept);
    fleet_close(&f);
}

static void state_of_wrong_size_or_place_is_refused(void **state)
{
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_setup(&f, false);
    const uint64_t n = (uint64_t)f.model->tensors[0].n;
    const struct {
        uint32_t tensor, part;
        uint64_t offset, n;
        int64_t n_floats;
        int status;
    } cases[] = {
        {0, 0, 0, 4, 5, -E_PROTO},
        {0, 0, n, 4, 4, -E_PROTO},
        {0, 0, 4, UINT64_MAX, 4, -E_PROTO},
        {0, PARAMS_PARTS, 0, 4, 4, -E_PROTO},
        {f.model->n_tensors, 0, 0, 4, 4, -E_PROTO},
        {f.model->n_tensors - 1, 0, 0, 4, 4, -E_NOENT},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct task *t = state_task(TASK_STATE_WRITE, cases[i].tensor, cases[i].part, cases[i].offset, cases[i].n);

        t->in = fleet_floats(cases[i].n_floats, 0);
        fleet_refused(f.computes[0], t, cases[i].status);
    }
    fleet_refused(f.computes[0], state_task(TASK_STATE_WRITE, 0, 0, 0, 4), -E_PROTO);
    fleet_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weight_decay_reaches_the_tensors_that_decay_only),
        cmocka_unit_test(without_contributions_a_sum_is_zero),
        cmocka_unit_test(ranges_and_parts_of_wrong_size_are_refused),
        cmocka_unit_test(state_carried_to_other_peers_continues_with_the_same_bits),
        cmocka_unit_test(snapshots_live_until_dropped_or_pushed_out),
        cmocka_unit_test(state_of_wrong_size_or_place_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
