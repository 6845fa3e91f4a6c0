/* The plan: the rules it must keep, its two text forms, and the groups that follow from it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/plan.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define N_UNITS 4

/* Two stages; peer 1 works in the first and is a shadow in the second. A copy that plan_done frees. */
static struct plan sample(void)
{
    struct plan_peer peers[3] = {{.incarnation = 7}, {.incarnation = 8}, {.incarnation = 9}};
    struct plan_stage stages[2] = {{0, 2, 0, 2}, {2, 4, 2, 2}};
    struct plan_holder holders[4] = {{0, 3, 0}, {1, 1, 0}, {2, 1, 0}, {1, 0, 0}};
    const struct plan p = {.epoch = 3,
                           .n_units = N_UNITS,
                           .n_peers = 3,
                           .n_stages = 2,
                           .n_holders = 4,
                           .peers = peers,
                           .stages = stages,
                           .holders = holders,
                           .in_flight = 2};
    struct plan copy = {0};

    for (uint8_t i = 0; i < 3; i++)
        peers[i].key.bytes[0] = i;
    assert_int_equal(plan_copy(&p, &copy), 0);
    return copy;
}

static void a_copy_is_equal_and_apart(void **state)
{
    struct plan p = sample(), copy = {0};

    (void)state;
    assert_int_equal(plan_copy(&p, &copy), 0);
    assert_ptr_not_equal(copy.peers, p.peers);
    assert_int_equal(copy.epoch, p.epoch);
    assert_memory_equal(copy.peers, p.peers, p.n_peers * sizeof(*p.peers));
    assert_memory_equal(copy.stages, p.stages, p.n_stages * sizeof(*p.stages));
    assert_memory_equal(copy.holders, p.holders, p.n_holders * sizeof(*p.holders));
    plan_done(&copy);
    plan_done(&copy);
    plan_done(&p);
    assert_int_equal(plan_copy(&p, &copy), 0); /* nothing is a plan to copy, too */
    assert_null(copy.peers);
}

static void a_failed_copy_leaves_nothing(void **state)
{
    struct plan p = sample();

    (void)state;
    for (int64_t n = 0; n < 3; n++) {
        struct plan copy = {.epoch = 77};

        mem_fault_set(n);
        assert_int_equal(plan_copy(&p, &copy), -E_NOMEM);
        assert_true(mem_fault_hit());
        assert_int_equal(copy.epoch, 77);
        assert_null(copy.peers);
    }
    mem_fault_set(-1);
    plan_done(&p);
}

static void questions_have_answers(void **state)
{
    struct plan p = sample();
    struct key unknown = {{200}};
    bool held[N_UNITS];

    (void)state;
    assert_int_equal(plan_stage_of(&p, 0), 0);
    assert_int_equal(plan_stage_of(&p, 1), 0);
    assert_int_equal(plan_stage_of(&p, 2), 1);
    assert_int_equal(plan_stage_of(&p, 3), 1);
    assert_int_equal(plan_find(&p, &p.peers[2].key), 2);
    assert_int_equal(plan_find(&p, &unknown), -E_NOENT);
    plan_held(&p, 0, held);
    assert_true(held[0] && held[1] && !held[2] && !held[3]);
    plan_held(&p, 1, held);
    assert_true(held[0] && held[1] && held[2] && held[3]); /* a shadow holds too */
    plan_held(&p, 2, held);
    assert_true(!held[0] && !held[1] && held[2] && held[3]);
    plan_done(&p);
}

/* After the statement, the sample (called p) breaks a rule whose sentence has the text in it. */
#define BREAKS(words, ...)                                                                                             \
    do {                                                                                                               \
        struct plan p = sample();                                                                                      \
        struct reason why = {0};                                                                                       \
        __VA_ARGS__;                                                                                                   \
        assert_int_equal(plan_validate(&p, N_UNITS, &why), -E_INVAL);                                                  \
        if (strstr(why.text, words) == NULL)                                                                           \
            fail_msg("\"%s\" says nothing of \"%s\"", why.text, words);                                                \
        plan_done(&p);                                                                                                 \
    } while (0)

