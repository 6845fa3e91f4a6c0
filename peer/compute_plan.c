/* What the device keeps for a plan, and the one place where parameters change in training: the optimizer. Invariant: a
 * tensor is held if and only if this peer is a member of its group, so applying the groups' sums reaches every held
 * tensor exactly once: those that are being joined by replay, the others by the commit itself. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "peer/compute_impl.h"
#include "runtime/base/mem.h"

/* What depends on the plan and is no state. */
static void groups_clear(struct compute *c)
{
    for (uint32_t g = 0; c->sums && g < c->groups.n; g++)
        c->kern.backend->free(c->kern.ctx, c->sums[g]);
    c->sums = mem_free(c->sums);
    c->joins = mem_free(c->joins);
    plan_groups_done(&c->groups);
    c->held = mem_free(c->held);
}

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
    groups_clear(c);
    c->params = params_free(c->params);
}

/* Whether the peer is a member, and whether a joining one. */
static bool is_member(const struct plan_group *g, uint32_t peer, bool *ret_joins)
{
    for (uint32_t i = 0; i < g->n_members; i++)
        if (g->members[i] == peer) {
            *ret_joins = g->joining[i];
            return true;
        }
    return false;
}

bool compute_joins(const struct compute *c, uint32_t tensor)
{
    for (uint32_t g = 0; g < c->groups.n; g++)
        for (uint32_t i = 0; c->joins[g] && i < c->groups.groups[g].n_tensors; i++)
            if (c->groups.groups[g].tensors[i] == tensor)
                return true;
    return false;
}

/* Zeroed, so that no sum is ever made of undefined bytes. */
static int alloc_sums(struct compute *c, uint32_t peer)
{
    c->sums = mem_calloc(c->groups.n, sizeof *c->sums);
    c->joins = mem_calloc(c->groups.n, sizeof *c->joins);
    if (!c->sums || !c->joins)
        return -E_NOMEM;
    for (uint32_t g = 0; g < c->groups.n; g++) {
        const size_t n_bytes = (size_t)c->groups.groups[g].n_elems * sizeof(float);
        void *mem;

        if (!is_member(&c->groups.groups[g], peer, &c->joins[g]) || c->joins[g])
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
    int r = 0;

    if (c->scratch) /* a plan before this one has it all */
        return 0;
    r = c->kern.backend->alloc(c->kern.ctx, unit_scratch_bytes(c->model), &c->scratch);
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
    if (t->keep) {
        compute_slots_clear(c);
        groups_clear(c);
    } else {
        compute_plan_clear(c);
    }
    c->held = mem_calloc(m->n_units, sizeof(bool));
    int r = c->held ? plan_groups(t->plan, m, &c->groups) : -E_NOMEM;

    if (r == 0) {
        plan_held(t->plan, t->peer, c->held); /* memory for what is joined, too */
        r = c->params ? params_change(c->params, c->held)
                      : params_new(m, &c->kern, c->config.reduction, c->held, &c->params);
    }
    if (r == 0)
        r = alloc_sums(c, t->peer);
    if (r == 0)
        r = alloc_running(c);
    if (r == 0 && !t->fetch && !t->keep)
        r = params_init(c->params, t->seed);
    if (r < 0) {
        const size_t n_bytes = c->held ? params_bytes(m, c->config.reduction, c->held) : 0;

        reason_set(&t->why, r, "setting up the units of plan %" PRIu64 " (%zu MiB of state): %s", t->plan->epoch,
                   n_bytes >> 20, status_text(r));
        compute_plan_clear(c);
    } else {
        plan_current(t->plan, t->peer, c->held);
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

/* The group's sums, from the pieces they came in, on the device; checked against the commit's hash. */
static int put_together(struct compute *c, struct task *t, const struct plan_group *g, float **ret)
{
    struct hash h;
    uint8_t hash[HASH_BYTES];
    size_t at = 0;
    void *mem;
    int r = compute_work(c, 0, (size_t)g->n_elems * sizeof(float), &mem);

    hash_init(&h);
    for (uint32_t i = 0; r == 0 && i < t->n_parts; i++) {
        const struct blob *b = t->parts[i];

        if (b->size > (size_t)g->n_elems * sizeof(float) - at)
            return reason_set(&t->why, -E_CORRUPT, "group %" PRIu32 ": more sums than elements", t->group);
        hash_update(&h, b->data, b->size);
        r = c->kern.backend->copy(c->kern.ctx, (char *)mem + at, b->data, b->size, KERN_HOST_TO_DEVICE);
        at += b->size;
    }
    hash_final(&h, hash);
    if (r == 0 && (at != (size_t)g->n_elems * sizeof(float) || memcmp(hash, t->hash, HASH_BYTES) != 0))
        return reason_set(&t->why, -E_CORRUPT, "group %" PRIu32 ": not the sums that step %" PRIu64 " commits",
                          t->group, t->step);
    *ret = mem;
    return r;
}

int compute_replay(struct compute *c, struct task *t)
{
    float *sums = NULL;

    if (t->group >= c->groups.n || !c->joins[t->group])
        return reason_set(&t->why, -E_PROTO, "group %" PRIu32 " is not joined here", t->group);
    int r = put_together(c, t, &c->groups.groups[t->group], &sums);

    return r < 0 ? r : apply_group(c, &c->groups.groups[t->group], sums, &t->update);
}
