/* A group's gradient sums. What this peer accumulated (per tensor and use, in params) is added up over a range of the
 * group's flat elements, added to what others sent, rounded once to fp32, and kept in the group's sums until the commit
 * that applies them. Local sums are only read here, so a broken reduce can be tried again.
 *
 * Invariant: the order of additions is own part first, then the others' in member order; `exact` does not care. */
#include <assert.h>
#include <inttypes.h>

#include "peer/compute_impl.h"
#include "runtime/base/mem.h"

/* Bytes of device memory hashed at a time where the device's memory is not the host's. */
#define DIGEST_BYTES ((size_t)4 << 20)

/* Bytes of one element of a partial sum. */
static size_t elem_bytes(const struct compute *c)
{
    return c->config.reduction == JOB_REDUCTION_EXACT ? sizeof(int64_t) : sizeof(float);
}

/* The group that t names and its range, both checked. */
static int range_of(const struct compute *c, struct task *t, const struct plan_group **ret)
{
    if (t->group >= c->groups.n || !c->sums[t->group])
        return reason_set(&t->why, -E_PROTO, "group %" PRIu32 " is not reduced here", t->group);
    const struct plan_group *g = &c->groups.groups[t->group];
    const uint64_t n = (uint64_t)g->n_elems;

    if (t->offset > n || t->n > n - t->offset)
        return reason_set(&t->why, -E_PROTO,
                          "group %" PRIu32 ": elements from %" PRIu64 ", %" PRIu64 " of them, of %" PRIu64, t->group,
                          t->offset, t->n, n);
    *ret = g;
    return 0;
}

static int check_size(struct task *t, const struct blob *b, size_t each)
{
    const size_t n_bytes = (size_t)t->n * each;

    if (!b || b->size != n_bytes)
        return reason_set(&t->why, -E_PROTO, "group %" PRIu32 ": %zu bytes for %" PRIu64 " elements instead of %zu",
                          t->group, b ? b->size : 0, t->n, n_bytes);
    return 0;
}

int compute_work(struct compute *c, int i, size_t n_bytes, void **ret)
{
    if (n_bytes > c->work_size[i]) {
        void *mem;
        int r = c->kern.backend->alloc(c->kern.ctx, n_bytes, &mem);

        if (r < 0)
            return r;
        c->kern.backend->free(c->kern.ctx, c->work[i]);
        c->work[i] = mem;
        c->work_size[i] = n_bytes;
    }
    *ret = c->work[i];
    return 0;
}

/* acc += other: n elements of a partial sum, device. */
static int add(struct compute *c, void *acc, const void *other, uint64_t n)
{
    if (c->config.reduction == JOB_REDUCTION_EXACT)
        return c->kern.ops->exact_add(c->kern.ctx, acc, other, (int64_t)n);
    return c->kern.ops->add(c->kern.ctx, acc, acc, other, (int64_t)n);
}

/* out = this peer's sum of elements [from, from + n) of a tensor, over the uses whose units are held here. */
static int gather_tensor(struct compute *c, uint32_t tensor, uint64_t from, uint64_t n, char *out)
{
    const size_t each = elem_bytes(c);
    bool first = true;
    int r = 0;

    for (uint32_t use = 0; r == 0 && use < c->model->tensors[tensor].n_uses; use++) {
        const char *sum = params_sum(c->params, tensor, use);

        if (!sum)
            continue;
        r = first ? c->kern.backend->copy(c->kern.ctx, out, sum + from * each, n * each, KERN_DEVICE_TO_DEVICE)
                  : add(c, out, sum + from * each, n);
        first = false;
    }
    assert(!first);
    return r;
}

/* acc = this peer's sum of the task's range. */
static int gather(struct compute *c, const struct plan_group *g, const struct task *t, void *acc)
{
    const uint64_t end = t->offset + t->n;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < g->n_tensors; i++) {
        const uint64_t t0 = (uint64_t)g->offsets[i], t1 = t0 + (uint64_t)c->model->tensors[g->tensors[i]].n;
        const uint64_t lo = t0 > t->offset ? t0 : t->offset, hi = t1 < end ? t1 : end;

        if (lo < hi)
            r = gather_tensor(c, g->tensors[i], lo - t0, hi - lo, (char *)acc + (lo - t->offset) * elem_bytes(c));
    }
    return r;
}

int compute_partial(struct compute *c, struct task *t)
{
    const struct plan_group *g = NULL;
    void *acc;
    int r = range_of(c, t, &g);

    if (r < 0)
        return r;
    const size_t n_bytes = (size_t)t->n * elem_bytes(c);

    if (compute_on_host(c)) {
        r = blob_new(n_bytes, &t->out);
        return r < 0 ? r : gather(c, g, t, t->out->data);
    }
    r = compute_work(c, 0, n_bytes, &acc);
    if (r == 0)
        r = gather(c, g, t, acc);
    return r < 0 ? r : compute_to_blob(c, acc, n_bytes, &t->out);
}

