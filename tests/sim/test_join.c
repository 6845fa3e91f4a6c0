/* Peers that come while the job runs: they get the state while the others go on training, then a share; the model ends
 * as it would have without them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <string.h>

#include "scheduler/planner.h"
#include "tests/sim/rig.h"

#define STEPS 80 /* about 40 ms each alone: time to come, to settle (half a second), to fetch and to work */

static struct job long_job(uint32_t peers)
{
    struct job job = rig_job();

    job.train.steps = STEPS;
    job.eval.every = 20;
    job.checkpoint.every = 25;
    job.peers = peers;
    return job;
}

/* The job must have gone through every step once (the cluster looks after that) and end in the undisturbed hash. */
static void finish(struct cluster *c, const struct cluster_result *r, const uint8_t hash[HASH_BYTES])
{
    rig_assert_hash(c, r, hash);
    if (r->version != STEPS || r->n_rollbacks > 0)
        rig_fail(c, "ended at step %" PRIu64 " after %u rollbacks", r->version, r->n_rollbacks);
}

static void a_late_peer_gets_a_share_and_nobody_pauses(void **state)
{
    (void)state;
    struct job job = long_job(1);
    struct cluster_config config = rig_config(&job, 1, NULL);
    struct cluster_result alone, r;
    uint8_t hash[HASH_BYTES];

    rig_expected(&job, hash);
    cluster_free(rig_run(&config, NULL, NULL, &alone));
    config.n_workers = 2;
    config.workers[1].starts_at = 50 * NS_PER_MS;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    finish(c, &r, hash);
    assert_int_equal(r.n_plans, 3); /* alone, joining, both */
    assert_true(cluster_worker_forwards(c, 2) > 8 * STEPS / 4);
    assert_true(r.ended_at < alone.ended_at * 4 / 5);
    print_message("longest step %.1f ms, alone %.1f ms; ended at %.2f s, alone %.2f s\n",
                  (double)r.longest_step_ns / NS_PER_MS, (double)alone.longest_step_ns / NS_PER_MS,
                  (double)r.ended_at / NS_PER_S, (double)alone.ended_at / NS_PER_S);
    assert_true(r.longest_step_ns < alone.longest_step_ns * 11 / 10);
    cluster_free(c);
}

/* A fleet of one to three, and one or two that come at any time. */
static struct cluster_config any_fleet(const struct job *job, struct rng *rng, uint32_t n_early, uint32_t n_late)
{
    struct cluster_config config = rig_config(job, n_early + n_late, NULL);
    int64_t together = (int64_t)rng_below(rng, 1500);
    bool at_once = rng_below(rng, 2) == 0;

    config.delay_mean_ns = (int64_t)(1 + rng_below(rng, 20)) * 100 * NS_PER_US;
    for (uint32_t i = n_early; i < n_early + n_late; i++)
        config.workers[i].starts_at = (1 + (at_once ? together : (int64_t)rng_below(rng, 1500))) * NS_PER_MS;
    return config;
}

static void peers_join_at_any_time(void **state)
{
    (void)state;
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    for (rig_seeds(30, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "join");
        uint32_t n_early = 1 + (uint32_t)rng_below(&rng, 3),
                 n_late = n_early == 3 ? 1 : 1 + (uint32_t)rng_below(&rng, 2);
        struct job job = long_job(n_early);
        struct cluster_result r;

        job.checkpoint.every = 1 + (uint32_t)rng_below(&rng, 40);
        rig_expected(&job, hash);
        struct cluster_config config = any_fleet(&job, &rng, n_early, n_late);

        config.seed = seed;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        finish(c, &r, hash);
        for (uint32_t i = n_early; i < config.n_workers; i++)
            if (config.workers[i].starts_at < 400 * NS_PER_MS && cluster_worker_forwards(c, i + 1) == 0)
                rig_fail(c, "worker %u came in time and got no share", i + 1);
        cluster_free(c);
    }
}

