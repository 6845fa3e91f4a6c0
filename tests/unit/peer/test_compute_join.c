/* A compute that gets units while the others train with them: state that is kept, fetched, and caught up with, must be
 * bit for bit that of a compute that was there from the start. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "model/optimizer.h"
#include "model/params.h"
#include "runtime/base/mem.h"
#include "tests/unit/peer/fleet.h"

#define TENSORS    64
#define SUM_PIECES 3

typedef uint8_t digests[TENSORS][HASH_BYTES];

/* The fleet's plan is `text` from now on; the last `n_joining` holders of each stage are joining it. What is held
 * stays. The fleet steps without who is joining; *ret_groups are the groups with them. */
static void change_plan(struct fleet *f, const char *text, const uint32_t *n_joining, struct plan_groups *ret_groups)
{
    struct reason why = {0};

    plan_done(&f->plan);
    plan_groups_done(&f->groups);
    if (plan_parse(text, f->model->n_units, &f->plan, &why) < 0)
        fail_msg("%s", why.text);
    f->plan.epoch = 2;
    for (uint32_t s = 0; s < f->plan.n_stages; s++) {
        struct plan_stage *st = &f->plan.stages[s];

        for (uint32_t i = st->n_holders - n_joining[s]; i < st->n_holders; i++)
            f->plan.holders[st->first_holder + i] =
                (struct plan_holder){.peer = f->plan.holders[st->first_holder + i].peer, .joining = 1};
    }
    for (uint32_t i = 0; i < f->plan.n_peers; i++) {
        struct task *t = fleet_setup_task(f, i, false);

        t->keep = true;
        task_free(fleet_do(f->computes[i], t));
    }
    assert_int_equal(plan_groups(&f->plan, f->model, ret_groups), 0);
    assert_int_equal(plan_groups(&f->plan, f->model, &f->groups), 0);
    for (uint32_t g = 0; g < f->groups.n; g++) {
        struct plan_group *group = &f->groups.groups[g];
        uint32_t kept = 0;

        for (uint32_t i = 0; i < group->n_members; i++)
            if (!group->joining[i])
                group->members[kept++] = group->members[i];
        group->n_members = kept;
    }
    for (uint32_t s = 0; s < f->plan.n_stages; s++)
        f->plan.stages[s].n_holders -= n_joining[s];
}

static void add_compute(struct fleet *f, uint32_t i)
{
    const struct compute_config config = {.model = f->model, .reduction = f->job.reduction, .n_threads = 1, .speed = 1};

    assert_int_equal(compute_new(&config, &f->computes[i], NULL), 0);
}

static bool joins(const struct plan_group *g, uint32_t peer)
{
    for (uint32_t i = 0; i < g->n_members; i++)
        if (g->members[i] == peer)
            return g->joining[i];
    return false;
}

/* A replay of the step that the fleet just took; its sums come in pieces. */
static struct task *replay_task(const struct fleet *f, uint32_t group, double norm)
{
    const struct plan_group *g = &f->groups.groups[group];
    struct compute *holder = f->computes[g->members[0]];
    struct task *digest = fleet_do(holder, fleet_range(TASK_DIGEST, group, 0, 0)), *t = task_new(TASK_REPLAY);
    const uint64_t n = (uint64_t)g->n_elems;

    t->group = group;
    t->step = f->version - 1;
    t->update = optimizer_step(&f->job, f->version - 1, f->version - 1, norm);
    memcpy(t->hash, digest->hash, HASH_BYTES);
    task_free(digest);
    t->parts = mem_calloc(SUM_PIECES, sizeof *t->parts);
    for (uint64_t i = 0; i < SUM_PIECES; i++) {
        struct task *part =
            fleet_range(TASK_STORED, group, n * i / SUM_PIECES, n * (i + 1) / SUM_PIECES - n * i / SUM_PIECES);

        fleet_do(holder, part);
        t->parts[t->n_parts++] = TAKE_PTR(part->out);
        task_free(part);
    }
    return t;
}