static void each_rule_is_kept(void **state)
{
    struct plan good = sample();

    (void)state;
    assert_int_equal(plan_validate(&good, N_UNITS, NULL), 0);
    assert_int_equal(plan_validate(&good, N_UNITS + 1, NULL), -E_INVAL);
    plan_done(&good);
    BREAKS("for 0 units", p.n_units = 0);
    BREAKS("0 peers", p.n_peers = 0);
    BREAKS("1025 peers", p.n_peers = PEERS_MAX + 1);
    BREAKS("1025 stages", p.n_stages = STAGES_MAX + 1);
    BREAKS("0 stages", p.n_stages = 0);
    BREAKS("8193 holders", p.n_holders = HOLDERS_MAX + 1);
    BREAKS("0 microbatches in flight", p.in_flight = 0);
    BREAKS("4097 microbatches in flight", p.in_flight = MICROBATCHES_MAX + 1);
    BREAKS("predicts", p.predicted_seconds = NAN);
    BREAKS("predicts", p.predicted_seconds = -1);
    BREAKS("stage 0 begins at unit 1", p.stages[0].u0 = 1);
    BREAKS("stage 1 begins at unit 3", p.stages[1].u0 = 3);
    BREAKS("stage 1 begins at unit 1", p.stages[1].u0 = 1);
    BREAKS("stage 0 holds units [0, 0)", p.stages[0].u1 = 0);
    BREAKS("stage 1 holds units [2, 5)", p.stages[1].u1 = 5);
    BREAKS("end at unit 3", p.stages[1].u1 = 3);
    BREAKS("stage 1 has holders", p.stages[1].first_holder = 1);
    BREAKS("stage 1 has holders", p.stages[1].n_holders = 3);
    BREAKS("stage 0 has holders", p.stages[0].n_holders = 0);
    BREAKS("use 3 of 4 holders", p.stages[1].n_holders = 1);
    BREAKS("held by peer 3", p.holders[0].peer = 3);
    BREAKS("weight 1000001", p.holders[0].weight = PLAN_WEIGHT_MAX + 1);
    BREAKS("peer 1 stands twice in stage 0", p.holders[0].peer = 1);
    BREAKS("nobody works on stage 1", p.holders[2].weight = 0);
    BREAKS("peer 2 is joining stage 1 and has a share", p.holders[2].joining = 1);
    BREAKS("peer 1 is joining stage 1", p.holders[3].joining = 2);
    BREAKS("peer 2 holds nothing", p.holders[2].peer = 0);
    BREAKS("peers 0 and 2 have the same key", p.peers[2].key = p.peers[0].key);
}

static void a_plan_prints_as_a_table(void **state)
{
    const char *const names[] = {"ada", NULL, "carol"};
    struct plan p = sample();
    char *text = NULL;

    (void)state;
    p.predicted_seconds = 0.25;
    assert_int_equal(plan_print(&p, names, &text), 0);
    assert_string_equal(text, "plan 3: 4 units, 3 peers, 2 in flight, 0.25 s a step predicted\n"
                              "  units 0-1:     ada 75 %, peer 1 25 %\n"
                              "  units 2-3:     carol 100 %, peer 1 shadow\n");
    mem_free(text);
    plan_done(&p);
}

static void printing_survives_each_failing_allocation(void **state)
{
    struct plan p = sample();
    bool hit = true;

    (void)state;
    for (int64_t n = 0; hit; n++) {
        char *text = NULL;

        mem_fault_set(n);
        const int r = plan_print(&p, NULL, &text);

        hit = mem_fault_hit();
        mem_fault_set(-1);
        assert_int_equal(r, hit ? -E_NOMEM : 0);
        assert_true(hit == (text == NULL));
        mem_free(text);
    }
    plan_done(&p);
}

static const char forced[] = "# by hand\n"
                             "units 0-1: 0*3 1   # the fast one first\n"
                             "\n"
                             "units 2 - 3 :\t2 1*0\r\n"
                             "in-flight 2";

static void a_forced_plan_is_read(void **state)
{
    struct plan p = {0}, like = sample();
    struct reason why = {0};

    (void)state;
    if (plan_parse(forced, N_UNITS, &p, &why) < 0)
        fail_msg("%s", why.text);
    assert_int_equal(p.epoch, 0);
    assert_int_equal(p.n_peers, 3);
    assert_int_equal(p.in_flight, 2);
    assert_int_equal(p.n_stages, like.n_stages);
    assert_int_equal(p.n_holders, like.n_holders);
    assert_memory_equal(p.stages, like.stages, p.n_stages * sizeof(*p.stages));
    assert_memory_equal(p.holders, like.holders, p.n_holders * sizeof(*p.holders));
    plan_done(&p);
    assert_int_equal(plan_parse("units 0-2: 0\nunits 3: 0", N_UNITS, &p, NULL), 0);
    assert_int_equal(p.n_peers, 1);
    assert_int_equal(p.in_flight, 2); /* as many as stages */
    plan_done(&p);
    plan_done(&like);
}