/* acc += a part that came from another member; or acc = it, if it is the first. */
static int add_part(struct compute *c, void *acc, const struct blob *part, uint64_t n, bool first)
{
    const struct kern_backend *b = c->kern.backend;
    void *mem;

    if (first)
        return b->copy(c->kern.ctx, acc, part->data, part->size, KERN_HOST_TO_DEVICE);
    if (compute_on_host(c) && (uintptr_t)part->data % elem_bytes(c) == 0)
        return add(c, acc, part->data, n);
    int r = compute_work(c, 1, part->size, &mem);

    if (r == 0)
        r = b->copy(c->kern.ctx, mem, part->data, part->size, KERN_HOST_TO_DEVICE);
    return r < 0 ? r : add(c, acc, mem, n);
}

int compute_sum(struct compute *c, struct task *t)
{
    const bool exact = c->config.reduction == JOB_REDUCTION_EXACT;
    const struct plan_group *g = NULL;
    int r = range_of(c, t, &g);

    for (uint32_t i = 0; r == 0 && i < t->n_parts; i++)
        r = check_size(t, t->parts[i], elem_bytes(c));
    if (r < 0)
        return r;
    float *sums = c->sums[t->group] + t->offset;
    void *acc = sums;

    if (exact)
        r = compute_work(c, 0, (size_t)t->n * elem_bytes(c), &acc);
    if (r == 0 && t->contributes)
        r = gather(c, g, t, acc);
    else if (r == 0 && t->n_parts == 0)
        r = c->kern.backend->zero(c->kern.ctx, acc, (size_t)t->n * elem_bytes(c));
    for (uint32_t i = 0; r == 0 && i < t->n_parts; i++)
        r = add_part(c, acc, t->parts[i], t->n, i == 0 && !t->contributes);
    if (r == 0 && exact)
        r = c->kern.ops->exact_round(c->kern.ctx, sums, acc, (int64_t)t->n);
    return r < 0 ? r : compute_to_blob(c, sums, (size_t)t->n * sizeof(float), &t->out);
}

int compute_store(struct compute *c, struct task *t)
{
    const struct plan_group *g = NULL;
    int r = range_of(c, t, &g);

    if (r == 0)
        r = check_size(t, t->in, sizeof(float));
    if (r < 0)
        return r;
    return c->kern.backend->copy(c->kern.ctx, c->sums[t->group] + t->offset, t->in->data, t->in->size,
                                 KERN_HOST_TO_DEVICE);
}

int compute_stored(struct compute *c, struct task *t)
{
    const struct plan_group *g = NULL;
    int r = range_of(c, t, &g);

    return r < 0 ? r : compute_to_blob(c, c->sums[t->group] + t->offset, (size_t)t->n * sizeof(float), &t->out);
}

/* BLAKE2b-256 of n_bytes of device memory, as they lie: little-endian everywhere Shoal runs. */
static int hash_device(struct compute *c, const void *mem, size_t n_bytes, uint8_t ret[HASH_BYTES])
{
    struct hash h;
    int r = 0;

    if (compute_on_host(c)) {
        hash_of(mem, n_bytes, ret);
        return 0;
    }
    hash_init(&h);
    for (size_t at = 0; r == 0 && at < n_bytes; at += DIGEST_BYTES) {
        const size_t n = n_bytes - at < DIGEST_BYTES ? n_bytes - at : DIGEST_BYTES;
        struct blob *b = NULL;

        r = compute_finish(c, compute_to_blob(c, (const char *)mem + at, n, &b));
        if (r == 0)
            hash_update(&h, b->data, n);
        blob_unref(b);
    }
    if (r == 0)
        hash_final(&h, ret);
    return r;
}

int compute_digest(struct compute *c, struct task *t)
{
    const struct plan_group *g = NULL;
    int r = range_of(c, t, &g);

    if (r < 0)
        return r;
    const float *sums = c->sums[t->group];

    t->sum_squares = mem_calloc(g->n_tensors, sizeof(double));
    if (!t->sum_squares)
        return -E_NOMEM;
    for (uint32_t i = 0; r == 0 && i < g->n_tensors; i++)
        r = c->kern.ops->sum_squares(c->kern.ctx, &t->sum_squares[i], sums + g->offsets[i],
                                     c->model->tensors[g->tensors[i]].n);
    return r < 0 ? r : hash_device(c, sums, (size_t)g->n_elems * sizeof(float), t->hash);
}
