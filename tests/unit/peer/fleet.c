/* Driving computes by hand; see fleet.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <poll.h>
#include <string.h>

#include "model/optimizer.h"
#include "runtime/base/mem.h"
#include "tests/unit/peer/fleet.h"

#define PIECE 501 /* elements: several pieces per group, cutting tensors in their middle */

struct job fleet_job(enum job_reduction reduction)
{
    return (struct job){
        .name = "tiny",
        .model = {.arch = JOB_ARCH_GPT2, .n_layer = 2, .n_head = 2, .n_embd = 12, .n_ctx = 6, .n_vocab = 17},
        .train = {.steps = 100,
                  .microbatches = 3,
                  .sequences = 2,
                  .lr = 1e-2,
                  .lr_min = 1e-3,
                  .warmup_steps = 2,
                  .weight_decay = 0.1,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-8,
                  .clip = 1.0},
        .reduction = reduction,
    };
}

void fleet_open(struct fleet *f, enum job_reduction reduction, const char *plan, int n_threads)
{
    struct reason why = {0};

    *f = (struct fleet){.job = fleet_job(reduction)};
    assert_int_equal(model_new(&f->job, &f->model, &why), 0);
    if (plan_parse(plan, f->model->n_units, &f->plan, &why) < 0)
        fail_msg("%s", why.text);
    assert_int_equal(plan_groups(&f->plan, f->model, &f->groups), 0);
    assert_true(f->plan.n_peers <= FLEET_PEERS_MAX);
    for (uint32_t i = 0; i < f->plan.n_peers; i++) {
        const struct compute_config config = {
            .model = f->model, .reduction = reduction, .n_threads = n_threads, .speed = 1};

        if (compute_new(&config, &f->computes[i], &why) < 0)
            fail_msg("%s", why.text);
    }
}

struct task *fleet_setup_task(const struct fleet *f, uint32_t peer, bool fetch)
{
    struct task *t = task_new(TASK_SETUP);

    t->plan = mem_calloc(1, sizeof *t->plan);
    assert_int_equal(plan_copy(&f->plan, t->plan), 0);
    t->peer = peer;
    t->fetch = fetch;
    t->seed = 7;
    return t;
}

void fleet_setup(struct fleet *f, bool fetch)
{
    for (uint32_t i = 0; i < f->plan.n_peers; i++)
        task_free(fleet_do(f->computes[i], fleet_setup_task(f, i, fetch)));
}

void fleet_close(struct fleet *f)
{
    for (uint32_t i = 0; i < FLEET_PEERS_MAX; i++)
        compute_free(f->computes[i]);
    plan_groups_done(&f->groups);
    plan_done(&f->plan);
    model_free(f->model);
}

struct task *fleet_run(struct compute *c, struct task *t)
{
    struct pollfd p = {.fd = compute_fd(c), .events = POLLIN};

    compute_submit(c, t);
    while (poll(&p, 1, -1) != 1)
        ;
    assert_ptr_equal(compute_take(c), t);
    return t;
}

struct task *fleet_do(struct compute *c, struct task *t)
{
    fleet_run(c, t);
    if (t->status != 0)
        fail_msg("%s: %s", task_name(t->kind), reason_text(&t->why, t->status));
    assert_true(t->busy_ns > 0);
    return t;
}

void fleet_refused(struct compute *c, struct task *t, int status)
{
    fleet_run(c, t);
    assert_int_equal(t->status, status);
    assert_string_not_equal(t->why.text, "");
    task_free(t);
}

/* Sequences that count up by a stride of their own: easy to learn. from 0: tokens, 1: what follows each. */
static struct blob *counting(const struct fleet *f, uint32_t microbatch, int32_t from)
{
    const struct model *m = f->model;
    struct blob *b;

