/* The coordinator dies at any moment and is started again from its ledger: training goes on with the peers of before,
 * to the same model; nothing that was told is contradicted. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "crypto/key.h"
#include "runtime/base/mem.h"
#include "sim/cluster_impl.h"
#include "tests/sim/rig.h"

#define SEEDS 240

static struct job long_job(void)
{
    struct job job = rig_job();

    job.train.steps = 8;
    job.checkpoint.every = 3;
    return job;
}

static bool has_slow_one(uint64_t seed)
{
    return seed / RIG_FLEETS % 2;
}

/* Whoever dies, the others hold the whole model. (The planner leaves a slow one out.) */
static bool is_replicated(uint64_t seed)
{
    const struct rig_fleet *f = &rig_fleets[seed % RIG_FLEETS];

    return f->replicated && (f->plan || !has_slow_one(seed));
}

static struct cluster_config fleet_config(struct job *job, uint64_t seed)
{
    const struct rig_fleet *f = &rig_fleets[seed % RIG_FLEETS];
    struct cluster_config config = rig_config(job, f->n_workers, f->plan);

    job->peers = f->n_workers;
    config.seed = seed;
    config.delay_mean_ns = 1 * NS_PER_MS;
    if (has_slow_one(seed)) /* so slow that the device is at work of the old term when the new one comes */
        config.workers[seed / RIG_FLEETS % f->n_workers].speed = 0.01;
    return config;
}

static uint32_t away_ms(struct rng *rng)
{
    return (uint32_t)(10 + rng_below(rng, rng_below(rng, 4) ? 300 : 3000));
}

/* A crash in the middle of something, or between writing and telling something. */
static void crash_sometime(struct cluster *c, const struct cluster_config *config, struct rng *rng)
{
    uint64_t version = rng_below(rng, config->job->train.steps + 1);
    int64_t after = (int64_t)rng_below(rng, 40 * NS_PER_MS);
    uint32_t kind = 0;

    if (rng_below(rng, 3) == 0)
        kind = 1 + (uint32_t)rng_below(rng, COORD_RECORD_KINDS);
    if (version == 0) /* joining, planning, connecting, setting up, or in the first step */
        cluster_at(c, after, CLUSTER_CRASH, kind, away_ms(rng));
    else
        cluster_when(c, version, after, CLUSTER_CRASH, kind, away_ms(rng));
}

static void crash_once(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "crash");

    crash_sometime(c, config, &rng);
}

static void crash_often(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "crash");

    for (int i = 0; i < 5; i++)
        crash_sometime(c, config, &rng);
}

static void run_seeds(void (*before)(struct cluster *c, void *arg), double loss, double duplicate)
{
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;
    uint32_t n_crashes = 0;

    rig_expected(&job, hash);
    for (rig_seeds(SEEDS, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;

        config.loss = loss;
        config.duplicate = duplicate;
        struct cluster *c = rig_run(&config, before, &config, &r);

        rig_assert_hash(c, &r, hash);
        if (r.n_rollbacks > 0)
            rig_fail(c, "went back to a checkpoint, and nobody but the coordinator was gone");
        for (uint32_t i = 1; i <= config.n_workers; i++) {
            const char *text;

            /* Who has no share may still be on its way back when all is done, and a goodbye may be lost. */
            if (cluster_worker_status(c, i, &text) != 0 && cluster_worker_forwards(c, i) > 0 && loss == 0)
                rig_fail(c, "worker %u ended with: %s", i, text);
        }
        n_crashes += r.n_crashes;
        cluster_free(c);
    }
    assert_true(n_crashes >= end / 2);
    print_message("%u crashes\n", n_crashes);
}

static void a_crash_at_any_moment_changes_nothing(void **state)
{
    (void)state;
    run_seeds(crash_once, 0, 0);
}

static void crashes_again_and_again_change_nothing(void **state)
{
    (void)state;
    run_seeds(crash_often, 0, 0);
}

static void lost_and_doubled_messages_change_nothing_either(void **state)
{
    (void)state;
    run_seeds(crash_often, 0.03, 0.05);
}

/* Deaths of peers before, while and after the coordinator is gone. */
static void crash_and_kill(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "crash");
    uint64_t version = 1 + rng_below(&rng, config->job->train.steps);
    int64_t after = (int64_t)rng_below(&rng, 40 * NS_PER_MS);
    uint32_t who = 1 + (uint32_t)rng_below(&rng, config->n_workers);
    uint32_t kind = rng_below(&rng, 3) ? 0 : 1 + (uint32_t)rng_below(&rng, COORD_RECORD_KINDS);

    cluster_when(c, version, after, CLUSTER_CRASH, kind, away_ms(&rng));
    cluster_when(c, version, (int64_t)rng_below(&rng, 400 * NS_PER_MS),
                 rng_below(&rng, 2) ? CLUSTER_KILL : CLUSTER_EXIT, who, 0);
}

