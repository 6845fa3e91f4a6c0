/* Whole runs on a quiet network: every plan and every number of workers gives one worker's model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/sim/rig.h"

static void one_worker_runs_the_job(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 1, NULL);
    struct cluster_result r;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);
    const char *text;

    if (r.status != 0)
        rig_fail(c, "ended with %s", r.why.text);
    assert_int_equal(r.version, 4);
    assert_int_equal(r.n_evals, 2); /* at 2 and at the end */
    assert_int_equal(r.n_saved, 1);
    assert_int_equal(r.saved->version, 4);
    assert_int_equal(r.saved->updates, 4);
    assert_int_equal(cluster_worker_forwards(c, 1), 4 * 8);
    assert_int_equal(cluster_worker_status(c, 1, &text), 0);
    assert_int_equal(r.dropped, 0);
    cluster_free(c);
}

static void other_seeds_of_the_job_give_other_models(void **state)
{
    (void)state;
    struct job job = rig_job(), other = rig_job();
    uint8_t a[HASH_BYTES], b[HASH_BYTES];

    other.seed++;
    rig_expected(&job, a);
    rig_expected(&other, b);
    assert_memory_not_equal(a, b, HASH_BYTES);
}

static void every_plan_gives_the_same_model(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];

    job.checkpoint.every = 2;
    rig_expected(&job, hash);
    for (size_t i = 0; i < RIG_FLEETS; i++) {
        struct cluster_config config = rig_config(&job, rig_fleets[i].n_workers, rig_fleets[i].plan);
        struct cluster_result r;
        const char *text;

        job.peers = rig_fleets[i].n_workers;
        config.seed = i;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        print_message("%s: %.1f ms of virtual time, %llu messages\n", rig_fleets[i].name,
                      (double)r.ended_at / NS_PER_MS, (unsigned long long)r.n_messages);
        rig_assert_hash(c, &r, hash);
        assert_int_equal(r.version, 4);
        assert_int_equal(r.n_evals, 2);
        if (r.n_saved != 2)
            rig_fail(c, "%u checkpoints", r.n_saved);
        assert_int_equal(r.dropped, 0);
        for (uint32_t w = 1; w <= rig_fleets[i].n_workers; w++)
            assert_int_equal(cluster_worker_status(c, w, &text), 0);
        cluster_free(c);
    }
}

static void more_text_than_a_message_takes_goes_in_several(void **state)
{
    (void)state;
    struct job job = rig_job();

    job.model.n_ctx = 64;
    job.train.sequences = JOB_SEQUENCES_MAX;
    job.train.microbatches = 36; /* 72 MiB of tokens and targets */
    job.train.steps = 1;
    struct cluster_config config = rig_config(&job, 1, NULL);
    struct cluster_result r;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    if (r.status != 0 || r.version != 1)
        rig_fail(c, "ended with %s", r.why.text);
    assert_int_equal(cluster_worker_forwards(c, 1), 36);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_runs_the_job),
        cmocka_unit_test(other_seeds_of_the_job_give_other_models),
        cmocka_unit_test(every_plan_gives_the_same_model),
        cmocka_unit_test(more_text_than_a_message_takes_goes_in_several),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
