/* The fake device's reduces, updates and snapshots. See device.h. */
#include <string.h>

#include "model/digest.h"
#include "runtime/base/mem.h"
#include "sim/device_impl.h"

/* The group's range that a task speaks of; NULL after a complaint. */
static const struct plan_group *group_of(struct device *d, const struct task *t)
{
    const struct plan_group *g = t->group < d->groups.n ? &d->groups.groups[t->group] : NULL;

    if (!g || !d->group_sums[t->group] || t->offset > (uint64_t)g->n_elems || t->n > (uint64_t)g->n_elems - t->offset) {
        device_complain(d, t, "a range of a group that is not reduced here");
        return NULL;
    }
    return g;
}

/* Adds this peer's own sums of the group's elements [offset, offset + n) to out. */
static void add_own(const struct device *d, const struct plan_group *g, uint64_t offset, uint64_t n, int64_t *out)
{
    for (uint32_t k = 0; k < g->n_tensors; k++) {
        const struct model_tensor *m = &d->model->tensors[g->tensors[k]];
        uint64_t lo = (uint64_t)g->offsets[k], hi = lo + (uint64_t)m->n;

        for (uint64_t e = lo > offset ? lo : offset; e < hi && e < offset + n; e++)
            for (uint32_t u = 0; u < m->n_uses; u++)
                if (d->tensors[g->tensors[k]].sum[u])
                    out[e - offset] += d->tensors[g->tensors[k]].sum[u][e - lo];
    }
}

static void run_partial(struct device *d, struct task *t, const struct plan_group *g)
{
    t->status = blob_new(t->n * sizeof(int64_t), &t->out);
    if (t->status < 0)
        return;
    memset(t->out->data, 0, t->out->size);
    add_own(d, g, t->offset, t->n, t->out->data);
}

static void run_sum(struct device *d, struct task *t, const struct plan_group *g)
{
    cleanup_mem_ int64_t *sum = mem_calloc(t->n, sizeof *sum);

    t->status = sum ? blob_new(t->n * sizeof(float), &t->out) : -E_NOMEM;
    if (t->status < 0)
        return;
    if (t->contributes)
        add_own(d, g, t->offset, t->n, sum);
    for (uint32_t p = 0; p < t->n_parts; p++) {
        if (t->parts[p]->size != t->n * sizeof(int64_t)) {
            device_complain(d, t, "a contribution of another size");
            return;
        }
        /* Unsigned, so that a hostile contribution cannot overflow. */
        for (uint64_t i = 0; i < t->n; i++)
            sum[i] = (int64_t)((uint64_t)sum[i] + ((const uint64_t *)t->parts[p]->data)[i]);
    }
    for (uint64_t i = 0; i < t->n; i++)
        ((float *)t->out->data)[i] = (float)((double)sum[i] * 0x1p-24);
    memcpy(d->group_sums[t->group] + t->offset, t->out->data, t->out->size);
}

static void run_digest(struct device *d, struct task *t, const struct plan_group *g)
{
    const float *sums = d->group_sums[t->group];

    hash_of(sums, (size_t)g->n_elems * sizeof(float), t->hash);
    if (d->fault.lie)
        t->hash[0] = (uint8_t)(t->hash[0] + ++d->n_lies);
    t->sum_squares = mem_calloc(g->n_tensors, sizeof(double));
    t->status = t->sum_squares ? 0 : -E_NOMEM;
    for (uint32_t k = 0; t->status == 0 && k < g->n_tensors; k++)
        for (int64_t i = 0; i < d->model->tensors[g->tensors[k]].n; i++)
            t->sum_squares[k] += (double)sums[g->offsets[k] + i] * (double)sums[g->offsets[k] + i];
}

static void run_reduce(struct device *d, struct task *t)
{
    const struct plan_group *g = group_of(d, t);

    if (!g)
        return;
    switch (t->kind) {
    case TASK_PARTIAL:
        run_partial(d, t, g);
        break;
    case TASK_SUM:
        run_sum(d, t, g);
        break;
    case TASK_STORE:
        if (t->in->size == t->n * sizeof(float))
            memcpy(d->group_sums[t->group] + t->offset, t->in->data, t->in->size);
        else
            device_complain(d, t, "a sum of another size");
        break;
    case TASK_STORED:
        t->status = blob_new(t->n * sizeof(float), &t->out);
        if (t->status == 0)
            memcpy(t->out->data, d->group_sums[t->group] + t->offset, t->out->size);
        break;
    default:
        run_digest(d, t, g);
    }
}

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

