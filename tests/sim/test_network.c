/* Networks that delay, reorder, lose and double messages, break links and heal them: training goes on to the same
 * model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/sim/rig.h"

#define SEEDS 120

static struct cluster_config fleet_config(struct job *job, uint64_t seed)
{
    const struct rig_fleet *f = &rig_fleets[seed % RIG_FLEETS];
    struct cluster_config config = rig_config(job, f->n_workers, f->plan);

    job->peers = f->n_workers;
    config.seed = seed;
    config.delay_min_ns = 200 * NS_PER_US;
    config.delay_mean_ns = 2 * NS_PER_MS;
    return config;
}

static void run_seeds(double loss, double duplicate, int64_t delay_mean_ns,
                      void (*before)(struct cluster *c, void *arg))
{
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;
    int64_t longest = 0;

    job.checkpoint.every = 2;
    rig_expected(&job, hash);
    for (rig_seeds(SEEDS, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;

        config.loss = loss;
        config.duplicate = duplicate;
        config.delay_mean_ns = delay_mean_ns;
        config.dead_ns = before ? 12 * NS_PER_S : 0; /* links that heal within a second are no deaths */
        struct cluster *c = rig_run(&config, before, &config, &r);

        rig_assert_hash(c, &r, hash);
        if (r.version != 4 || r.saved->version != 4 || r.n_released > 0 || r.n_rollbacks > 0)
            rig_fail(c, "ended at step %llu", (unsigned long long)r.version);
        longest = r.ended_at > longest ? r.ended_at : longest;
        cluster_free(c);
    }
    print_message("the longest run took %.1f s of virtual time\n", (double)longest / NS_PER_S);
}

static void delays_and_reordering_change_nothing(void **state)
{
    (void)state;
    run_seeds(0, 0, 20 * NS_PER_MS, NULL);
}

static void messages_that_come_twice_change_nothing(void **state)
{
    (void)state;
    run_seeds(0, 0.2, 5 * NS_PER_MS, NULL);
}

static void lost_messages_are_asked_for_again(void **state)
{
    (void)state;
    run_seeds(0.05, 0, 2 * NS_PER_MS, NULL);
}

static void all_at_once(void **state)
{
    (void)state;
    run_seeds(0.05, 0.05, 5 * NS_PER_MS, NULL);
}

/* Two random links break for up to a second each, the coordinator's among them. */
static void break_links(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "links");

    for (int i = 0; i < 3; i++) {
        uint32_t a = (uint32_t)rng_below(&rng, config->n_workers + 1);
        uint32_t b = (uint32_t)rng_below(&rng, config->n_workers + 1);
        int64_t at = (int64_t)rng_below(&rng, 3 * NS_PER_S / 2);

        if (a == b)
            continue;
        cluster_at(c, at, CLUSTER_CUT, a, b);
        cluster_at(c, at + (int64_t)rng_below(&rng, NS_PER_S), CLUSTER_HEAL, a, b);
    }
}

static void broken_links_that_heal_cost_time_only(void **state)
{
    (void)state;
    run_seeds(0, 0, 2 * NS_PER_MS, break_links);
}

/* Boundaries of two pieces, groups and tensors of three: put together from what comes in any order, and again. */
static void large_tensors_travel_in_pieces(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    job.train.steps = 2;
    job.train.microbatches = 2;
    job.train.sequences = 4096;
    job.model.n_ctx = 12;      /* (B,T,C): 393216 elements */
    job.model.n_vocab = 70000; /* wte: 560000 */
    job.eval.microbatches = 1;
    rig_expected(&job, hash);
    for (rig_seeds(8, &seed, &end); seed < end; seed++) {
        struct cluster_config config =
            rig_config(&job, 2, seed % 2 ? "units 0-1: 0\nunits 2-3: 1\n" : "units 0-3: 0 1\n");
        struct cluster_result r;

        job.peers = 2;
        config.seed = seed;
        config.delay_mean_ns = 5 * NS_PER_MS;
        config.loss = config.duplicate = 0.05;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        rig_assert_hash(c, &r, hash);
        cluster_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delays_and_reordering_change_nothing),
        cmocka_unit_test(messages_that_come_twice_change_nothing),
        cmocka_unit_test(lost_messages_are_asked_for_again),
        cmocka_unit_test(all_at_once),
        cmocka_unit_test(broken_links_that_heal_cost_time_only),
        cmocka_unit_test(large_tensors_travel_in_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
