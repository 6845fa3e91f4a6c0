/* State that leaves the device and state that comes to it. A snapshot is a copy in host memory, so training goes on
 * while it is read, and what was read stays valid after it is dropped: chunks are slices of its blobs. Snapshots
 * outlive the plan under which they were taken: who asked for one may still be reading.
 *
 * Invariant: a snapshot is of one version, whole; tensors that are being joined are not in it. */
#include <assert.h>
#include <inttypes.h>

#include "model/digest.h"
#include "peer/compute_impl.h"
#include "runtime/base/mem.h"

static void snapshot_done(const struct compute *c, struct compute_snapshot *s)
{
    for (uint32_t i = 0; s->parts && i < c->model->n_tensors * PARAMS_PARTS; i++)
        blob_unref(s->parts[i]);
    mem_free(s->parts);
    *s = (struct compute_snapshot){0};
}

void compute_snapshots_done(struct compute *c)
{
    for (int i = 0; i < COMPUTE_SNAPSHOTS; i++)
        snapshot_done(c, &c->snapshots[i]);
}

static struct compute_snapshot *snapshot_find(struct compute *c, uint64_t version)
{
    for (int i = 0; i < COMPUTE_SNAPSHOTS; i++)
        if (c->snapshots[i].used && c->snapshots[i].version == version)
            return &c->snapshots[i];
    return NULL;
}

/* Where the next snapshot goes: the place of the same version, an empty one, or the oldest one's. Emptied. */
static struct compute_snapshot *snapshot_place(struct compute *c, uint64_t version)
{
    struct compute_snapshot *s = snapshot_find(c, version);

    for (int i = 0; !s && i < COMPUTE_SNAPSHOTS; i++)
        if (!c->snapshots[i].used)
            s = &c->snapshots[i];
    if (!s) {
        s = &c->snapshots[0];
        for (int i = 1; i < COMPUTE_SNAPSHOTS; i++)
            if (c->snapshots[i].taken < s->taken)
                s = &c->snapshots[i];
    }
    snapshot_done(c, s);
    return s;
}

static int copy_parts(struct compute *c, struct compute_snapshot *s, uint32_t *ret_n_held)
{
    const struct model *m = c->model;
    int r = 0;

    *ret_n_held = 0;
    s->parts = mem_calloc((size_t)m->n_tensors * PARAMS_PARTS, sizeof *s->parts);
    if (!s->parts)
        return -E_NOMEM;
    for (uint32_t tensor = 0; r == 0 && tensor < m->n_tensors; tensor++) {
        if (!params_holds(c->params, tensor) || compute_joins(c, tensor))
            continue;
        ++*ret_n_held;
        for (uint32_t part = 0; r == 0 && part < PARAMS_PARTS; part++)
            r = compute_to_blob(c, params_part(c->params, tensor, part), (size_t)m->tensors[tensor].n * sizeof(float),
                                &s->parts[tensor * PARAMS_PARTS + part]);
    }
    return compute_finish(c, r);
}

static int write_digests(const struct compute *c, const struct compute_snapshot *s, uint32_t n_held, struct task *t)
{
    t->digest_tensors = mem_calloc(n_held, sizeof *t->digest_tensors);
    t->digests = mem_calloc(n_held, sizeof *t->digests);
    if (!t->digest_tensors || !t->digests)
        return -E_NOMEM;
    for (uint32_t tensor = 0; tensor < c->model->n_tensors; tensor++) {
        const struct blob *b = s->parts[tensor * PARAMS_PARTS + PARAMS_VALUE];

        if (!b)
            continue;
        t->digest_tensors[t->n_digests] = tensor;
        digest_tensor(b->data, c->model->tensors[tensor].n, t->digests[t->n_digests++]);
    }
    assert(t->n_digests == n_held);
    return 0;
}

int compute_snapshot(struct compute *c, struct task *t)
{
    struct compute_snapshot *s = snapshot_place(c, t->version);
    uint32_t n_held;
    int r = copy_parts(c, s, &n_held);

    if (r == 0)
        r = write_digests(c, s, n_held, t);
    if (r < 0) {
        snapshot_done(c, s);
        return reason_set(&t->why, r, "snapshot of version %" PRIu64 ": %s", t->version, status_text(r));
    }
    s->used = true;
    s->version = t->version;
    s->taken = c->n_taken++;
    return 0;
}

/* Whether [offset, offset + n) lies within the part of the tensor that t names. */
static int check_range(const struct compute *c, struct task *t)
{
    if (t->tensor >= c->model->n_tensors || t->part >= PARAMS_PARTS)
        return reason_set(&t->why, -E_PROTO, "no part %" PRIu32 " of tensor %" PRIu32, t->part, t->tensor);
    const struct model_tensor *mt = &c->model->tensors[t->tensor];
    const uint64_t n = (uint64_t)mt->n;

    if (t->offset > n || t->n > n - t->offset)
        return reason_set(&t->why, -E_PROTO, "%s: elements from %" PRIu64 ", %" PRIu64 " of them, of %" PRIu64,
                          mt->name, t->offset, t->n, n);
    return 0;
}

int compute_snapshot_read(struct compute *c, struct task *t)
{
    int r = check_range(c, t);

    if (r < 0)
        return r;
    const struct compute_snapshot *s = snapshot_find(c, t->version);
    struct blob *b = s ? s->parts[t->tensor * PARAMS_PARTS + t->part] : NULL;

    if (!b)
        return reason_set(&t->why, -E_NOENT, "no snapshot of %s at version %" PRIu64, c->model->tensors[t->tensor].name,
                          t->version);
    r = blob_slice(b, (size_t)t->offset * sizeof(float), (size_t)t->n * sizeof(float), &t->out);
    if (r == 0)
        hash_of(t->out->data, t->out->size, t->hash);
    return r;
}

int compute_snapshot_drop(struct compute *c, struct task *t)
{
    struct compute_snapshot *s = snapshot_find(c, t->version);

    if (s)
        snapshot_done(c, s);
    return 0;
}

int compute_state_write(struct compute *c, struct task *t)
{
    int r = check_range(c, t);

    if (r < 0)
        return r;
    const char *name = c->model->tensors[t->tensor].name;

    if (!t->in || t->in->size != t->n * sizeof(float))
        return reason_set(&t->why, -E_PROTO, "%s: %zu bytes for %" PRIu64 " elements", name, t->in ? t->in->size : 0,
                          t->n);
    float *mem = params_part(c->params, t->tensor, t->part);

    if (!mem)
        return reason_set(&t->why, -E_NOENT, "%s is not held here", name);
    return c->kern.backend->copy(c->kern.ctx, mem + t->offset, t->in->data, t->in->size, KERN_HOST_TO_DEVICE);
}