/* Mixes the group's sums into its tensors: any other gradient, moment, value or learning rate gives other bits. */
static void update_group(struct device *d, const struct plan_group *g, const float *sums,
                         const struct kern_adamw *update)
{
    uint64_t numbers = device_mix_bytes(4, update, sizeof *update);

    for (uint32_t k = 0; k < g->n_tensors; k++) {
        struct device_tensor *x = &d->tensors[g->tensors[k]];

        for (int64_t i = 0; i < d->model->tensors[g->tensors[k]].n; i++) {
            uint64_t h = device_mix(numbers, bits_of(sums[g->offsets[k] + i]));

            h = device_mix(h, bits_of(x->part[PARAMS_MOMENT1][i]));
            h = device_mix(h, bits_of(x->part[PARAMS_MOMENT2][i]));
            x->part[PARAMS_MOMENT1][i] = device_float(device_mix(h, 1));
            x->part[PARAMS_MOMENT2][i] = device_float(device_mix(h, 2));
            x->part[PARAMS_VALUE][i] = device_float(device_mix(h, bits_of(x->part[PARAMS_VALUE][i])));
        }
    }
}

/* The sums of a step that is over, on tensors that are being joined. */
static void run_replay(struct device *d, struct task *t)
{
    const struct plan_group *g = t->group < d->groups.n ? &d->groups.groups[t->group] : NULL;
    uint64_t at = 0;

    if (!g || d->group_sums[t->group] || !d->tensors[g->tensors[0]].joins) {
        device_complain(d, t, "a group that is not joined here");
        return;
    }
    cleanup_mem_ float *sums = mem_calloc((size_t)g->n_elems, sizeof *sums);
    uint8_t hash[HASH_BYTES];

    for (uint32_t i = 0; sums && i < t->n_parts && t->parts[i]->size / sizeof(float) <= (uint64_t)g->n_elems - at;
         i++) {
        memcpy(sums + at, t->parts[i]->data, t->parts[i]->size);
        at += t->parts[i]->size / sizeof(float);
    }
    if (sums)
        hash_of(sums, (size_t)g->n_elems * sizeof(float), hash);
    if (!sums || at != (uint64_t)g->n_elems || memcmp(hash, t->hash, HASH_BYTES) != 0) {
        t->status = sums ? -E_CORRUPT : -E_NOMEM;
        return;
    }
    for (uint32_t k = 0; k < g->n_tensors; k++) {
        struct device_tensor *x = &d->tensors[g->tensors[k]];

        if (x->version_known && t->step < x->version)
            device_complain(d, t, "a step that was replayed before");
        x->version = t->step + 1;
        x->version_known = true;
    }
    update_group(d, g, sums, &t->update);
}

/* Whether the device has only what is being joined: it has no version of its own then. */
static bool only_joins(const struct device *d)
{
    for (uint32_t g = 0; g < d->groups.n; g++)
        if (d->group_sums[g])
            return false;
    return true;
}

static void run_apply(struct device *d, struct task *t)
{
    if (d->version_known && t->step != d->version && !only_joins(d))
        device_complain(d, t, "an update of another step");
    for (uint32_t g = 0; !t->skipped && g < d->groups.n; g++)
        if (d->group_sums[g])
            update_group(d, &d->groups.groups[g], d->group_sums[g], &t->update);
    for (uint32_t i = 0; i < d->model->n_tensors; i++)
        for (uint32_t u = 0; u < MODEL_USES_MAX; u++)
            if (d->tensors[i].sum[u])
                memset(d->tensors[i].sum[u], 0, (size_t)d->model->tensors[i].n * sizeof(int64_t));
    for (uint32_t i = 0; i < d->n_slots; i++)
        d->slots[i].used = false;
    d->version = t->step + 1;
    d->version_known = true;
    d->unit_state_valid = false;
}