    assert_int_equal(blob_new((size_t)m->B * m->n_ctx * sizeof(int32_t), &b), 0);
    for (uint32_t s = 0; s < m->B; s++) {
        const int32_t first = (int32_t)(f->version * 5 + microbatch * 3 + s), stride = 1 + (int32_t)s;

        for (uint32_t i = 0; i < m->n_ctx; i++)
            ((int32_t *)b->data)[s * m->n_ctx + i] = (first + ((int32_t)i + from) * stride) % (int32_t)m->n_vocab;
    }
    return b;
}

struct blob *fleet_tokens(const struct fleet *f, uint32_t microbatch)
{
    return counting(f, microbatch, 0);
}

struct blob *fleet_targets(const struct fleet *f, uint32_t microbatch)
{
    return counting(f, microbatch, 1);
}

struct blob *fleet_floats(int64_t n, float value)
{
    struct blob *b;

    assert_int_equal(blob_new((size_t)n * sizeof(float), &b), 0);
    for (int64_t i = 0; i < n; i++)
        ((float *)b->data)[i] = value;
    return b;
}

static struct task *span_task(const struct fleet *f, enum task_kind kind, uint32_t microbatch, uint32_t u0, uint32_t u1,
                              struct blob *in)
{
    struct task *t = task_new(kind);

    t->u0 = u0;
    t->u1 = u1;
    t->train = true;
    t->slot = microbatch * f->model->n_units + u0; /* a peer may run two spans of a microbatch */
    t->in = in;
    t->loss_scale = 1.0f / (float)job_step_tokens(&f->job);
    return t;
}

struct task *fleet_forward(const struct fleet *f, uint32_t microbatch, uint32_t u0, uint32_t u1, struct blob *in)
{
    struct task *t = span_task(f, TASK_FORWARD, microbatch, u0, u1, in);

    if (u0 == 0)
        t->tokens = fleet_tokens(f, microbatch);
    if (u1 == f->model->n_units)
        t->targets = fleet_targets(f, microbatch);
    return t;
}

struct task *fleet_backward(const struct fleet *f, uint32_t microbatch, uint32_t u0, uint32_t u1, struct blob *in)
{
    return span_task(f, TASK_BACKWARD, microbatch, u0, u1, in);
}

struct task *fleet_range(enum task_kind kind, uint32_t group, uint64_t offset, uint64_t n)
{
    struct task *t = task_new(kind);

    t->group = group;
    t->offset = offset;
    t->n = n;
    return t;
}

/* The holder of a stage that takes a microbatch: by turns. */
static struct compute *holder(const struct fleet *f, uint32_t stage, uint32_t microbatch)
{
    const struct plan_stage *s = &f->plan.stages[stage];

    return f->computes[f->plan.holders[s->first_holder + microbatch % s->n_holders].peer];
}

/* Everything forward before anything backward: all microbatches are in flight at once. */
static double run_microbatches(struct fleet *f)
{
    double loss = 0;

    for (uint32_t i = 0; i < f->job.train.microbatches; i++) {
        struct blob *boundary = NULL;

        for (uint32_t s = 0; s < f->plan.n_stages; s++) {
            struct task *t =
                fleet_do(holder(f, s, i), fleet_forward(f, i, f->plan.stages[s].u0, f->plan.stages[s].u1, boundary));

            boundary = TAKE_PTR(t->out);
            loss += t->loss;
            task_free(t);
        }
        assert_null(boundary);
    }
    for (uint32_t i = f->job.train.microbatches; i-- > 0;) {
        struct blob *gradient = NULL;

        for (uint32_t s = f->plan.n_stages; s-- > 0;) {
            struct task *t =
                fleet_do(holder(f, s, i), fleet_backward(f, i, f->plan.stages[s].u0, f->plan.stages[s].u1, gradient));

            gradient = TAKE_PTR(t->out);
            assert_false(t->flagged);
            task_free(t);
        }
        assert_null(gradient);
    }
    return loss / (double)job_step_tokens(&f->job);
}