static void a_peer_s_death_besides_is_survived(void **state)
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
        struct cluster *c = rig_run(&config, crash_and_kill, &config, &r);

        rig_assert_hash(c, &r, hash);
        if (r.n_rollbacks > 0 && is_replicated(seed))
            rig_fail(c, "went back to a checkpoint, and another peer had it all");
        n_survived += r.n_rollbacks == 0 && r.n_crashes > 0;
        n_rollbacks += r.n_rollbacks;
        cluster_free(c);
    }
    assert_true(n_survived > 0 && n_rollbacks > 0);
    print_message("%u went on at once, %u went back to a checkpoint\n", n_survived, n_rollbacks);
}

struct between {
    uint32_t kind;
    uint64_t version;
};

static void crash_between(struct cluster *c, void *arg)
{
    const struct between *b = arg;

    if (b->version > 0)
        cluster_when(c, b->version, 1, CLUSTER_CRASH, 1 + b->kind, 100);
    else
        cluster_at(c, 0, CLUSTER_CRASH, 1 + b->kind, 100);
}

/* Written and not told: who was not told is told by the next coordinator. The step is not done again. */
static void what_was_written_and_not_told_is_told_later(void **state)
{
    (void)state;
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];
    static const struct between moments[] = {
        {COORD_RECORD_MEMBER, 0},     {COORD_RECORD_PLAN, 0},       {COORD_RECORD_COMMIT, 0},
        {COORD_RECORD_COMMIT, 2},     {COORD_RECORD_COMMIT, 7},     {COORD_RECORD_STATE, 7},
        {COORD_RECORD_CHECKPOINT, 3}, {COORD_RECORD_CHECKPOINT, 7}, {COORD_RECORD_STATE, 8},
    };

    rig_expected(&job, hash);
    for (uint64_t i = 0; i < RIG_FLEETS * sizeof moments / sizeof moments[0]; i++) {
        struct cluster_config config = fleet_config(&job, i);
        struct between b = moments[i / RIG_FLEETS];
        struct cluster_result r;
        struct cluster *c = rig_run(&config, crash_between, &b, &r);

        rig_assert_hash(c, &r, hash);
        if (r.n_crashes != 1 || r.n_rollbacks > 0)
            rig_fail(c, "%u crashes, %u rollbacks", r.n_crashes, r.n_rollbacks);
        cluster_free(c);
    }
}

static void crash_for_long(struct cluster *c, void *arg)
{
    (void)arg;
    cluster_when(c, 4, 5 * NS_PER_MS, CLUSTER_CRASH, 0, 12000); /* the peers' patience is ten seconds */
}

/* Nobody comes back: the run goes on from the checkpoint, with whoever is there. */
static void a_coordinator_whose_peers_are_gone_goes_on_from_the_checkpoint(void **state)
{
    (void)state;
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    for (uint64_t i = 0; i < RIG_FLEETS; i++) {
        struct cluster_config config = fleet_config(&job, i);
        struct cluster_result r;

        for (uint32_t k = 0; k < job.peers; k++)
            config.workers[config.n_workers++].starts_at = 13 * NS_PER_S;
        struct cluster *c = rig_run(&config, crash_for_long, NULL, &r);

        rig_assert_hash(c, &r, hash);
        if (r.n_rollbacks != 1)
            rig_fail(c, "%u rollbacks", r.n_rollbacks);
        cluster_free(c);
    }
}

static void crash_and_stop(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "crash");

    cluster_when(c, 3, 0, CLUSTER_CRASH, 0, 50);
    cluster_when(c, 3, 50 * NS_PER_MS + (int64_t)rng_below(&rng, 300 * NS_PER_MS), CLUSTER_STOP, 0, 0);
}

