/* What the device keeps for a plan, and the one place where parameters change in training: the optimizer. Invariant: a
 * tensor is held if and only if this peer is a member of its group, so applying the groups' sums reaches every held
 * tensor exactly once. */
#include <assert.h>
#include <inttypes.h>

#include "peer/compute_impl.h"
#include "runtime/base/mem.h"

void compute_plan_clear(struct compute *c)
{
    const struct kern_backend *b = c->kern.backend;

    compute_slots_done(c);
    for (int i = 0; i < 2; i++) {
        b->free(c->kern.ctx, c->work[i]);
        b->free(c->kern.ctx, c->boundary[i]);
        c->work[i] = NULL;
        c->work_size[i] = 0;
        c->boundary[i] = NULL;
    }
    b->free(c->kern.ctx, c->scratch);
    c->scratch = NULL;
    for (uint32_t g = 0; c->sums && g < c->groups.n; g++)
        b->free(c->kern.ctx, c->sums[g]);
    c->sums = mem_free(c->sums);
    plan_groups_done(&c->groups);
    c->held = mem_free(c->held);
    c->params = params_free(c->params);
}

/* Zeroed, so that no sum is ever made of undefined bytes. */
static int alloc_sums(struct compute *c, uint32_t peer)
{
    c->sums = mem_calloc(c->groups.n, sizeof *c->sums);
    if (!c->sums)
        return -E_NOMEM;
    for (uint32_t g = 0; g < c->groups.n; g++) {
        const size_t n_bytes = (size_t)c->groups.groups[g].n_elems * sizeof(float);
        void *mem;

        if (plan_group_member(&c->groups.groups[g], peer) == UINT32_MAX)
            continue;
        int r = c->kern.backend->alloc(c->kern.ctx, n_bytes, &mem);

        if (r < 0)
            return r;
        c->sums[g] = mem;
        r = c->kern.backend->zero(c->kern.ctx, mem, n_bytes);
        if (r < 0)
            return r;
    }
    return 0;
}

static int alloc_running(struct compute *c)
{
    const size_t n_bytes = (size_t)model_boundary_elems(c->model) * sizeof(float);
    int r = c->kern.backend->alloc(c->kern.ctx, unit_scratch_bytes(c->model), &c->scratch);

    for (int i = 0; r == 0 && i < 2; i++) {
        void *mem;

        r = c->kern.backend->alloc(c->kern.ctx, n_bytes, &mem);
        if (r == 0)
            c->boundary[i] = mem;
    }
    return r;
}

int compute_setup(struct compute *c, struct task *t)
{
    const struct model *m = c->model;

    assert(t->plan && t->plan->n_units == m->n_units && t->peer < t->plan->n_peers);
    compute_plan_clear(c);
    c->held = mem_calloc(m->n_units, sizeof(bool));
    int r = c->held ? plan_groups(t->plan, m, &c->groups) : -E_NOMEM;

    if (r == 0) {
        plan_held(t->plan, t->peer, c->held);
        r = params_new(m, &c->kern, c->config.reduction, c->held, &c->params);
    }
    if (r == 0)
        r = alloc_sums(c, t->peer);
    if (r == 0)
        r = alloc_running(c);
    if (r == 0 && !t->fetch)
        r = params_init(c->params, t->seed);
    if (r < 0) {
        const size_t n_bytes = c->held ? params_bytes(m, c->config.reduction, c->held) : 0;

        reason_set(&t->why, r, "setting up the units of plan %" PRIu64 " (%zu MiB of state): %s", t->plan->epoch,
                   n_bytes >> 20, status_text(r));
        compute_plan_clear(c);
    }
    return r;
}

/* One optimizer step on every tensor of a group. */
static int apply_group(struct compute *c, const struct plan_group *g, const float *sums,
                       const struct kern_adamw *update)
{
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const uint32_t tensor = g->tensors[i];
        const struct model_tensor *mt = &c->model->tensors[tensor];
        struct kern_adamw h = *update;

        if (!mt->decay)
            h.weight_decay = 0;
        int r = c->kern.ops->adamw(c->kern.ctx, params_part(c->params, tensor, PARAMS_VALUE),
                                   params_part(c->params, tensor, PARAMS_MOMENT1),
                                   params_part(c->params, tensor, PARAMS_MOMENT2), sums + g->offsets[i], &h, mt->n);

        if (r < 0)
            return r;
    }
    return 0;
}

int compute_apply(struct compute *c, struct task *t)
{
    int r = 0;

    for (uint32_t g = 0; r == 0 && !t->skipped && g < c->groups.n; g++)
        if (c->sums[g])
            r = apply_group(c, &c->groups.groups[g], c->sums[g], &t->update);
    if (r == 0)
        r = params_sums_clear(c->params);
    r = compute_finish(c, r);
    compute_slots_clear(c);
    return r;
}

int compute_forget(struct compute *c, struct task *t)
{
    int r = compute_finish(c, params_sums_clear(c->params));

    (void)t;
    compute_slots_clear(c);
    return r;
}