static void a_forced_plan_is_refused_with_line_and_reason(void **state)
{
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"", "0 peers"},
        {"units 0-3: 0\nunit 1: 0", "line 2: 'units A-B: PEER...' or 'in-flight N' expected"},
        {"units 0-3 0", "line 1: ':' expected after the units"},
        {"units x-3: 0", "line 1: the stage's first unit expected"},
        {"units 0-: 0", "line 1: the stage's last unit expected"},
        {"units 3-0: 0", "line 1: units 3-0 run backwards"},
        {"units 0-1024: 0", "line 1: the stage's last unit is more than 1023"},
        {"\nunits 0-3: a", "line 2: a peer's number expected"},
        {"units 0-3: 1024", "line 1: a peer's number is more than 1023"},
        {"units 0-3: 0*", "line 1: a weight expected"},
        {"units 0-3: 0*1000001", "line 1: a weight is more than 1000000"},
        {"units 0-3: 0,1", "line 1: a blank expected between peers, not ','"},
        {"units 0-3: 0\nin-flight", "line 2: 'units A-B: PEER...' or 'in-flight N' expected"},
        {"units 0-3: 0\nin-flight 0", "line 2: at least 1 must be in flight"},
        {"units 0-3: 0\nin-flight 4097", "line 2: the number in flight is more than 4096"},
        {"units 0-3: 0\nin-flight 2 3", "line 2: something stands after its end"},
        {"units 0-3: # 0", "line 1: a stage needs a peer"},
        {"units 0-2: 0", "end at unit 3 of 4"},
        {"units 0-2: 0\nunits 2-3: 0", "stage 1 begins at unit 2"},
        {"units 0-3: 0*0", "nobody works on stage 0"},
        {"units 0-3: 1", "peer 0 holds nothing"},
        {"units 0-3: 0 0", "peer 0 stands twice"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan p = {.epoch = 77};
        struct reason why = {0};

        assert_int_equal(plan_parse(cases[i].text, N_UNITS, &p, &why), -E_CONFIG);
        if (strstr(why.text, cases[i].reason) == NULL)
            fail_msg("\"%s\": \"%s\" says nothing of \"%s\"", cases[i].text, why.text, cases[i].reason);
        assert_int_equal(p.epoch, 77);
    }
}

static void a_forced_plan_has_at_most_so_many_holders(void **state)
{
    char *text = malloc(UNITS_MAX * 64);
    struct plan p = {0};
    struct reason why = {0};
    size_t n = 0;

    (void)state;
    assert_non_null(text);
    for (unsigned u = 0; u < UNITS_MAX; u++)
        n += (size_t)sprintf(text + n, "units %u: 0 1 2 3 4 5 6 7\n", u);
    assert_int_equal(plan_parse(text, UNITS_MAX, &p, NULL), 0);
    assert_int_equal(p.n_holders, HOLDERS_MAX);
    plan_done(&p);
    sprintf(text + n - 1, " 8\n");
    assert_int_equal(plan_parse(text, UNITS_MAX, &p, &why), -E_CONFIG);
    assert_string_equal(why.text, "line 1024: more than 8192 holders");
    free(text);
}

static void reading_survives_each_failing_allocation(void **state)
{
    bool hit = true;

    (void)state;
    for (int64_t n = 0; hit; n++) {
        struct plan p = {0};

        mem_fault_set(n);
        const int r = plan_parse(forced, N_UNITS, &p, NULL);

        hit = mem_fault_hit();
        mem_fault_set(-1);
        assert_int_equal(r, hit ? -E_NOMEM : 0);
        assert_true(hit == (p.stages == NULL));
        plan_done(&p);
    }
}

/* ---- Groups -------------------------------------------------------------------------------------------------------
 */

static struct model *model_of(uint32_t n_layer)
{
    struct job job = {0};
    struct model *m = NULL;