struct death {
    uint32_t who;
    int64_t at;
};

static void plan_death(struct cluster *c, void *arg)
{
    const struct death *d = arg;

    cluster_at(c, d->at, CLUSTER_EXIT, d->who, 0);
}

/* Everybody holds everything here, so that no death costs a unit. */
static void a_donor_dies_while_it_gives(void **state)
{
    (void)state;
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    for (rig_seeds(30, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "donor");
        struct job job = long_job(2);
        struct cluster_result r;
        struct death death = {1 + (uint32_t)rng_below(&rng, 2), (int64_t)(600 + rng_below(&rng, 200)) * NS_PER_MS};

        rig_expected(&job, hash);
        struct cluster_config config = any_fleet(&job, &rng, 2, 1);

        config.seed = seed;
        config.workers[2].starts_at = 40 * NS_PER_MS;
        struct cluster *c = rig_run(&config, plan_death, &death, &r);

        finish(c, &r, hash);
        if (cluster_worker_forwards(c, 3) == 0)
            rig_fail(c, "who joined got no share");
        cluster_free(c);
    }
}

static void who_joins_dies_while_it_does(void **state)
{
    (void)state;
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    for (rig_seeds(30, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "joiner");
        uint32_t n_early = 1 + (uint32_t)rng_below(&rng, 2);
        struct job job = long_job(n_early);
        struct cluster_result r;
        struct death death = {n_early + 1, (int64_t)(500 + rng_below(&rng, 300)) * NS_PER_MS};

        rig_expected(&job, hash);
        struct cluster_config config = any_fleet(&job, &rng, n_early, 2);

        config.seed = seed;
        config.workers[n_early].starts_at = 40 * NS_PER_MS;
        struct cluster *c = rig_run(&config, plan_death, &death, &r);

        rig_assert_hash(c, &r, hash);
        if (r.version != STEPS)
            rig_fail(c, "ended at step %" PRIu64, r.version);
        cluster_free(c);
    }
}

/* The same key, another process. */
static void a_dead_peer_comes_back_and_gets_a_share(void **state)
{
    (void)state;
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;

    for (rig_seeds(30, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "return");
        uint32_t n_early = 2 + (uint32_t)rng_below(&rng, 2);
        struct job job = long_job(n_early);
        struct cluster_result r;
        struct death death = {1 + (uint32_t)rng_below(&rng, n_early), (int64_t)(50 + rng_below(&rng, 400)) * NS_PER_MS};
        const char *plan = n_early == 3 ? NULL : rng_below(&rng, 2) ? "units 0-3: 0 1\n" : "units 0-3: 0 1*0\n";

        rig_expected(&job, hash);
        struct cluster_config config = any_fleet(&job, &rng, n_early, 1);

        config.seed = seed;
        config.plan_text = plan;
        config.workers[n_early].same_key_as = death.who;
        config.workers[n_early].starts_at = death.at + (int64_t)rng_below(&rng, 300) * NS_PER_MS;
        struct cluster *c = rig_run(&config, plan_death, &death, &r);

        finish(c, &r, hash);
        /* Who of two joined first, and is no shadow, is for the network to say. */
        if (cluster_worker_forwards(c, n_early + 1) == 0 && !(plan && strchr(plan, '*')))
            rig_fail(c, "it got no share");
        cluster_free(c);
    }
}

static void joins_survive_a_bad_network(void **state)
{
    (void)state;
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;
    uint32_t n_worked = 0;

    for (rig_seeds(30, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "bad");
        uint32_t n_early = 1 + (uint32_t)rng_below(&rng, 3);
        struct job job = long_job(n_early);
        struct cluster_result r;

        rig_expected(&job, hash);
        struct cluster_config config = any_fleet(&job, &rng, n_early, 2);

        config.seed = seed;
        config.loss = 0.005 * (double)rng_below(&rng, 3);
        config.duplicate = 0.1 * (double)rng_below(&rng, 3);
        config.delay_mean_ns = (int64_t)(1 + rng_below(&rng, 50)) * 100 * NS_PER_US;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        rig_assert_hash(c, &r, hash);
        n_worked += cluster_worker_forwards(c, n_early + 1) > 0;
        cluster_free(c);
    }
    print_message("%u of those that joined worked\n", n_worked);
}