/* The gradient norm of the step that the fleet just took. */
static double norm_of(const struct fleet *f)
{
    double squares[TENSORS] = {0}, sum = 0;

    for (uint32_t g = 0; g < f->groups.n; g++) {
        const struct plan_group *group = &f->groups.groups[g];
        struct task *t = fleet_do(f->computes[group->members[0]], fleet_range(TASK_DIGEST, g, 0, 0));

        for (uint32_t i = 0; i < group->n_tensors; i++)
            squares[group->tensors[i]] = t->sum_squares[i];
        task_free(t);
    }
    for (uint32_t i = 0; i < f->model->n_tensors; i++)
        sum += squares[i];
    return sqrt(sum);
}

/* The snapshots of `version`, from a holder of each joined group to the joiner. */
static void fetch(const struct fleet *f, const struct plan_groups *groups, uint32_t joiner, uint64_t version)
{
    for (uint32_t g = 0; g < groups->n; g++) {
        const struct plan_group *group = &groups->groups[g];

        for (uint32_t i = 0; joins(group, joiner) && i < group->n_tensors; i++)
            for (uint32_t part = 0; part < PARAMS_PARTS; part++) {
                struct task *t = task_new(TASK_SNAPSHOT_READ), *write = task_new(TASK_STATE_WRITE);

                t->version = version;
                t->tensor = write->tensor = group->tensors[i];
                t->part = write->part = part;
                t->n = write->n = (uint64_t)f->model->tensors[t->tensor].n;
                fleet_do(f->computes[f->groups.groups[g].members[0]], t);
                write->in = blob_ref(t->out);
                task_free(fleet_do(f->computes[joiner], write));
                task_free(t);
            }
    }
}

static void take_snapshots(const struct fleet *f)
{
    for (uint32_t i = 0; i < f->plan.n_peers; i++) {
        struct task *t = task_new(TASK_SNAPSHOT);

        t->version = f->version;
        if (plan_counts(&f->plan, i))
            fleet_do(f->computes[i], t);
        task_free(t);
    }
}

/* Two steps that the joiner keeps the sums of, the state of before them, and then the replay of both. */
static void join(struct fleet *f, const struct plan_groups *groups, uint32_t joiner)
{
    struct task *kept[2][TENSORS] = {0};
    const uint64_t version = f->version;

    take_snapshots(f);
    for (int step = 0; step < 2; step++) {
        fleet_step(f);
        const double norm = norm_of(f);

        for (uint32_t g = 0; g < groups->n; g++)
            if (joins(&groups->groups[g], joiner))
                kept[step][g] = replay_task(f, g, norm);
    }
    fetch(f, groups, joiner, version);
    for (int step = 0; step < 2; step++)
        for (uint32_t g = 0; g < groups->n; g++)
            if (kept[step][g])
                task_free(fleet_do(f->computes[joiner], kept[step][g]));
}

static void expected(uint64_t steps, enum job_reduction reduction, digests ret)
{
    struct fleet f;

    fleet_open(&f, reduction, "units 0-3: 0\n", 1);
    fleet_setup(&f, false);
    while (f.version < steps)
        fleet_step(&f);
    fleet_digests(&f, ret);
    fleet_close(&f);
}

static void check(const struct fleet *f, digests want)
{
    digests got;

    fleet_digests((struct fleet *)f, got);
    for (uint32_t t = 0; t < f->model->n_tensors; t++)
        assert_memory_equal(got[t], want[t], HASH_BYTES);
}

static void who_joins_all_of_it_ends_with_the_same_bits(void **state)
{
    struct plan_groups groups;
    struct fleet f;
    digests want;

    (void)state;
    expected(6, JOB_REDUCTION_EXACT, want);
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-3: 0\n", 1);
    fleet_setup(&f, false);
    add_compute(&f, 1);
    fleet_step(&f);
    fleet_step(&f);
    change_plan(&f, "units 0-3: 0 1*0\n", (const uint32_t[]){1}, &groups);
    join(&f, &groups, 1);
    plan_groups_done(&groups);
    change_plan(&f, "units 0-3: 0 1\n", (const uint32_t[]){0}, &groups);
    fleet_step(&f);
    fleet_step(&f);
    check(&f, want);
    plan_groups_done(&groups);
    fleet_close(&f);
}

