/* Routes: every microbatch through every unit once, shares in proportion over the steps, neighbours merged. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "scheduler/routes.h"

#define UNITS 6

static struct plan parse(const char *text)
{
    struct plan p = {0};

    assert_int_equal(plan_parse(text, UNITS, &p, NULL), 0);
    return p;
}

/* Each microbatch of a mode passes units 0..UNITS-1 in order, and neighbours on the route name each other. */
static void check_routes(const struct routes *r, uint32_t mode, uint32_t n)
{
    for (uint32_t m = 0; m < n; m++) {
        const struct route_lease *before = NULL;
        uint32_t at = 0;

        for (uint32_t i = 0; i < r->n; i++) {
            const struct route_lease *l = &r->leases[i];

            if (l->info.microbatch != m || l->info.mode != mode)
                continue;
            assert_int_equal(l->info.u0, at);
            assert_true(l->info.u1 > at);
            assert_int_equal(l->info.prev, before ? before->peer : MSG_NO_PEER);
            assert_true(!before || (before->info.next == l->peer && before->peer != l->peer));
            at = l->info.u1;
            before = l;
        }
        assert_int_equal(at, UNITS);
        assert_int_equal(before->info.next, MSG_NO_PEER);
    }
}

static const char *const plans[] = {
    "units 0-5: 0\n",
    "units 0-5: 0*3 1*2 2*0\n",
    "units 0-2: 0 1\nunits 3-5: 2 1*7\n",
    "units 0-0: 0\nunits 1-1: 1\nunits 2-2: 0\nunits 3-4: 1 2\nunits 5-5: 2 0\n",
};

static void every_microbatch_passes_every_unit_once(void **state)
{
    (void)state;

    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        struct plan p = parse(plans[i]);
        struct routes_credit credit;

        assert_int_equal(routes_credit_init(&credit, &p), 0);
        for (uint32_t step = 0; step < 20; step++) {
            struct routes r;

            assert_int_equal(routes_build(&p, NULL, &credit, step, 7, step % 3, &r), 0);
            check_routes(&r, MSG_MODE_TRAIN, 7);
            check_routes(&r, MSG_MODE_EVAL, step % 3);
            for (uint32_t k = 0; k < r.n; k++)
                assert_int_equal(r.leases[k].info.mode, k < r.n_train ? MSG_MODE_TRAIN : MSG_MODE_EVAL);
            routes_done(&r);
        }
        routes_credit_done(&credit);
        plan_done(&p);
    }
}

static void shares_dither_around_their_exact_value(void **state)
{
    (void)state;
    const uint32_t weights[] = {5, 3, 1, 0}, total = 9, M = 7;
    struct plan p = parse("units 0-5: 0*5 1*3 2*1 3*0\n");
    struct routes_credit credit;
    int64_t given[4] = {0};

    assert_int_equal(routes_credit_init(&credit, &p), 0);
    for (uint64_t step = 1; step <= 900; step++) {
        struct routes r;

        assert_int_equal(routes_build(&p, NULL, &credit, step, M, 0, &r), 0);
        assert_int_equal(r.n, M);
        for (uint32_t k = 0; k < r.n; k++)
            given[r.leases[k].peer]++;
        for (uint32_t i = 0; i < 4; i++) {
            int64_t error = given[i] * total - (int64_t)(step * M * weights[i]);

            assert_true(error > -(int64_t)total && error < (int64_t)total); /* never a whole microbatch off */
        }
        routes_done(&r);
    }
    assert_int_equal(given[3], 0);
    routes_credit_done(&credit);
    plan_done(&p);
}

static void a_route_stays_with_a_peer_where_it_can(void **state)
{
    (void)state;
    struct plan p = parse("units 0-2: 0 1\nunits 3-5: 1 0\n");
    struct routes_credit credit;
    struct routes r;

    assert_int_equal(routes_credit_init(&credit, &p), 0);
    assert_int_equal(routes_build(&p, NULL, &credit, 0, 8, 0, &r), 0);
    assert_int_equal(r.n, 8); /* nothing crosses */
    routes_done(&r);
    routes_credit_done(&credit);
    plan_done(&p);
}

static void leases_are_found_by_who_has_them(void **state)
{
    (void)state;
    struct plan p = parse("units 0-2: 0\nunits 3-5: 1\n");
    struct routes_credit credit;
    struct routes r;

    assert_int_equal(routes_credit_init(&credit, &p), 0);
    assert_int_equal(routes_build(&p, NULL, &credit, 0, 2, 1, &r), 0);
    assert_non_null(routes_find(&r, 1, 1, MSG_MODE_TRAIN, 3));
    assert_null(routes_find(&r, 0, 1, MSG_MODE_TRAIN, 3));
    assert_null(routes_find(&r, 1, 1, MSG_MODE_EVAL, 3));
    assert_non_null(routes_find(&r, 1, 0, MSG_MODE_EVAL, 3));
    routes_done(&r);
    routes_credit_done(&credit);
    plan_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_microbatch_passes_every_unit_once),
        cmocka_unit_test(shares_dither_around_their_exact_value),
        cmocka_unit_test(a_route_stays_with_a_peer_where_it_can),
        cmocka_unit_test(leases_are_found_by_who_has_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
