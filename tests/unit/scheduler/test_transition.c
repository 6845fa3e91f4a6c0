/* Between two plans: who is gone is left out, who lacks something is joining, the rest is as it was. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "parallel/plan.h"
#include "scheduler/transition.h"

#define N_UNITS 4

/* A plan whose peer i has the key named[i] and incarnation 1. */
static struct plan parsed(const char *text, const char *named)
{
    struct plan p = {0};
    struct reason why = {0};

    if (plan_parse(text, N_UNITS, &p, &why) < 0)
        fail_msg("%s", why.text);
    p.epoch = 5;
    for (uint32_t i = 0; i < p.n_peers; i++) {
        p.peers[i].key.bytes[0] = (uint8_t)named[i];
        p.peers[i].incarnation = 1;
    }
    return p;
}

/* "A3 B0 C+": the stage's holders and weights, + for joining. */
static void check_stage(const struct plan *p, uint32_t s, uint32_t u0, uint32_t u1, const char *holders)
{
    char text[128] = "";

    assert_true(s < p->n_stages);
    assert_int_equal(p->stages[s].u0, u0);
    assert_int_equal(p->stages[s].u1, u1);
    for (uint32_t i = 0; i < p->stages[s].n_holders; i++) {
        const struct plan_holder *h = &p->holders[p->stages[s].first_holder + i];
        const size_t n = strlen(text);

        snprintf(text + n, sizeof text - n, h->joining ? "%s%c+" : "%s%c%u", i ? " " : "",
                 p->peers[h->peer].key.bytes[0], h->weight);
    }
    assert_string_equal(text, holders);
}

static struct plan make(const struct plan *now, const bool *alive, const struct plan *target, uint32_t *ret_n_joining)
{
    static const bool current[8] = {true, true, true, true, true, true, true, true};
    struct plan p = {0};
    struct reason why = {0};

    assert_int_equal(transition_make(now, alive, current, target, &p, ret_n_joining), 0);
    if (plan_validate(&p, N_UNITS, &why) < 0)
        fail_msg("%s", why.text);
    return p;
}

static const bool all[8] = {true, true, true, true, true, true, true, true};

static void a_newcomer_joins_what_the_target_gives_it(void **state)
{
    struct plan now = parsed("units 0-3: 0*3\n", "A"), target = parsed("units 0-1: 0\nunits 2-3: 1\n", "BA");
    uint32_t n;

    (void)state;
    struct plan p = make(&now, all, &target, &n);

    assert_int_equal(n, 1);
    assert_int_equal(p.n_peers, 2);
    assert_int_equal(p.epoch, 5);
    check_stage(&p, 0, 0, 2, "A3 B+");
    check_stage(&p, 1, 2, 4, "A3");
    plan_done(&p);
    plan_done(&target);
    plan_done(&now);
}

static void nobody_joins_what_it_holds(void **state)
{
    struct plan now = parsed("units 0-3: 0 1*0\n", "AB"), target = parsed("units 0-0: 1\nunits 1-3: 1 0\n", "AB");
    uint32_t n;

    (void)state;
    struct plan p = make(&now, all, &target, &n);

    assert_int_equal(n, 0);
    check_stage(&p, 0, 0, 1, "A1 B0");
    check_stage(&p, 1, 1, 4, "A1 B0");
    plan_done(&p);
    plan_done(&target);
    plan_done(&now);
}

static void who_is_gone_is_left_out_and_shadows_work(void **state)
{
    const bool alive[] = {false, true, true};
    struct plan now = parsed("units 0-1: 0 1*0 2*0\nunits 2-3: 2*5 0\n", "ABC");
    uint32_t n;

    (void)state;
    struct plan p = make(&now, alive, NULL, &n);

    assert_int_equal(n, 0);
    assert_int_equal(p.n_peers, 2);
    check_stage(&p, 0, 0, 2, "B1 C1");
    check_stage(&p, 1, 2, 4, "C5");
    assert_int_equal(transition_alone(&p), 2);
    plan_done(&p);
    plan_done(&now);
}

/* Another life of a peer has none of its state. */
static void a_new_life_of_a_peer_joins(void **state)
{
    const bool alive[] = {true, false};
    struct plan now = parsed("units 0-3: 0 1\n", "AB"), target = parsed("units 0-3: 0 1\n", "AB");
    uint32_t n;

    (void)state;
    target.peers[1].incarnation = 2;
    struct plan p = make(&now, alive, &target, &n);

    assert_int_equal(n, 1);
    assert_int_equal(p.n_peers, 2);
    assert_int_equal(p.peers[1].incarnation, 2);
    check_stage(&p, 0, 0, 4, "A1 B+");
    plan_done(&p);
    plan_done(&target);
    plan_done(&now);
}

static void who_has_joined_counts_and_who_has_not_does_not(void **state)
{
    const bool current[] = {true, true, false};
    struct plan now = parsed("units 0-3: 0 1*0 2*0\n", "ABC"), target = parsed("units 0-3: 0 1 2\n", "ABC"), p = {0};
    uint32_t n;

    (void)state;
    now.holders[1].joining = now.holders[2].joining = 1;
    assert_int_equal(transition_alone(&now), N_UNITS);
    assert_int_equal(transition_make(&now, all, current, &target, &p, &n), 0);
    assert_int_equal(n, 1);
    check_stage(&p, 0, 0, 4, "A1 B0 C+");
    plan_done(&p);
    assert_int_equal(transition_make(&now, all, current, NULL, &p, &n), 0);
    assert_int_equal(p.n_peers, 2);
    check_stage(&p, 0, 0, 4, "A1 B0");
    plan_done(&p);
    plan_done(&target);
    plan_done(&now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_newcomer_joins_what_the_target_gives_it),      cmocka_unit_test(nobody_joins_what_it_holds),
        cmocka_unit_test(who_is_gone_is_left_out_and_shadows_work),       cmocka_unit_test(a_new_life_of_a_peer_joins),
        cmocka_unit_test(who_has_joined_counts_and_who_has_not_does_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