    job.model.n_layer = n_layer;
    job.model.n_head = 1;
    job.model.n_embd = 4;
    job.model.n_ctx = 3;
    job.model.n_vocab = 5;
    job.train.sequences = 1;
    job.train.microbatches = 1;
    assert_int_equal(model_new(&job, &m, NULL), 0);
    return m;
}

static void a_tied_tensor_is_reduced_by_all_its_holders(void **state)
{
    struct model *m = model_of(2);
    struct plan p = sample();
    struct plan_groups g = {0};

    (void)state;
    assert_int_equal(m->n_units, N_UNITS);
    assert_int_equal(plan_groups(&p, m, &g), 0);
    assert_int_equal(g.n, 3);
    assert_int_equal(g.groups[0].n_tensors, 1); /* wte: embedding and head */
    assert_int_equal(g.groups[0].tensors[0], model_find(m, "wte.weight"));
    assert_int_equal(g.groups[0].n_elems, 5 * 4);
    assert_int_equal(g.groups[0].n_members, 3);
    assert_int_equal(g.groups[1].tensors[0], model_find(m, "wpe.weight"));
    assert_int_equal(g.groups[1].n_members, 2);
    assert_int_equal(g.groups[1].members[0], 0);
    assert_int_equal(g.groups[1].members[1], 1);
    assert_int_equal(g.groups[1].offsets[0], 0);
    assert_int_equal(g.groups[1].offsets[1], 3 * 4); /* behind wpe */
    assert_int_equal(g.groups[2].members[0], 1);     /* the shadow, in order of peers, not of holders */
    assert_int_equal(g.groups[2].members[1], 2);
    plan_groups_done(&g);
    plan_groups_done(&g);
    plan_done(&p);
    model_free(m);
}

/* Peer 1 gets the second stage, whose head is tied to the embedding that it holds. */
static void who_joins_a_unit_is_a_member_of_what_it_lacks(void **state)
{
    struct model *m = model_of(2);
    struct plan p = sample();
    struct plan_groups g = {0};
    bool held[N_UNITS], current[N_UNITS];

    (void)state;
    p.holders[3].joining = 1;
    assert_int_equal(plan_validate(&p, N_UNITS, NULL), 0);
    plan_held(&p, 1, held);
    plan_current(&p, 1, current);
    assert_true(held[1] && held[2] && current[1] && !current[2]);
    assert_true(plan_counts(&p, 1));
    assert_int_equal(plan_groups(&p, m, &g), 0);
    assert_int_equal(g.n, 3);
    for (uint32_t i = 0; i < g.n; i++)
        for (uint32_t k = 0; k < g.groups[i].n_members; k++)
            assert_int_equal(g.groups[i].joining[k], i == 2 && g.groups[i].members[k] == 1);
    plan_groups_done(&g);
    /* Joining all of it, it counts nowhere. */
    p.holders[1] = (struct plan_holder){.peer = 1, .joining = 1};
    assert_false(plan_counts(&p, 1));
    assert_int_equal(plan_groups(&p, m, &g), 0);
    for (uint32_t i = 0; i < g.n; i++)
        for (uint32_t k = 0; k < g.groups[i].n_members; k++)
            assert_int_equal(g.groups[i].joining[k], g.groups[i].members[k] == 1);
    plan_groups_done(&g);
    plan_done(&p);
    model_free(m);
}

static void one_peer_has_one_group(void **state)
{
    struct model *m = model_of(2);
    struct plan p = {0};
    struct plan_groups g = {0};

    (void)state;
    assert_int_equal(plan_parse("units 0-1: 0\nunits 2-3: 0", N_UNITS, &p, NULL), 0);
    assert_int_equal(plan_groups(&p, m, &g), 0);
    assert_int_equal(g.n, 1);
    assert_int_equal(g.groups[0].n_tensors, m->n_tensors);
    assert_int_equal(g.groups[0].n_elems, m->n_params);
    plan_groups_done(&g);
    plan_done(&p);
    model_free(m);
}

/* Some plan for n_units of up to 6 peers, as text. */
static void random_plan(struct rng *r, uint32_t n_units, char *text)
{
    for (uint32_t u = 0; u < n_units;) {
        const uint32_t last = u + (uint32_t)(rng_below(r, n_units - u));
        const uint32_t others = (uint32_t)(rng_below(r, 64));

        text += sprintf(text, "units %u-%u: 0", u, last);
        for (uint32_t peer = 1; peer < 6; peer++) {
            /* The first stage has everyone, so that nobody holds nothing. */
            if (u == 0 || (others >> peer & 1) != 0)
                text += sprintf(text, " %u*%u", peer, (unsigned)(rng_below(r, 2)));
        }
        text += sprintf(text, "\n");
        u = last + 1;
    }
}