/* Steps without an update, while somebody fetches and when its plan could be named. */
static void steps_are_skipped_by_who_joins_too(void **state)
{
    (void)state;
    uint64_t seed, end;

    for (rig_seeds(20, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "skipped");
        struct job job = long_job(1);
        struct device_fault fault = {.flag = true, .step = 10 + rng_below(&rng, 10), .more_steps = rng_below(&rng, 8)};
        struct cluster_config config = rig_config(&job, 1, NULL);
        struct cluster_result alone, r;

        config.fault = fault;
        struct cluster *c = rig_run(&config, NULL, NULL, &alone);
        uint8_t hash[HASH_BYTES];

        memcpy(hash, alone.saved->hash, HASH_BYTES);
        cluster_free(c);
        config = any_fleet(&job, &rng, 1, 2);
        config.seed = seed;
        config.fault = fault;
        config.workers[1].starts_at = 40 * NS_PER_MS;
        c = rig_run(&config, NULL, NULL, &r);
        finish(c, &r, hash);
        assert_int_equal(r.n_skipped, fault.more_steps + 1);
        if (cluster_worker_forwards(c, 2) == 0)
            rig_fail(c, "who joined got no share");
        cluster_free(c);
    }
}

/* It may spoil the run, not crash or hang anyone. */
static void a_hostile_peer_that_joins_neither_crashes_nor_hangs_others(void **state)
{
    (void)state;
    uint64_t seed, end;
    uint32_t n_done = 0;

    for (rig_seeds(20, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "hostile");
        struct job job = long_job(1 + (uint32_t)rng_below(&rng, 2));
        struct cluster_config config = any_fleet(&job, &rng, job.peers, 2);
        struct cluster_result r;

        config.seed = seed;
        config.lenient = true;
        config.workers[job.peers].starts_at = 40 * NS_PER_MS;
        config.workers[job.peers].hostile_hz = 2000;
        struct cluster *c = rig_run(&config, NULL, NULL, &r);

        n_done += r.status == 0;
        cluster_free(c);
    }
    print_message("%u runs came to their last step\n", n_done);
}

/* Bytes that one holder of the whole model needs. */
static uint64_t whole_bytes(const struct job *job)
{
    struct model *m = NULL;

    assert_int_equal(model_new(job, &m, NULL), 0);
    uint64_t n = planner_bytes(&(struct planner_input){.model = m, .reduction = job->reduction}, 0, m->n_units, 4);

    model_free(m);
    return n;
}

struct fate {
    uint32_t n_deeds;
    struct {
        int64_t at;
        enum cluster_deed deed;
        uint32_t who;
    } deeds[8];
};

static void plan_fate(struct cluster *c, void *arg)
{
    const struct fate *f = arg;

    for (uint32_t i = 0; i < f->n_deeds; i++)
        cluster_at(c, f->deeds[i].at, f->deeds[i].deed, f->deeds[i].who, 0);
}

static void add_deed(struct fate *f, int64_t at, enum cluster_deed deed, uint32_t who)
{
    f->deeds[f->n_deeds].at = at;
    f->deeds[f->n_deeds].deed = deed;
    f->deeds[f->n_deeds++].who = who;
}

