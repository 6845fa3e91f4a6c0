/* The planner: the obvious cases, memory, and that it always says the same. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "scheduler/planner.h"

#define PEERS_HERE 16
#define PLENTY     (UINT64_C(1) << 40)

struct rig {
    struct model *model;
    double seconds[PEERS_HERE][64];
    struct planner_peer peers[PEERS_HERE];
    struct planner_input in;
};

static void open_rig(struct rig *r, uint32_t n_layer, uint32_t n_peers)
{
    struct job job = {
        .model = {.arch = JOB_ARCH_GPT2, .n_layer = n_layer, .n_head = 2, .n_embd = 64, .n_ctx = 32, .n_vocab = 256},
        .train = {.steps = 4, .microbatches = 16, .sequences = 2}};

    *r = (struct rig){0};
    assert_int_equal(model_new(&job, &r->model, NULL), 0);
    r->in = (struct planner_input){
        .model = r->model, .reduction = JOB_REDUCTION_EXACT, .n_peers = n_peers, .peers = r->peers};
}

/* Each unit takes that long forward and as long backward. */
static void set_peer(struct rig *r, uint32_t i, double unit_seconds, uint64_t memory)
{
    for (uint32_t u = 0; u < r->model->n_units; u++)
        r->seconds[i][u] = unit_seconds;
    r->peers[i] = (struct planner_peer){r->seconds[i], r->seconds[i], memory};
}

static void make(struct rig *r, struct plan *plan, uint32_t *kept)
{
    struct reason why = {0};
    int status = planner_make(&r->in, plan, kept, &why);

    if (status < 0)
        fail_msg("%s", why.text);
    for (uint32_t i = 0; i < plan->n_peers; i++)
        plan->peers[i].key.bytes[0] = (uint8_t)(i + 1);
    if (plan_validate(plan, r->model->n_units, &why) < 0)
        fail_msg("%s", why.text);
    assert_true(plan->predicted_seconds > 0);
}