/* The embedding's holder gets the head, whose matrix it has already: it is tied. The units between it gets, too; then
 * the other one drops all it had. */
static void spans_move_between_holders(void **state)
{
    struct plan_groups groups;
    struct fleet f;
    digests want;
    uint32_t n_joined = 0;

    (void)state;
    expected(6, JOB_REDUCTION_EXACT, want);
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_setup(&f, false);
    fleet_step(&f);
    change_plan(&f, "units 0-1: 0\nunits 2-3: 1 0*0\n", (const uint32_t[]){0, 1}, &groups);
    for (uint32_t g = 0; g < groups.n; g++)
        for (uint32_t i = 0; i < groups.groups[g].n_tensors; i++)
            if (groups.groups[g].tensors[i] == (uint32_t)model_find(f.model, "wte.weight"))
                assert_false(joins(&groups.groups[g], 0));
            else
                n_joined += joins(&groups.groups[g], 0);
    assert_true(n_joined > 0);
    join(&f, &groups, 0);
    plan_groups_done(&groups);
    change_plan(&f, "units 0-2: 0\nunits 3-3: 1\n", (const uint32_t[]){0, 0}, &groups);
    fleet_step(&f);
    plan_groups_done(&groups);
    change_plan(&f, "units 0-0: 0\nunits 1-1: 0 1*0\nunits 2-2: 0\nunits 3-3: 1 0*0\n", (const uint32_t[]){0, 1, 0, 1},
                &groups);
    fleet_step(&f);
    fleet_step(&f);
    check(&f, want);
    plan_groups_done(&groups);
    fleet_close(&f);
}

static void what_is_joined_neither_runs_nor_is_handed_on(void **state)
{
    struct plan_groups groups;
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_setup(&f, false);
    change_plan(&f, "units 0-1: 0\nunits 2-3: 1 0*0\n", (const uint32_t[]){0, 1}, &groups);
    struct compute *joiner = f.computes[0];
    struct task *t = task_new(TASK_SNAPSHOT);

    fleet_do(joiner, t);
    for (uint32_t i = 0; i < t->n_digests; i++)
        for (uint32_t g = 0; g < groups.n; g++)
            for (uint32_t k = 0; k < groups.groups[g].n_tensors; k++)
                if (groups.groups[g].tensors[k] == t->digest_tensors[i])
                    assert_false(joins(&groups.groups[g], 0));
    task_free(t);
    fleet_refused(joiner, fleet_forward(&f, 0, 2, 3, fleet_floats(model_boundary_elems(f.model), 0)), -E_PROTO);
    for (uint32_t g = 0; g < groups.n; g++)
        if (joins(&groups.groups[g], 0))
            fleet_refused(joiner, fleet_range(TASK_STORED, g, 0, 1), -E_PROTO);
    plan_groups_done(&groups);
    fleet_close(&f);
}

static void sums_that_were_not_committed_are_not_replayed(void **state)
{
    struct plan_groups groups;
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-3: 0\n", 1);
    fleet_setup(&f, false);
    add_compute(&f, 1);
    change_plan(&f, "units 0-3: 0 1*0\n", (const uint32_t[]){1}, &groups);
    fleet_step(&f);
    struct task *t = replay_task(&f, 0, norm_of(&f));

    t->hash[5] ^= 1;
    fleet_refused(f.computes[1], t, -E_CORRUPT);
    t = replay_task(&f, 0, norm_of(&f));
    t->n_parts--;
    blob_unref(t->parts[t->n_parts]);
    fleet_refused(f.computes[1], t, -E_CORRUPT);
    fleet_refused(f.computes[0], replay_task(&f, 0, norm_of(&f)), -E_PROTO); /* holds it: the commit applies it */
    t = replay_task(&f, 0, norm_of(&f));
    t->group = f.groups.n;
    fleet_refused(f.computes[1], t, -E_PROTO);
    plan_groups_done(&groups);
    fleet_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_joins_all_of_it_ends_with_the_same_bits),
        cmocka_unit_test(spans_move_between_holders),
        cmocka_unit_test(what_is_joined_neither_runs_nor_is_handed_on),
        cmocka_unit_test(sums_that_were_not_committed_are_not_replayed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
