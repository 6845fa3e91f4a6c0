/* Runs that end early, by a death, a wish or a leave: in bounded time, with what could be saved, and resumed to the
 * same model. Steps that are skipped. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/sim/rig.h"

#define SEEDS 200

/* A longer job: there must be something to interrupt. */
static struct job long_job(void)
{
    struct job job = rig_job();

    job.train.steps = 8;
    job.checkpoint.every = 3;
    return job;
}

static struct cluster_config fleet_config(struct job *job, uint64_t seed)
{
    const struct rig_fleet *f = &rig_fleets[seed % RIG_FLEETS];
    struct cluster_config config = rig_config(job, f->n_workers, f->plan);

    job->peers = f->n_workers;
    config.seed = seed;
    config.delay_mean_ns = 1 * NS_PER_MS;
    return config;
}

/* Some worker dies some time after some commit. */
static void kill_someone(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "death");
    uint32_t who = 1 + (uint32_t)rng_below(&rng, config->n_workers);
    enum cluster_deed how = rng_below(&rng, 2) ? CLUSTER_KILL : CLUSTER_EXIT;

    cluster_when(c, 1 + rng_below(&rng, config->job->train.steps), (int64_t)rng_below(&rng, 40 * NS_PER_MS), how, who,
                 0);
}

static void a_death_is_survived(void **state)
{
    (void)state;
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;
    uint32_t n_rollbacks = 0, n_survived = 0;

    rig_expected(&job, hash);
    for (rig_seeds(SEEDS, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;
        struct cluster *c = rig_run(&config, kill_someone, &config, &r);

        if (r.ended_at > 30 * NS_PER_S)
            rig_fail(c, "took %.1f s to end", (double)r.ended_at / NS_PER_S);
        rig_assert_hash(c, &r, hash);
        if (r.n_rollbacks > 0 && rig_fleets[seed % RIG_FLEETS].replicated)
            rig_fail(c, "went back to a checkpoint, and another peer had it all");
        n_survived += r.n_rollbacks == 0 && r.n_warnings > 0; /* its leases went to others */
        n_rollbacks += r.n_rollbacks;
        cluster_free(c);
    }
    assert_true(n_survived > 0 && n_rollbacks > 0);
    print_message("%u deaths cost nothing, %u cost the steps since a checkpoint\n", n_survived, n_rollbacks);
}

/* Someone dies before the first step: a spare takes part instead. */
static void kill_early(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "death");

    cluster_at(c, (int64_t)rng_below(&rng, 15 * NS_PER_MS), CLUSTER_KILL,
               1 + (uint32_t)rng_below(&rng, config->n_workers - 1), 0);
}

static void a_death_before_the_first_step_makes_another_plan(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;
    uint32_t n_planned_again = 0;

    rig_expected(&job, hash);
    for (rig_seeds(SEEDS, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;

        config.workers[config.n_workers++].starts_at = 1 * NS_PER_S;
        struct cluster *c = rig_run(&config, kill_early, &config, &r);

        if (r.status == 0)
            rig_assert_hash(c, &r, hash);
        else if (r.status != -E_PEER || r.version > 2) /* it died in the first steps after all */
            rig_fail(c, "ended with %s: %s", status_name(r.status), r.why.text);
        n_planned_again += r.n_plans > 1;
        cluster_free(c);
    }
    print_message("%u runs made another plan\n", n_planned_again);
}

static void stop_sometime(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "stop");

    cluster_at(c, (int64_t)rng_below(&rng, 250 * NS_PER_MS), CLUSTER_STOP, 0, 0);
}

static void a_stopped_run_is_saved_and_resumes_to_the_same_model(void **state)
{
    (void)state;
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    rig_expected(&job, hash);
    for (rig_seeds(SEEDS, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;

        config.loss = seed % 2 ? 0.02 : 0;
        struct cluster *c = rig_run(&config, stop_sometime, &config, &r);

        if (r.status == 0) {
            rig_assert_hash(c, &r, hash);
        } else {
            if (r.status != -E_CANCELED)
                rig_fail(c, "ended with %s: %s", status_name(r.status), r.why.text);
            if (r.version > 0 && config.loss == 0 && (!r.saved || r.saved->version != r.version))
                rig_fail(c, "step %llu was not saved", (unsigned long long)r.version);
            rig_resume(&config, &r, hash);
        }
        cluster_free(c);
    }
}

static void stop_twice(struct cluster *c, void *arg)
{
    (void)arg;
    cluster_when(c, 2, 0, CLUSTER_STOP, 0, 0);
    cluster_when(c, 2, 1, CLUSTER_STOP, 0, 0);
}

static void a_second_stop_ends_at_once(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 2, NULL);
    struct cluster_result r;

    job.peers = 2;
    struct cluster *c = rig_run(&config, stop_twice, NULL, &r);

    assert_int_equal(r.status, -E_CANCELED);
    assert_int_equal(r.version, 2);
    assert_null(r.saved);
    cluster_free(c);
}

