/* How long the units of this model take on this device: real units, real kernels, made-up numbers. Blocks are alike, so
 * one of each kind is timed. No plan is needed: the parameters of one unit at a time are allocated, used and freed. */
#include <assert.h>
#include <stdlib.h>

#include "peer/compute_impl.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define RUNS_MIN 3 /* measurements, if one does not use up the budget alone */
#define RUNS_MAX 64
#define KINDS    3

/* A microbatch in one unit, and all it needs. */
struct trial {
    struct compute *c;
    uint32_t u;
    struct params *params;
    struct unit_run run;
    void *mem[6]; /* device memory, freed at the end */
    int n_mem;
    float *out, *dout, *din;
    double forward[RUNS_MAX], backward[RUNS_MAX]; /* seconds */
    int n;
};

static int trial_alloc(struct trial *p, size_t n_bytes, void **ret)
{
    assert(p->n_mem < (int)(sizeof p->mem / sizeof *p->mem));
    int r = p->c->kern.backend->alloc(p->c->kern.ctx, n_bytes, ret);

    if (r == 0)
        p->mem[p->n_mem++] = *ret;
    return r;
}

/* A boundary tensor of normal numbers. */
static int trial_boundary(struct trial *p, uint64_t key, float std, float **ret)
{
    const int64_t n = model_boundary_elems(p->c->model);
    void *mem;
    int r = trial_alloc(p, (size_t)n * sizeof(float), &mem);

    if (r < 0)
        return r;
    *ret = mem;
    return p->c->kern.ops->init_normal(p->c->kern.ctx, mem, key, 0.0f, std, n);
}

/* A (B,T) array of ids spread over the vocabulary. */
static int trial_ids(struct trial *p, const int32_t **ret)
{
    const struct model *m = p->c->model;
    const size_t n = (size_t)m->B * m->n_ctx;
    int32_t *ids = mem_calloc(n, sizeof *ids);
    void *mem;

    if (!ids)
        return -E_NOMEM;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 2654435761u % m->n_vocab);
    int r = trial_alloc(p, n * sizeof *ids, &mem);

    if (r == 0)
        r = compute_finish(p->c,
                           p->c->kern.backend->copy(p->c->kern.ctx, mem, ids, n * sizeof *ids, KERN_HOST_TO_DEVICE));
    if (r == 0)
        *ret = mem;
    mem_free(ids);
    return r;
}

static int trial_begin(struct trial *p, const bool *held)
{
    struct compute *c = p->c;
    const size_t n_saved = unit_saved_bytes(c->model, p->u);
    float *in = NULL;
    int r = params_new(c->model, &c->kern, c->config.reduction, held, &p->params);

    if (r == 0)
        r = params_init(p->params, 1);
    if (r == 0)
        r = trial_boundary(p, 1, 1.0f, &in);
    if (r == 0)
        r = trial_boundary(p, 2, 1e-3f, &p->dout);
    if (r == 0)
        r = trial_boundary(p, 3, 0.0f, &p->out);
    p->din = p->out; /* nobody reads the output */
    if (r == 0)
        r = trial_ids(p, &p->run.tokens);
    if (r == 0)
        r = trial_alloc(p, unit_scratch_bytes(c->model), &p->run.scratch);
    if (r == 0 && n_saved > 0)
        r = trial_alloc(p, n_saved, &p->run.saved);
    p->run.model = c->model;
    p->run.kern = &c->kern;
    p->run.in = in;
    p->run.targets = p->run.tokens;
    if (r == 0)
        p->run.params = params_unit(p->params, p->u);
    return compute_finish(c, r);
}

static void trial_end(struct trial *p)
{
    for (int i = 0; i < p->n_mem; i++)
        p->c->kern.backend->free(p->c->kern.ctx, p->mem[i]);
    params_free(p->params);
}

/* One microbatch forward and backward. */
static int trial_run(struct trial *p, double *ret_forward, double *ret_backward)
{
    const float loss_scale = 1.0f / ((float)p->c->model->B * (float)p->c->model->n_ctx * (float)p->c->model->M);
    const int64_t begin = clock_now_ns();
    double loss;
    int r = compute_finish(p->c, unit_forward(&p->run, p->u, p->out, &loss));
    const int64_t middle = clock_now_ns();

    if (r == 0)
        r = unit_backward(&p->run, p->u, p->dout, p->din, params_unit_grads(p->params, p->u), loss_scale);
    if (r == 0)
        r = params_accumulate(p->params, p->u, NULL);
    r = compute_finish(p->c, r);
    *ret_forward = (double)(middle - begin) / 1e9;
    *ret_backward = (double)(clock_now_ns() - middle) / 1e9;
    return r;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *seconds, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, ascending);
    return n % 2 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
}

/* Warm-up, then measurements until the budget is used up: RUNS_MIN at least, fewer only if they are long. */
static int trial_measure(struct trial *p, int64_t budget_ns)
{
    const int64_t begin = clock_now_ns();
    double forward, backward;
    int r = trial_run(p, &forward, &backward);

    while (r == 0 && p->n < RUNS_MAX) {
        const int64_t used = clock_now_ns() - begin;

        if (p->n > 0 && used >= budget_ns && (p->n >= RUNS_MIN || used / (p->n + 1) >= budget_ns / (RUNS_MIN + 1)))
            break;
        r = trial_run(p, &p->forward[p->n], &p->backward[p->n]);
        p->n++;
    }
    return r;
}

int compute_profile(struct compute *c, int64_t budget_ns, double *forward_s, double *backward_s, struct reason *why)
{
    const struct model *m = c->model;
    bool *held = mem_calloc(m->n_units, sizeof *held);
    uint32_t done[KINDS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX}; /* the unit timed of each kind */

    assert(!c->begun && budget_ns > 0);
    if (!held)
        return reason_set(why, -E_NOMEM, "out of memory for timing this device");
    for (uint32_t u = 0; u < m->n_units; u++) {
        const unsigned kind = m->units[u].kind;

        assert(kind < KINDS);
        if (done[kind] != UINT32_MAX) {
            forward_s[u] = forward_s[done[kind]];
            backward_s[u] = backward_s[done[kind]];
            continue;
        }
        struct trial p = {.c = c, .u = u};
        held[u] = true;
        int r = trial_begin(&p, held);

        if (r == 0)
            r = trial_measure(&p, budget_ns / KINDS);
        trial_end(&p);
        held[u] = false;
        if (r < 0) {
            mem_free(held);
            return reason_set(why, r, "timing unit %u on device %s: %s", u, c->kern.backend->name, status_text(r));
        }
        forward_s[u] = median(p.forward, p.n) / c->config.speed;
        backward_s[u] = median(p.backward, p.n) / c->config.speed;
        done[kind] = u;
    }
    mem_free(held);
    return 0;
}