/* The wish to stop comes while the peers are coming back, too: what they hold is saved. */
static void a_stop_while_peers_come_back_saves_what_they_hold(void **state)
{
    (void)state;
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    rig_expected(&job, hash);
    for (rig_seeds(60, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;
        struct cluster *c = rig_run(&config, crash_and_stop, &config, &r);

        if (r.status == 0) {
            rig_assert_hash(c, &r, hash);
        } else {
            /* Stopped in the last checkpoint's making it ends at once: that is the second stop's meaning. */
            bool late = r.version == job.train.steps;

            if (r.status != -E_CANCELED || !r.saved || (r.saved->version != r.version && !late) || r.version < 3)
                rig_fail(c, "ended with %s at step %llu, saved %llu", status_name(r.status),
                         (unsigned long long)r.version, r.saved ? (unsigned long long)r.saved->version : 0);
            rig_resume(&config, &r, hash);
        }
        cluster_free(c);
    }
}

static void crash_and_leave(struct cluster *c, void *arg)
{
    const struct cluster_config *config = arg;
    struct rng rng = rng_make(config->seed, "crash");

    cluster_when(c, 3, 0, CLUSTER_CRASH, 0, 50);
    cluster_when(c, 3, (int64_t)rng_below(&rng, 300 * NS_PER_MS), CLUSTER_LEAVE,
                 1 + (uint32_t)rng_below(&rng, config->n_workers), 0);
}

static void a_peer_that_leaves_meanwhile_loses_no_step(void **state)
{
    (void)state;
    struct job job = long_job();
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    rig_expected(&job, hash);
    for (rig_seeds(60, &seed, &end); seed < end; seed++) {
        struct cluster_config config = fleet_config(&job, seed);
        struct cluster_result r;
        struct cluster *c = rig_run(&config, crash_and_leave, &config, &r);

        if (r.n_rollbacks > 0)
            rig_fail(c, "went back to a checkpoint");
        if (r.status == 0 || is_replicated(seed)) {
            rig_assert_hash(c, &r, hash);
        } else {
            if (r.status != -E_PEER || !r.saved || r.saved->version != r.version)
                rig_fail(c, "ended with %s: %s", status_name(r.status), r.why.text);
            rig_resume(&config, &r, hash);
        }
        cluster_free(c);
    }
}

static void crash_for_good(struct cluster *c, void *arg)
{
    (void)arg;
    cluster_when(c, 4, 5 * NS_PER_MS, CLUSTER_CRASH, 0, 0);
}

/* Starts an engine from these records, lets it be for a moment, and says how it began. */
static int begin(struct cluster *c, const struct coord_record *records, uint32_t n)
{
    struct coord_config config = {.job = c->config.job,
                                  .model = c->model,
                                  .key = &c->nodes[0].key,
                                  .term = c->term,
                                  .stop_after = 8,
                                  .records = records,
                                  .n_records = n,
                                  .reattach = true};
    struct coord_update u = {0};
    struct coord *engine = NULL;
    int status = blob_new(1, &config.job_text);

    if (status == 0)
        status = coord_new(&config, &engine);
    blob_unref(config.job_text);
    for (int64_t at = 0; status == 0 && at < 8 * NS_PER_S; at += 400 * NS_PER_MS) {
        coord_step(engine, &(struct coord_event){.kind = COORD_TICK, .now = at}, &u);
        for (uint32_t i = 0; i < u.fx.n_sends; i++)
            msg_free(u.fx.sends[i].msg);
        effects_clear(&u.fx);
        coord_records_clear(&u);
    }
    coord_free(engine);
    coord_update_done(&u);
    return status;
}

/* Each record in turn missing, cut short, or with a changed byte: some start all the same, others say that the ledger
 * is damaged; nothing worse. */
static void a_ledger_that_makes_no_sense_is_refused(void **state)
{
    (void)state;
    struct job job = long_job();
    struct cluster_config config = fleet_config(&job, 4);
    struct cluster_result r;
    struct cluster *c = rig_run(&config, crash_for_good, NULL, &r);
    struct coord_record records[64];
    uint32_t n = c->n_ledger, n_refused = 0;
    struct rng rng = rng_make(3, "damage");

    assert_true(n > 8 && n <= 64);
    assert_int_equal(begin(c, c->ledger, n), 0);
    for (uint32_t i = 0; i < 60 * n; i++) {
        struct coord_record *hurt = &records[i % n];
        struct blob *b = NULL;

        memcpy(records, c->ledger, n * sizeof *records);
        size_t size = hurt->data->size - (i / n == 1 ? 1 + rng_below(&rng, hurt->data->size) : 0);

        assert_int_equal(blob_new(size, &b), 0);
        memcpy(b->data, hurt->data->data, size);
        if (size > 0 && i / n > 1)
            ((uint8_t *)b->data)[rng_below(&rng, size)] ^= (uint8_t)(1 + rng_below(&rng, 255));
        hurt->data = b;
        if (i / n == 0) /* missing */
            *hurt = records[n - 1];
        int status = begin(c, records, i / n == 0 ? n - 1 : n);

        if (status != 0 && status != -E_CORRUPT)
            rig_fail(c, "%s %llu damaged: %s", coord_record_names[c->ledger[i % n].kind],
                     (unsigned long long)c->ledger[i % n].key, status_name(status));
        n_refused += status < 0;
        blob_unref(b);
    }
    assert_true(n_refused > n);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_at_any_moment_changes_nothing),
        cmocka_unit_test(crashes_again_and_again_change_nothing),
        cmocka_unit_test(lost_and_doubled_messages_change_nothing_either),
        cmocka_unit_test(a_peer_s_death_besides_is_survived),
        cmocka_unit_test(what_was_written_and_not_told_is_told_later),
        cmocka_unit_test(a_coordinator_whose_peers_are_gone_goes_on_from_the_checkpoint),
        cmocka_unit_test(a_stop_while_peers_come_back_saves_what_they_hold),
        cmocka_unit_test(a_peer_that_leaves_meanwhile_loses_no_step),
        cmocka_unit_test(a_ledger_that_makes_no_sense_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
