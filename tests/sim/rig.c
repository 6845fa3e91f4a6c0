/* See rig.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crypto/key.h"
#include "tests/sim/rig.h"

static struct cluster *running; /* for the abort handler */
static uint64_t running_seed;

const struct rig_fleet rig_fleets[RIG_FLEETS] = {
    {"the planner's for 2", 2, NULL, true},
    {"the planner's for 3", 3, NULL, true},
    {"the planner's for 5", 5, NULL, true},
    {"data parallel over 2", 2, "units 0-3: 0 1\n", true},
    {"data parallel over 3 with other weights", 3, "units 0-3: 0*3 1*2 2*1\n", true},
    {"a pipeline of 2", 2, "units 0-1: 0\nunits 2-3: 1\nin-flight 2\n", false},
    {"a pipeline of 4, one unit each", 4, "units 0-0: 0\nunits 1-1: 1\nunits 2-2: 2\nunits 3-3: 3\nin-flight 4\n",
     false},
    {"a peer that holds two stages", 3, "units 0-0: 0\nunits 1-1: 1 2\nunits 2-2: 2\nunits 3-3: 0\nin-flight 3\n",
     false},
    {"mixed", 5, "units 0-1: 0 1\nunits 2-2: 2 1*2\nunits 3-3: 3*3 4\nin-flight 4\n", false},
    {"a shadow", 2, "units 0-3: 0 1*0\n", true},
    {"a shadow of one stage", 3, "units 0-1: 0\nunits 2-3: 1 2*0\nin-flight 2\n", false},
    {"less in flight than the pipeline is long", 3, "units 0-0: 0\nunits 1-2: 1\nunits 3-3: 2\nin-flight 1\n", false},
};

struct job rig_job(void)
{
    return (struct job){
        .name = "sim",
        .seed = 7,
        .model = {.arch = JOB_ARCH_GPT2, .n_layer = 2, .n_head = 1, .n_embd = 8, .n_ctx = 4, .n_vocab = 16},
        .train = {.steps = 4,
                  .microbatches = 8,
                  .sequences = 1,
                  .lr = 1e-3,
                  .lr_min = 1e-4,
                  .warmup_steps = 1,
                  .weight_decay = 0.1,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-8,
                  .clip = 1},
        .eval = {.every = 2, .microbatches = 3},
        .reduction = JOB_REDUCTION_EXACT,
        .peers = 1,
    };
}

struct cluster_config rig_config(const struct job *job, uint32_t n_workers, const char *plan_text)
{
    return (struct cluster_config){.job = job,
                                   .n_workers = n_workers,
                                   .plan_text = plan_text,
                                   .delay_min_ns = 100 * NS_PER_US,
                                   .delay_mean_ns = 200 * NS_PER_US};
}

static void print_failure(const char *what)
{
    fprintf(stderr, "seed %" PRIu64 ": %s\n%s", running_seed, what, running ? cluster_trace(running) : "");
}

static void on_abort(int sig)
{
    (void)sig;
    print_failure("an engine gave up");
    signal(SIGABRT, SIG_DFL);
    abort();
}

void rig_fail(struct cluster *c, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    running = c;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_failure(text);
    fail_msg("seed %" PRIu64 ": %s", running_seed, text);
    abort();
}

struct cluster *rig_run(const struct cluster_config *config, void (*before)(struct cluster *c, void *arg), void *arg,
                        struct cluster_result *ret)
{
    struct cluster *c = NULL;
    struct reason why = {0};

    signal(SIGABRT, on_abort);
    assert_int_equal(key_setup(&why), 0);
    assert_int_equal(cluster_new(config, &c), 0);
    running = c;
    running_seed = config->seed;
    if (before)
        before(c, arg);
    if (cluster_run(c, LIMIT_NS, &why) < 0)
        rig_fail(c, "%s", why.text);
    cluster_result(c, ret);
    if (getenv("SHOAL_SIM_TRACE"))
        print_failure("the run's end");
    return c;
}

void rig_assert_hash(struct cluster *c, const struct cluster_result *r, const uint8_t hash[HASH_BYTES])
{
    if (r->status != 0)
        rig_fail(c, "ended with %s: %s", status_name(r->status), r->why.text);
    if (!r->saved)
        rig_fail(c, "ended well without a checkpoint");
    if (memcmp(r->saved->hash, hash, HASH_BYTES) != 0)
        rig_fail(c, "the model has another hash");
}

void rig_expected(const struct job *job, uint8_t ret[HASH_BYTES])
{
    struct cluster_config config = rig_config(job, 1, NULL);
    struct job alone = *job;
    struct cluster_result r;

    alone.peers = 1;
    config.job = &alone;
    struct cluster *c = rig_run(&config, NULL, NULL, &r);

    if (r.status != 0 || !r.saved)
        rig_fail(c, "one worker alone did not end well: %s", r.why.text);
    memcpy(ret, r.saved->hash, HASH_BYTES);
    cluster_free(c);
}

void rig_resume(const struct cluster_config *config, const struct cluster_result *r, const uint8_t hash[HASH_BYTES])
{
    struct cluster_config again = rig_config(config->job, config->n_workers, config->plan_text);
    struct cluster_result end;

    again.seed = config->seed;
    again.fault = config->fault;
    again.resume = r->saved;
    struct cluster *c = rig_run(&again, NULL, NULL, &end);

    rig_assert_hash(c, &end, hash);
    if (end.version != config->job->train.steps)
        rig_fail(c, "resumed from step %" PRIu64 ", ended at %" PRIu64, r->saved ? r->saved->version : 0, end.version);
    cluster_free(c);
}

void rig_seeds(uint64_t n, uint64_t *ret_first, uint64_t *ret_end)
{
    const char *one = getenv("SHOAL_SIM_SEED"), *many = getenv("SHOAL_SIM_SEEDS");

    *ret_first = one ? strtoull(one, NULL, 10) : 0;
    *ret_end = one ? *ret_first + 1 : many ? strtoull(many, NULL, 10) : n;
}