/* All steps are done and the last checkpoint is on its way. */
static void stop_at(struct cluster *c, void *arg)
{
    cluster_at(c, *(int64_t *)arg, CLUSTER_STOP, 0, 0);
}

static void a_stop_does_not_cut_short_the_last_checkpoint(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 2, NULL);
    struct cluster_result quiet, r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 2;
    cluster_free(rig_run(&config, NULL, NULL, &quiet));
    for (int64_t ms = 1; ms < 60; ms++) {
        int64_t at = quiet.ended_at - ms * NS_PER_MS;
        struct cluster *c = rig_run(&config, stop_at, &at, &r);

        if (r.status == 0)
            rig_assert_hash(c, &r, hash);
        else if (r.status != -E_CANCELED || !r.saved || r.saved->version != r.version)
            rig_fail(c, "ended at step %llu with %s", (unsigned long long)r.version, r.why.text);
        cluster_free(c);
    }
}

static void exit_at(struct cluster *c, void *arg)
{
    cluster_at(c, *(int64_t *)arg, CLUSTER_EXIT, 1, 0);
}

/* What the last checkpoint needs has been handed over: nobody has to live until it is written. */
static void a_death_during_the_last_write_does_no_harm(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 2, "units 0-1: 0\nunits 2-3: 1\n");
    struct cluster_result quiet, r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 2;
    cluster_free(rig_run(&config, NULL, NULL, &quiet));
    int64_t at = quiet.ended_at - 10 * NS_PER_MS;
    struct cluster *c = rig_run(&config, exit_at, &at, &r);

    assert_true(r.ended_at > at);
    rig_assert_hash(c, &r, hash);
    assert_int_equal(r.n_saved, 1);
    cluster_free(c);
}

static void leave_sometime(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "leave");

    cluster_when(c, 1 + rng_below(&rng, 6), (int64_t)rng_below(&rng, 20 * NS_PER_MS), CLUSTER_LEAVE,
                 1 + (uint32_t)rng_below(&rng, config->n_workers), 0);
}

/* Who leaves politely goes at once where others hold the same; else it stays until the last step is saved. */
static void a_polite_leave_loses_no_step(void **state)
{
    (void)state;
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    rig_expected(&job, hash);
    for (rig_seeds(60, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;
        struct cluster *c = rig_run(&config, leave_sometime, &config, &r);

        if (r.status == 0 || rig_fleets[seed % RIG_FLEETS].replicated) {
            rig_assert_hash(c, &r, hash);
            cluster_free(c);
            continue;
        }
        if (r.status != -E_PEER)
            rig_fail(c, "ended with %s: %s", status_name(r.status), r.why.text);
        if (!r.saved || r.saved->version != r.version)
            rig_fail(c, "step %llu was not saved", (unsigned long long)r.version);
        rig_resume(&config, &r, hash);
        cluster_free(c);
    }
}

static void part_two(struct cluster *c, void *arg)
{
    (void)arg;
    cluster_when(c, 2, 3 * NS_PER_MS, CLUSTER_CUT, 1, 2);
}

static void holders_that_cannot_reach_each_other_end_the_run(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    for (uint64_t i = 0; i < RIG_FLEETS; i++) {
        struct cluster_config config = fleet_config(&job, i);
        struct cluster_result r;
        struct cluster *c = rig_run(&config, part_two, NULL, &r);

        if (r.status == 0) { /* those two need not talk */
            rig_assert_hash(c, &r, hash);
        } else {
            assert_int_equal(r.status, -E_PEER);
            assert_non_null(strstr(r.why.text, "cannot reach each other"));
            assert_non_null(r.saved);
            assert_int_equal(r.saved->version, r.version);
            rig_resume(&config, &r, hash);
        }
        cluster_free(c);
    }
}

static void a_peer_that_never_agrees_on_the_sums_ends_the_run(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 3, "units 0-3: 0 1 2\n");
    struct cluster_result r;

    job.peers = 3;
    config.workers[1].lies = true;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    assert_int_equal(r.status, -E_CORRUPT);
    assert_int_equal(r.version, 0);
    cluster_free(c);
}