/* One piece: partials to its owner, the sum to everyone. */
static void reduce_piece(struct fleet *f, uint32_t group, uint64_t offset, uint64_t n, uint32_t owner)
{
    const struct plan_group *g = &f->groups.groups[group];
    struct task *sum = fleet_range(TASK_SUM, group, offset, n);

    sum->contributes = true;
    sum->parts = mem_calloc(g->n_members, sizeof *sum->parts);
    for (uint32_t i = 0; i < g->n_members; i++) {
        if (i == owner)
            continue;
        struct task *t = fleet_do(f->computes[g->members[i]], fleet_range(TASK_PARTIAL, group, offset, n));

        sum->parts[sum->n_parts++] = TAKE_PTR(t->out);
        task_free(t);
    }
    fleet_do(f->computes[g->members[owner]], sum);
    for (uint32_t i = 0; i < g->n_members; i++) {
        if (i == owner)
            continue;
        struct task *t = fleet_range(TASK_STORE, group, offset, n);

        t->in = blob_ref(sum->out);
        task_free(fleet_do(f->computes[g->members[i]], t));
        t = fleet_do(f->computes[g->members[i]], fleet_range(TASK_STORED, group, offset, n));
        assert_int_equal(t->out->size, sum->out->size);
        assert_memory_equal(t->out->data, sum->out->data, sum->out->size);
        task_free(t);
    }
    task_free(sum);
}

/* squares: per tensor of the model. */
static void reduce_group(struct fleet *f, uint32_t group, double *squares)
{
    const struct plan_group *g = &f->groups.groups[group];
    struct task *first = NULL;
    uint32_t n_pieces = 0;

    for (uint64_t at = 0; at < (uint64_t)g->n_elems; at += PIECE) {
        const uint64_t left = (uint64_t)g->n_elems - at;

        reduce_piece(f, group, at, left < PIECE ? left : PIECE, n_pieces++ % g->n_members);
    }
    for (uint32_t i = 0; i < g->n_members; i++) {
        struct task *t = fleet_do(f->computes[g->members[i]], fleet_range(TASK_DIGEST, group, 0, 0));

        if (!first) {
            for (uint32_t k = 0; k < g->n_tensors; k++)
                squares[g->tensors[k]] = t->sum_squares[k];
            first = t;
            continue;
        }
        assert_memory_equal(t->hash, first->hash, HASH_BYTES);
        assert_memory_equal(t->sum_squares, first->sum_squares, g->n_tensors * sizeof(double));
        task_free(t);
    }
    task_free(first);
}

double fleet_step(struct fleet *f)
{
    double *squares = mem_calloc(f->model->n_tensors, sizeof *squares), sum = 0;
    const double loss = run_microbatches(f);

    for (uint32_t g = 0; g < f->groups.n; g++)
        reduce_group(f, g, squares);
    for (uint32_t i = 0; i < f->model->n_tensors; i++)
        sum += squares[i];
    assert_true(sum > 0);
    for (uint32_t i = 0; i < f->plan.n_peers; i++) {
        struct task *t = task_new(TASK_APPLY);

        t->update = optimizer_step(&f->job, f->version, f->version, sqrt(sum));
        task_free(fleet_do(f->computes[i], t));
    }
    f->version++;
    mem_free(squares);
    return loss;
}

void fleet_digests(struct fleet *f, uint8_t (*ret)[HASH_BYTES])
{
    bool *seen = mem_calloc(f->model->n_tensors, sizeof *seen);

    for (uint32_t i = 0; i < f->plan.n_peers; i++) {
        struct task *t = task_new(TASK_SNAPSHOT);

        t->version = f->version;
        fleet_do(f->computes[i], t);
        for (uint32_t k = 0; k < t->n_digests; k++) {
            const uint32_t tensor = t->digest_tensors[k];

            if (seen[tensor])
                assert_memory_equal(ret[tensor], t->digests[k], HASH_BYTES);
            memcpy(ret[tensor], t->digests[k], HASH_BYTES);
            seen[tensor] = true;
        }
        task_free(t);
    }
    for (uint32_t i = 0; i < f->model->n_tensors; i++)
        assert_true(seen[i]);
    mem_free(seen);
}
