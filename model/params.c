/* What a holder keeps of the units it holds. One device allocation per (tensor, part) and per (tensor, use), so that a
 * device with small buffers can hold a large model. This file knows nothing of architectures: units and tensors are as
 * the model lists them. Invariant: a tensor is held if one of its uses' units is, and its memory stays where it is as
 * long as it is held. */
#include "model/params.h"

#include <assert.h>
#include <math.h>

#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "runtime/base/status.h"

#define UNIT_TENSORS_MAX (sizeof(((struct model_unit *)0)->tensor) / sizeof(uint32_t))

struct tensor_state {
    float *part[PARAMS_PARTS]; /* NULL: not held */
    void *sum[MODEL_USES_MAX]; /* NULL: that use's unit is not held */
};

struct unit_state {
    bool held;
    float *value[UNIT_TENSORS_MAX];
    float *grad[UNIT_TENSORS_MAX]; /* into the shared scratch */
};

struct params {
    const struct model *model;
    struct kern *kern;
    enum job_reduction reduction;
    struct tensor_state *tensors;
    struct unit_state *units;
    float *scratch;
};

static size_t round64(size_t n_bytes)
{
    return (n_bytes + 63) & ~(size_t)63;
}

static size_t sum_bytes(enum job_reduction reduction, int64_t n)
{
    return (size_t)n * (reduction == JOB_REDUCTION_EXACT ? sizeof(int64_t) : sizeof(float));
}

static bool tensor_held(const struct model_tensor *t, const bool *held)
{
    for (uint32_t i = 0; i < t->n_uses; i++)
        if (held[t->use_unit[i]])
            return true;
    return false;
}

/* Bytes of the scratch: the largest held unit's gradients, each at a multiple of 64 bytes. */
static size_t scratch_bytes(const struct model *m, const bool *held)
{
    size_t most = 0;

    for (uint32_t u = 0; u < m->n_units; u++) {
        size_t n = 0;

        if (!held[u])
            continue;
        for (uint32_t i = 0; i < m->units[u].n_tensors; i++)
            n += round64((size_t)m->tensors[m->units[u].tensor[i]].n * sizeof(float));
        if (n > most)
            most = n;
    }
    return most;
}

size_t params_bytes(const struct model *m, enum job_reduction reduction, const bool *held)
{
    size_t n = scratch_bytes(m, held);

    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const struct model_tensor *tensor = &m->tensors[t];

        if (!tensor_held(tensor, held))
            continue;
        n += PARAMS_PARTS * round64((size_t)tensor->n * sizeof(float));
        for (uint32_t i = 0; i < tensor->n_uses; i++)
            if (held[tensor->use_unit[i]])
                n += round64(sum_bytes(reduction, tensor->n));
    }
    return n;
}