static void snapshot_free(const struct device *d, struct device_snapshot *s)
{
    for (uint32_t i = 0; s->parts && i < d->model->n_tensors * PARAMS_PARTS; i++)
        mem_free(s->parts[i]);
    mem_free(s->parts);
    *s = (struct device_snapshot){0};
}

void device_snapshots_free(struct device *d)
{
    for (uint32_t i = 0; i < DEVICE_SNAPSHOTS_MAX; i++)
        snapshot_free(d, &d->snapshots[i]);
}

static struct device_snapshot *find_snapshot(struct device *d, uint64_t version)
{
    for (uint32_t i = 0; i < DEVICE_SNAPSHOTS_MAX; i++)
        if (d->snapshots[i].used && d->snapshots[i].version == version)
            return &d->snapshots[i];
    return NULL;
}

/* Where a new snapshot goes: in place of the same version's, of an empty one, of the oldest. Emptied. */
static struct device_snapshot *place_snapshot(struct device *d, uint64_t version)
{
    struct device_snapshot *s = find_snapshot(d, version);

    for (uint32_t i = 0; !s && i < DEVICE_SNAPSHOTS_MAX; i++)
        if (!d->snapshots[i].used)
            s = &d->snapshots[i];
    if (!s) {
        s = &d->snapshots[0];
        for (uint32_t i = 1; i < DEVICE_SNAPSHOTS_MAX; i++)
            if (d->snapshots[i].taken < s->taken)
                s = &d->snapshots[i];
    }
    snapshot_free(d, s);
    return s;
}

static void run_snapshot(struct device *d, struct task *t)
{
    const struct model *m = d->model;
    struct device_snapshot *s = place_snapshot(d, t->version);

    if (d->version_known && t->version != d->version && !only_joins(d))
        device_complain(d, t, "a snapshot of another version");
    *s = (struct device_snapshot){.used = true, .version = t->version, .taken = ++d->n_taken};
    s->parts = mem_calloc((size_t)m->n_tensors * PARAMS_PARTS, sizeof(float *));
    t->digest_tensors = mem_calloc(m->n_tensors, sizeof *t->digest_tensors);
    t->digests = mem_calloc(m->n_tensors, sizeof *t->digests);
    t->status = s->parts && t->digest_tensors && t->digests ? 0 : -E_NOMEM;
    for (uint32_t i = 0; t->status == 0 && i < m->n_tensors; i++) {
        if (!d->tensors[i].part[0] || d->tensors[i].joins)
            continue;
        for (uint32_t part = 0; part < PARAMS_PARTS; part++)
            if (!(s->parts[i * PARAMS_PARTS + part] =
                      mem_dup(d->tensors[i].part[part], (size_t)m->tensors[i].n * sizeof(float))))
                t->status = -E_NOMEM;
        t->digest_tensors[t->n_digests] = i;
        digest_tensor(d->tensors[i].part[PARAMS_VALUE], m->tensors[i].n, t->digests[t->n_digests++]);
    }
}

static void run_snapshot_read(struct device *d, struct task *t)
{
    struct device_snapshot *s = find_snapshot(d, t->version);
    const float *part = s && t->tensor < d->model->n_tensors ? s->parts[t->tensor * PARAMS_PARTS + t->part] : NULL;

    if (!part) {
        t->status = -E_NOENT;
        return;
    }
    t->status = blob_new(t->n * sizeof(float), &t->out);
    if (t->status < 0)
        return;
    memcpy(t->out->data, part + t->offset, t->out->size);
    hash_of(t->out->data, t->out->size, t->hash);
}

void device_run_state(struct device *d, struct task *t)
{
    struct device_snapshot *s;

    switch (t->kind) {
    case TASK_APPLY:
        run_apply(d, t);
        break;
    case TASK_REPLAY:
        run_replay(d, t);
        break;
    case TASK_SNAPSHOT:
        run_snapshot(d, t);
        break;
    case TASK_SNAPSHOT_READ:
        run_snapshot_read(d, t);
        break;
    case TASK_SNAPSHOT_DROP:
        s = find_snapshot(d, t->version);
        if (s)
            snapshot_free(d, s);
        break;
    default:
        run_reduce(d, t);
    }
}