static void equal_peers_share_the_batch(void **state)
{
    (void)state;
    struct rig r;
    struct plan plan;
    uint32_t kept[PEERS_HERE];

    open_rig(&r, 4, 4);
    for (uint32_t i = 0; i < 4; i++)
        set_peer(&r, i, 1, PLENTY);
    make(&r, &plan, kept);
    assert_int_equal(plan.n_stages, 1);
    assert_int_equal(plan.n_holders, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(plan.holders[i].weight, plan.holders[0].weight);
    plan_done(&plan);
    model_free(r.model);
}

static void weights_follow_speeds(void **state)
{
    (void)state;
    struct rig r;
    struct plan plan;
    uint32_t kept[PEERS_HERE];

    open_rig(&r, 4, 3);
    set_peer(&r, 0, 2, PLENTY);
    set_peer(&r, 1, 1, PLENTY);
    set_peer(&r, 2, 1, PLENTY);
    make(&r, &plan, kept);
    assert_int_equal(plan.n_stages, 1);
    uint32_t weight[3] = {0}, total = 0;

    for (uint32_t h = 0; h < plan.n_holders; h++)
        total += weight[plan.holders[h].peer] = plan.holders[h].weight;
    assert_true(weight[kept[0]] * 5 <= total + 5); /* a fifth, to a whole microbatch */
    assert_true(weight[kept[0]] > 0);
    assert_true(weight[kept[1]] > weight[kept[0]] && weight[kept[2]] > weight[kept[0]]);
    plan_done(&plan);
    model_free(r.model);
}

static void what_fits_nobody_whole_becomes_a_pipeline(void **state)
{
    (void)state;
    struct rig r;
    struct plan plan;
    uint32_t kept[PEERS_HERE];

    open_rig(&r, 6, 2);
    uint64_t whole = planner_bytes(&r.in, 0, r.model->n_units, 3);

    set_peer(&r, 0, 1, whole * 3 / 4);
    set_peer(&r, 1, 1, whole * 3 / 4);
    make(&r, &plan, kept);
    assert_int_equal(plan.n_stages, 2);
    assert_int_equal(plan.n_holders, 2);
    assert_int_equal(plan.stages[0].u1, 4); /* halves */
    assert_true(plan.in_flight >= 2);
    plan_done(&plan);
    model_free(r.model);
}

static void no_peer_gets_more_than_fits_it(void **state)
{
    (void)state;
    struct rng rng = rng_make(3, "fleets");
    uint32_t planned = 0;

    for (int round = 0; round < 60; round++) {
        struct rig r;
        struct plan plan = {0};
        uint32_t kept[PEERS_HERE], n = 1 + (uint32_t)rng_below(&rng, 7);
        bool *held;

        open_rig(&r, 5, n);
        held = mem_calloc(r.model->n_units, sizeof *held);
        uint64_t whole = planner_bytes(&r.in, 0, r.model->n_units, 8);

        for (uint32_t i = 0; i < n; i++)
            set_peer(&r, i, 0.1 + rng_unit(&rng), (uint64_t)((0.1 + rng_unit(&rng)) * (double)whole));
        if (planner_make(&r.in, &plan, kept, NULL) == 0) {
            planned++;
            for (uint32_t i = 0; i < n; i++) {
                if (kept[i] == UINT32_MAX)
                    continue;
                plan_held(&plan, kept[i], held);
                assert_true(planner_held_bytes(&r.in, held, 1) <= r.peers[i].memory_bytes);
            }
        }
        plan_done(&plan);
        mem_free(held);
        model_free(r.model);
    }
    assert_true(planned > 30);
}

static void too_big_a_model_is_said_with_numbers(void **state)
{
    (void)state;
    struct rig r;
    struct plan plan;
    uint32_t kept[PEERS_HERE];
    struct reason why = {0};

    open_rig(&r, 6, 2);
    set_peer(&r, 0, 1, 1000);
    set_peer(&r, 1, 1, 1000);
    assert_int_equal(planner_make(&r.in, &plan, kept, &why), -E_FIT);
    assert_non_null(strstr(why.text, "does not fit"));
    assert_non_null(strstr(why.text, "MiB"));
    model_free(r.model);
}

static void a_forced_plan_that_does_not_fit_names_the_peer(void **state)
{
    (void)state;
    const char *const names[] = {"big", "small"};
    struct rig r;
    struct plan plan;
    struct reason why = {0};

    open_rig(&r, 4, 2);
    assert_int_equal(plan_parse("units 0-2: 0\nunits 3-5: 1\nin-flight 2\n", r.model->n_units, &plan, &why), 0);
    set_peer(&r, 0, 1, PLENTY);
    set_peer(&r, 1, 1, planner_bytes(&r.in, 3, 6, 2));
    assert_int_equal(planner_check_memory(&r.in, &plan, names, &why), 0);
    set_peer(&r, 1, 1, planner_bytes(&r.in, 3, 6, 2) - 1);
    assert_int_equal(planner_check_memory(&r.in, &plan, names, &why), -E_FIT);
    assert_non_null(strstr(why.text, "peer 1 (small)"));
    plan_done(&plan);
    model_free(r.model);
}

static void the_same_fleet_gets_the_same_plan(void **state)
{
    (void)state;
    struct rig r;
    struct plan a, b;
    uint32_t kept_a[PEERS_HERE], kept_b[PEERS_HERE];

    open_rig(&r, 4, 9);
    for (uint32_t i = 0; i < 9; i++)
        set_peer(&r, i, 1 + (i * 7 % 5) * 0.3, PLENTY);
    make(&r, &a, kept_a);
    make(&r, &b, kept_b);
    assert_memory_equal(kept_a, kept_b, 9 * sizeof kept_a[0]);
    assert_int_equal(a.n_holders, b.n_holders);
    assert_memory_equal(a.holders, b.holders, a.n_holders * sizeof *a.holders);
    assert_memory_equal(a.stages, b.stages, a.n_stages * sizeof *a.stages);
    assert_true(a.predicted_seconds == b.predicted_seconds);
    plan_done(&a);
    plan_done(&b);
    model_free(r.model);
}

/* Beyond the exhaustive search: a plan all the same, and no worse than the fastest peer alone. */
static void a_large_fleet_gets_a_plan(void **state)
{
    (void)state;
    struct rig r;
    struct plan plan;
    uint32_t kept[PEERS_HERE];

    open_rig(&r, 4, PEERS_HERE);
    for (uint32_t i = 0; i < PEERS_HERE; i++)
        set_peer(&r, i, 1 + i * 0.1, PLENTY);
    make(&r, &plan, kept);
    assert_true(plan.predicted_seconds < 16 * 2 * r.model->n_units);
    plan_done(&plan);
    model_free(r.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_peers_share_the_batch),
        cmocka_unit_test(weights_follow_speeds),
        cmocka_unit_test(what_fits_nobody_whole_becomes_a_pipeline),
        cmocka_unit_test(no_peer_gets_more_than_fits_it),
        cmocka_unit_test(too_big_a_model_is_said_with_numbers),
        cmocka_unit_test(a_forced_plan_that_does_not_fit_names_the_peer),
        cmocka_unit_test(the_same_fleet_gets_the_same_plan),
        cmocka_unit_test(a_large_fleet_gets_a_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
