/* Who may take part: late, older, newer and uninvited peers, and hostile ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/sim/rig.h"

static int worker_status(const struct cluster *c, uint32_t worker)
{
    const char *text;

    return cluster_worker_status(c, worker, &text);
}

/* With four steps there is no time to take it in. */
static void a_late_joiner_stands_by(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 3, NULL);
    struct cluster_result r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 2;
    config.workers[2].starts_at = 50 * NS_PER_MS;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    rig_assert_hash(c, &r, hash);
    assert_int_equal(cluster_worker_forwards(c, 3), 0);
    assert_int_equal(worker_status(c, 3), 0);
    cluster_free(c);
}

static void an_older_process_with_the_same_key_is_refused(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 3, NULL);
    struct cluster_result r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 2;
    config.workers[0].incarnation = 10;
    config.workers[2] = (struct cluster_worker){.starts_at = 20 * NS_PER_MS, .same_key_as = 1, .incarnation = 9};
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    rig_assert_hash(c, &r, hash);
    assert_int_equal(worker_status(c, 3), -E_AUTH);
    cluster_free(c);
}

/* The process was started again while the run went on: its first life is dead, and says so. */
static void a_newer_process_with_the_same_key_ends_the_older_one(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 3, NULL);
    struct cluster_result r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 2;
    config.workers[2] = (struct cluster_worker){.starts_at = 60 * NS_PER_MS, .same_key_as = 1};
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    rig_assert_hash(c, &r, hash); /* the other one has it all */
    cluster_free(c);
}

static void a_newer_process_before_the_first_step_takes_its_place(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 3, NULL);
    struct cluster_result r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 2;
    config.workers[1].starts_at = 2 * NS_PER_S; /* nothing begins before */
    config.workers[2] = (struct cluster_worker){.starts_at = 1 * NS_PER_S, .same_key_as = 1};
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    rig_assert_hash(c, &r, hash);
    assert_int_equal(cluster_worker_forwards(c, 1), 0);
    assert_true(cluster_worker_forwards(c, 3) > 0);
    cluster_free(c);
}

static void a_wrong_capability_is_refused(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 2, NULL);
    struct cluster_result r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    config.workers[0].wrong_capability = true;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    rig_assert_hash(c, &r, hash);
    assert_int_equal(worker_status(c, 1), -E_AUTH);
    assert_int_equal(worker_status(c, 2), 0);
    cluster_free(c);
}

static void a_peer_that_cannot_be_dialled_dials(void **state)
{
    (void)state;
    struct job job = rig_job();
    struct cluster_config config = rig_config(&job, 3, NULL);
    struct cluster_result r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    job.peers = 3;
    config.workers[1].no_port = true;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    rig_assert_hash(c, &r, hash);
    cluster_free(c);
}

/* An admitted peer that stands by and says whatever it likes to everyone. */
static void a_hostile_bystander_changes_nothing(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    job.checkpoint.every = 2;
    rig_expected(&job, hash);
    for (rig_seeds(100, &seed, &end); seed < end; seed++) {
        const struct rig_fleet *f = &rig_fleets[seed % RIG_FLEETS];
        struct cluster_config config = rig_config(&job, f->n_workers, f->plan);
        struct cluster_result r;

        job.peers = f->n_workers;
        config.seed = seed;
        config.delay_mean_ns = 1 * NS_PER_MS;
        config.workers[config.n_workers++] = (struct cluster_worker){.starts_at = 30 * NS_PER_MS, .hostile_hz = 20000};
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        rig_assert_hash(c, &r, hash);
        assert_int_equal(r.version, 4);
        cluster_free(c);
    }
}

/* One that has a part in the plan may spoil the run, not crash or hang anyone. */
static void a_hostile_holder_neither_crashes_nor_hangs_others(void **state)
{
    (void)state;
    struct job job = rig_job();
    uint64_t seed, end;
    uint32_t n_done = 0;

    job.checkpoint.every = 2;
    for (rig_seeds(200, &seed, &end); seed < end; seed++) {
        const struct rig_fleet *f = &rig_fleets[seed % RIG_FLEETS];
        struct cluster_config config = rig_config(&job, f->n_workers, f->plan);
        struct cluster_result r;

        job.peers = f->n_workers;
        config.seed = seed;
        config.delay_mean_ns = 1 * NS_PER_MS;
        config.lenient = true;
        config.workers[seed / RIG_FLEETS % f->n_workers].hostile_hz = 20000;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        n_done += r.status == 0;
        cluster_free(c);
    }
    print_message("%u runs came to their last step\n", n_done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_joiner_stands_by),
        cmocka_unit_test(an_older_process_with_the_same_key_is_refused),
        cmocka_unit_test(a_newer_process_with_the_same_key_ends_the_older_one),
        cmocka_unit_test(a_newer_process_before_the_first_step_takes_its_place),
        cmocka_unit_test(a_wrong_capability_is_refused),
        cmocka_unit_test(a_peer_that_cannot_be_dialled_dials),
        cmocka_unit_test(a_hostile_bystander_changes_nothing),
        cmocka_unit_test(a_hostile_holder_neither_crashes_nor_hangs_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