/* Fast and slow, large and small peers; only the first one is sure to stay. */
static void draw_fleet(struct cluster_config *config, struct rng *rng, uint32_t n_early, uint64_t whole,
                       struct fate *fate)
{
    for (uint32_t i = 0; i < config->n_workers; i++) {
        struct cluster_worker *w = &config->workers[i];

        w->speed = i == 0 ? 3 : 0.5 + 2 * rng_unit(rng); /* the planner can always do with the fastest alone */
        w->memory_bytes = i > 0 && rng_below(rng, 2) ? whole / 10 * (3 + rng_below(rng, 6)) : 0;
        w->starts_at = i < n_early ? 0 : (int64_t)(1 + rng_below(rng, 1800)) * NS_PER_MS;
        if (i > 0 && i < n_early && rng_below(rng, 3) == 0)
            add_deed(fate, (int64_t)(30 + rng_below(rng, 1500)) * NS_PER_MS,
                     rng_below(rng, 3)   ? CLUSTER_EXIT
                     : rng_below(rng, 2) ? CLUSTER_KILL
                                         : CLUSTER_LEAVE,
                     i + 1);
    }
    /* The last one to come is another life of one of the early ones. */
    if (fate->n_deeds > 0 && rng_below(rng, 2)) {
        config->workers[config->n_workers - 1].same_key_as = fate->deeds[0].who;
        config->workers[config->n_workers - 1].starts_at = fate->deeds[0].at + (int64_t)rng_below(rng, 800) * NS_PER_MS;
    }
}

/* Spans move from peer to peer, units are joined by those who hold others, peers die, leave, and come back. */
static void anything_happens(void **state)
{
    (void)state;
    uint8_t hash[HASH_BYTES];
    uint64_t seed, end;
    uint32_t n_plans = 0, n_rollbacks = 0, n_left = 0;

    for (rig_seeds(60, &seed, &end); seed < end; seed++) {
        struct rng rng = rng_make(seed, "anything");
        uint32_t n_early = 1 + (uint32_t)rng_below(&rng, 4);
        struct job job = long_job(n_early);
        struct cluster_config config = rig_config(&job, n_early + 1 + (uint32_t)rng_below(&rng, 3), NULL);
        struct cluster_result r;
        struct fate fate = {0};

        job.checkpoint.every = 1 + (uint32_t)rng_below(&rng, 40);
        rig_expected(&job, hash);
        draw_fleet(&config, &rng, n_early, whole_bytes(&job), &fate);
        config.seed = seed;
        config.delay_mean_ns = (int64_t)(1 + rng_below(&rng, 20)) * 100 * NS_PER_US;
        /* A lost JOIN of the first one would leave the beginning to the small ones, who cannot hold the model. */
        if (rng_below(&rng, 3) == 0) {
            config.loss = 0.002;
            for (uint32_t i = 0; i < n_early; i++)
                config.workers[i].memory_bytes = 0;
        }
        if (rng_below(&rng, 3) == 0)
            config.duplicate = 0.1;
        struct cluster *c = rig_run(&config, plan_fate, &fate, &r);

        /* Runs that end by design: who left was the last holder of something, or a local peer ended before step 0. */
        if (r.status == -E_PEER && (strstr(r.why.text, "asked to leave") || r.version == 0)) {
            n_left++;
            cluster_free(c);
            continue;
        }
        rig_assert_hash(c, &r, hash);
        if (r.version != STEPS)
            rig_fail(c, "ended at step %" PRIu64, r.version);
        n_plans += r.n_plans;
        n_rollbacks += r.n_rollbacks;
        cluster_free(c);
    }
    print_message("%u plans, %u rollbacks, %u ended by design\n", n_plans, n_rollbacks, n_left);
    assert_true(n_left * 20 <= end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_peer_gets_a_share_and_nobody_pauses),
        cmocka_unit_test(peers_join_at_any_time),
        cmocka_unit_test(a_donor_dies_while_it_gives),
        cmocka_unit_test(who_joins_dies_while_it_does),
        cmocka_unit_test(a_dead_peer_comes_back_and_gets_a_share),
        cmocka_unit_test(joins_survive_a_bad_network),
        cmocka_unit_test(steps_are_skipped_by_who_joins_too),
        cmocka_unit_test(a_hostile_peer_that_joins_neither_crashes_nor_hangs_others),
        cmocka_unit_test(anything_happens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