/* A run in two halves equals a whole one. */
static void a_run_may_stop_after_some_steps(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    for (uint64_t i = 0; i < RIG_FLEETS; i++) {
        struct cluster_config config = fleet_config(&job, i);
        struct cluster_result r;

        config.stop_after = 1 + i % 3;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        assert_int_equal(r.status, 0);
        assert_int_equal(r.version, config.stop_after);
        rig_resume(&config, &r, hash);
        cluster_free(c);
    }
}

/* Runs every fleet with the fault: the step counts nowhere, the model is the same everywhere. */
static void check_skipped(const struct device_fault *fault)
{
    struct job job = rig_job();
    uint8_t unmarred[HASH_BYTES], hash[HASH_BYTES];

    rig_expected(&job, unmarred);
    for (uint64_t i = 0; i < RIG_FLEETS; i++) {
        struct cluster_config config = fleet_config(&job, i);
        struct cluster_result r;

        config.fault = *fault;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        if (i == 0 && r.saved)
            memcpy(hash, r.saved->hash, sizeof hash);
        rig_assert_hash(c, &r, hash);
        assert_int_equal(r.version, 4);
        assert_int_equal(r.n_skipped, 1);
        assert_int_equal(r.saved->updates, 3);
        cluster_free(c);
    }
    assert_memory_not_equal(hash, unmarred, sizeof hash);
}

static void a_flagged_step_is_skipped(void **state)
{
    (void)state;
    check_skipped(&(struct device_fault){.flag = true, .step = 1, .microbatch = 3, .unit = 2});
}

static void a_loss_that_is_no_number_skips_the_step(void **state)
{
    (void)state;
    check_skipped(&(struct device_fault){.nan = true, .step = 2, .microbatch = 7});
}

static void part_from_shadow(struct cluster *c, void *arg)
{
    (void)arg;
    cluster_when(c, 1, 0, CLUSTER_CUT, 0, 2);
    cluster_when(c, 1, 300 * NS_PER_MS, CLUSTER_HEAL, 0, 2);
}

/* Skipped steps have no reduce that a shadow would have to answer; still none of them may pass it by. */
static void a_shadow_misses_no_skipped_step(void **state)
{
    (void)state;
    struct job job = long_job();

    job.peers = 2;
    struct cluster_config config = rig_config(&job, 2, "units 0-3: 0 1*0\n");
    struct cluster_result r;

    config.fault = (struct device_fault){.flag = true, .step = 1, .more_steps = 2, .microbatch = 3, .unit = 2};
    struct cluster *c = rig_run(&config, part_from_shadow, NULL, &r);

    if (r.status != 0 || r.n_skipped != 3 || r.ended_at > 30 * NS_PER_S)
        rig_fail(c, "ended with %s: %s", status_name(r.status), r.why.text);
    cluster_free(c);
}

static int64_t leave_after;

static void leave_at_the_end(struct cluster *c, void *arg)
{
    (void)arg;
    cluster_when(c, 4, leave_after, CLUSTER_LEAVE, 1, 0);
}

static void who_leaves_at_the_end_still_hands_over(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 2;
    for (int64_t after = 0; after < 30; after++) {
        struct cluster_config config = rig_config(&job, 2, "units 0-1: 0\nunits 2-3: 1\nin-flight 2\n");
        struct cluster_result r;

        leave_after = after * NS_PER_MS;
        struct cluster *c = rig_run(&config, leave_at_the_end, NULL, &r);

        if (!r.saved || r.saved->version != 4 || memcmp(r.saved->hash, hash, sizeof hash) != 0 || r.n_rollbacks > 0)
            rig_fail(c, "the last step was not handed over: %s", r.why.text);
        cluster_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_survived),
        cmocka_unit_test(a_death_before_the_first_step_makes_another_plan),
        cmocka_unit_test(a_stopped_run_is_saved_and_resumes_to_the_same_model),
        cmocka_unit_test(a_second_stop_ends_at_once),
        cmocka_unit_test(a_stop_does_not_cut_short_the_last_checkpoint),
        cmocka_unit_test(a_death_during_the_last_write_does_no_harm),
        cmocka_unit_test(a_polite_leave_loses_no_step),
        cmocka_unit_test(holders_that_cannot_reach_each_other_end_the_run),
        cmocka_unit_test(a_peer_that_never_agrees_on_the_sums_ends_the_run),
        cmocka_unit_test(a_run_may_stop_after_some_steps),
        cmocka_unit_test(a_flagged_step_is_skipped),
        cmocka_unit_test(a_loss_that_is_no_number_skips_the_step),
        cmocka_unit_test(a_shadow_misses_no_skipped_step),
        cmocka_unit_test(who_leaves_at_the_end_still_hands_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