static bool holds(const struct plan *p, const struct model_tensor *t, uint32_t peer)
{
    bool held[UNITS_MAX];
    bool any = false;

    plan_held(p, peer, held);
    for (uint32_t i = 0; i < t->n_uses; i++)
        any = any || held[t->use_unit[i]];
    return any;
}

static bool is_member(const struct plan_group *g, uint32_t peer)
{
    for (uint32_t i = 0; i < g->n_members; i++) {
        if (g->members[i] == peer)
            return true;
    }
    return false;
}

static void check_group(const struct plan *p, const struct model *m, const struct plan_group *g, bool *seen)
{
    int64_t at = 0;

    assert_true(g->n_tensors > 0 && g->n_members > 0);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct model_tensor *t = &m->tensors[g->tensors[i]];

        assert_true(i == 0 || g->tensors[i] > g->tensors[i - 1]);
        assert_int_equal(g->offsets[i], at);
        assert_false(seen[g->tensors[i]]);
        seen[g->tensors[i]] = true;
        at += t->n;
        for (uint32_t peer = 0; peer < p->n_peers; peer++)
            assert_true(holds(p, t, peer) == is_member(g, peer));
    }
    assert_int_equal(at, g->n_elems);
}

static void groups_are_what_the_holders_say(void **state)
{
    struct model *m = model_of(6);
    struct rng r = rng_make(1, "plans");

    (void)state;
    for (int round = 0; round < 200; round++) {
        char text[1024];
        bool seen[512] = {0};
        struct plan p = {0};
        struct plan_groups g = {0};

        random_plan(&r, m->n_units, text);
        assert_int_equal(plan_parse(text, m->n_units, &p, NULL), 0);
        assert_int_equal(plan_groups(&p, m, &g), 0);
        for (uint32_t i = 0; i < g.n; i++) {
            assert_true(i == 0 || g.groups[i].tensors[0] > g.groups[i - 1].tensors[0]);
            check_group(&p, m, &g.groups[i], seen);
            for (uint32_t j = 0; j < i; j++) /* equal sets are one group */
                assert_false(
                    g.groups[i].n_members == g.groups[j].n_members &&
                    memcmp(g.groups[i].members, g.groups[j].members, g.groups[i].n_members * sizeof(uint32_t)) == 0);
        }
        for (uint32_t t = 0; t < m->n_tensors; t++)
            assert_true(seen[t]);
        plan_groups_done(&g);
        plan_done(&p);
    }
    model_free(m);
}

static void grouping_survives_each_failing_allocation(void **state)
{
    struct model *m = model_of(2);
    struct plan p = sample();
    bool hit = true;

    (void)state;
    for (int64_t n = 0; hit; n++) {
        struct plan_groups g = {0};

        mem_fault_set(n);
        const int r = plan_groups(&p, m, &g);

        hit = mem_fault_hit();
        mem_fault_set(-1);
        assert_int_equal(r, hit ? -E_NOMEM : 0);
        assert_true(hit == (g.groups == NULL));
        plan_groups_done(&g);
    }
    plan_done(&p);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_is_equal_and_apart),
        cmocka_unit_test(a_failed_copy_leaves_nothing),
        cmocka_unit_test(questions_have_answers),
        cmocka_unit_test(each_rule_is_kept),
        cmocka_unit_test(a_plan_prints_as_a_table),
        cmocka_unit_test(printing_survives_each_failing_allocation),
        cmocka_unit_test(a_forced_plan_is_read),
        cmocka_unit_test(a_forced_plan_is_refused_with_line_and_reason),
        cmocka_unit_test(a_forced_plan_has_at_most_so_many_holders),
        cmocka_unit_test(reading_survives_each_failing_allocation),
        cmocka_unit_test(a_tied_tensor_is_reduced_by_all_its_holders),
        cmocka_unit_test(who_joins_a_unit_is_a_member_of_what_it_lacks),
        cmocka_unit_test(one_peer_has_one_group),
        cmocka_unit_test(groups_are_what_the_holders_say),
        cmocka_unit_test(grouping_survives_each_failing_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