static int alloc_tensor(struct params *p, uint32_t t, const bool *held)
{
    const struct kern_backend *b = p->kern->backend;
    const struct model_tensor *tensor = &p->model->tensors[t];
    struct tensor_state *s = &p->tensors[t];
    const size_t n_bytes = (size_t)tensor->n * sizeof(float);
    void *mem;
    int r;

    for (int part = 0; part < PARAMS_PARTS; part++) {
        if (s->part[part])
            continue;
        r = b->alloc(p->kern->ctx, n_bytes, &mem);
        if (r < 0)
            return r;
        s->part[part] = mem;
        if (part != PARAMS_VALUE) {
            r = b->zero(p->kern->ctx, mem, n_bytes);
            if (r < 0)
                return r;
        }
    }
    for (uint32_t i = 0; i < tensor->n_uses; i++) {
        if (!held[tensor->use_unit[i]] || s->sum[i])
            continue;
        r = b->alloc(p->kern->ctx, sum_bytes(p->reduction, tensor->n), &s->sum[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

static void fill_units(struct params *p, const bool *held)
{
    const struct model *m = p->model;

    for (uint32_t u = 0; u < m->n_units; u++) {
        size_t at = 0;

        p->units[u].held = held[u];
        if (!held[u])
            continue;
        for (uint32_t i = 0; i < m->units[u].n_tensors; i++) {
            const uint32_t t = m->units[u].tensor[i];

            p->units[u].value[i] = p->tensors[t].part[PARAMS_VALUE];
            p->units[u].grad[i] = p->scratch + at / sizeof(float);
            at += round64((size_t)m->tensors[t].n * sizeof(float));
        }
    }
}

/* Frees what of tensor t is not needed to hold these units. */
static void drop_tensor(struct params *p, uint32_t t, const bool *held)
{
    const struct kern_backend *b = p->kern->backend;
    const struct model_tensor *tensor = &p->model->tensors[t];
    struct tensor_state *s = &p->tensors[t];

    for (int part = 0; part < PARAMS_PARTS && !tensor_held(tensor, held); part++) {
        b->free(p->kern->ctx, s->part[part]);
        s->part[part] = NULL;
    }
    for (uint32_t i = 0; i < tensor->n_uses; i++) {
        if (held[tensor->use_unit[i]])
            continue;
        b->free(p->kern->ctx, s->sum[i]);
        s->sum[i] = NULL;
    }
}

int params_change(struct params *p, const bool *held)
{
    const struct model *m = p->model;
    const size_t n_scratch = scratch_bytes(m, held);
    int r;

    for (uint32_t t = 0; t < m->n_tensors; t++)
        drop_tensor(p, t, held);
    p->kern->backend->free(p->kern->ctx, p->scratch);
    p->scratch = NULL;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        if (!tensor_held(&m->tensors[t], held))
            continue;
        r = alloc_tensor(p, t, held);
        if (r < 0)
            return r;
    }
    if (n_scratch > 0) {
        void *mem;

        r = p->kern->backend->alloc(p->kern->ctx, n_scratch, &mem);
        if (r < 0)
            return r;
        p->scratch = mem;
    }
    fill_units(p, held);
    return params_sums_clear(p);
}

int params_new(const struct model *m, struct kern *k, enum job_reduction reduction, const bool *held,
               struct params **ret)
{
    struct params *p = mem_calloc(1, sizeof(*p));
    int r;

    if (!p)
        return -E_NOMEM;
    p->model = m;
    p->kern = k;
    p->reduction = reduction;
    p->tensors = mem_calloc(m->n_tensors, sizeof(*p->tensors));
    p->units = mem_calloc(m->n_units, sizeof(*p->units));
    r = p->tensors && p->units ? params_change(p, held) : -E_NOMEM;
    if (r < 0) {
        params_free(p);
        return r;
    }
    *ret = p;
    return 0;
}

struct params *params_free(struct params *p)
{
    if (!p)
        return NULL;
    for (uint32_t t = 0; p->tensors && t < p->model->n_tensors; t++) {
        for (int part = 0; part < PARAMS_PARTS; part++)
            p->kern->backend->free(p->kern->ctx, p->tensors[t].part[part]);
        for (int i = 0; i < MODEL_USES_MAX; i++)
            p->kern->backend->free(p->kern->ctx, p->tensors[t].sum[i]);
    }
    p->kern->backend->free(p->kern->ctx, p->scratch);
    mem_free(p->tensors);
    mem_free(p->units);
    return mem_free(p);
}

int params_init(struct params *p, uint64_t seed)
{
    const struct kern_backend *b = p->kern->backend;

    for (uint32_t t = 0; t < p->model->n_tensors; t++) {
        const struct model_tensor *tensor = &p->model->tensors[t];
        struct tensor_state *s = &p->tensors[t];
        int r;

        if (!s->part[PARAMS_VALUE])
            continue;
        r = b->ops->init_normal(p->kern->ctx, s->part[PARAMS_VALUE], rng_key(seed, tensor->name), tensor->init_mean,
                                tensor->init_std, tensor->n);
        for (int part = PARAMS_MOMENT1; r == 0 && part < PARAMS_PARTS; part++)
            r = b->zero(p->kern->ctx, s->part[part], (size_t)tensor->n * sizeof(float));
        if (r < 0)
            return r;
    }
    return b->sync(p->kern->ctx);
}

bool params_holds(const struct params *p, uint32_t tensor)
{
    assert(tensor < p->model->n_tensors);
    return p->tensors[tensor].part[PARAMS_VALUE] != NULL;
}

float *params_part(struct params *p, uint32_t tensor, enum params_part part)
{
    assert(tensor < p->model->n_tensors && part < PARAMS_PARTS);
    return p->tensors[tensor].part[part];
}

float *const *params_unit(struct params *p, uint32_t u)
{
    assert(u < p->model->n_units);
    return p->units[u].held ? p->units[u].value : NULL;
}

float *const *params_unit_grads(struct params *p, uint32_t u)
{
    assert(u < p->model->n_units);
    return p->units[u].held ? p->units[u].grad : NULL;
}

float params_exact_bound(const struct model *m, uint32_t tensor)
{
    const double limit = 2048.0 / ((double)m->M * m->tensors[tensor].n_uses);
    float bound = (float)limit;

    /* Strictly below: M elements of exactly 2^11/M would reach 2^63, one too many. */
    while ((double)bound >= limit)
        bound = nextafterf(bound, 0.0f);
    return bound;
}

static int accumulate_exact(struct params *p, uint32_t u, bool *ret_flagged)
{
    const struct model_unit *unit = &p->model->units[u];
    uint32_t flags[UNIT_TENSORS_MAX] = {0}; /* written by the device until sync */
    bool flagged = false;
    int r = 0, sync;

    for (uint32_t i = 0; r == 0 && i < unit->n_tensors; i++) {
        const uint32_t t = unit->tensor[i];

        r = p->kern->ops->exact_accumulate(p->kern->ctx, p->tensors[t].sum[unit->use[i]], p->units[u].grad[i],
                                           params_exact_bound(p->model, t), &flags[i], p->model->tensors[t].n);
    }
    sync = p->kern->backend->sync(p->kern->ctx);
    if (r < 0 || sync < 0)
        return r < 0 ? r : sync;
    for (uint32_t i = 0; i < unit->n_tensors; i++)
        flagged = flagged || flags[i] != 0;
    if (flagged && ret_flagged)
        *ret_flagged = true;
    return 0;
}

int params_accumulate(struct params *p, uint32_t u, bool *ret_flagged)
{
    const struct model_unit *unit = &p->model->units[u];

    assert(u < p->model->n_units && p->units[u].held);
    if (p->reduction == JOB_REDUCTION_EXACT)
        return accumulate_exact(p, u, ret_flagged);
    for (uint32_t i = 0; i < unit->n_tensors; i++) {
        const uint32_t t = unit->tensor[i];
        float *sum = p->tensors[t].sum[unit->use[i]];
        int r = p->kern->ops->add(p->kern->ctx, sum, sum, p->units[u].grad[i], p->model->tensors[t].n);

        if (r < 0)
            return r;
    }
    return 0;
}

void *params_sum(struct params *p, uint32_t tensor, uint32_t use)
{
    assert(tensor < p->model->n_tensors && use < MODEL_USES_MAX);
    return p->tensors[tensor].sum[use];
}

int params_sums_clear(struct params *p)
{
    for (uint32_t t = 0; t < p->model->n_tensors; t++) {
        for (int i = 0; i < MODEL_USES_MAX; i++) {
            int r;

            if (!p->tensors[t].sum[i])
                continue;
            r = p->kern->backend->zero(p->kern->ctx, p->tensors[t].sum[i],
                                       sum_bytes(p->reduction, p->model->tensors[t].n));
            if (r < 0)
                return r;
        }
    }
    return 0;
}
