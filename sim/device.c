/* See device.h. The device's memory: what is held, and tasks that change it. Reduces and snapshots: device_state.c. */
#include "sim/device_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define UNIT_NS (400 * NS_PER_US) /* forward of one unit at speed 1; backward takes twice that */
#define TASK_NS (10 * NS_PER_US)  /* everything else, besides a nanosecond an element */

void device_complain(struct device *d, const struct task *t, const char *what)
{
    if (d->complaint[0] == 0)
        snprintf(d->complaint, sizeof d->complaint,
                 "%s of step %" PRIu64 ", microbatch %" PRIu32 ", units [%" PRIu32 ", %" PRIu32 "): %s",
                 task_name(t->kind), t->step, t->microbatch, t->u0, t->u1, what);
}

const char *device_complaint(const struct device *d)
{
    return d->complaint[0] ? d->complaint : NULL;
}

uint64_t device_version(const struct device *d)
{
    return d->version;
}

/* splitmix64's finalizer over both: every bit of either changes about half of the result. */
uint64_t device_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) + UINT64_C(0x632be59bd9b4e019);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t device_mix_bytes(uint64_t seed, const void *data, size_t n)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < n; i += sizeof(uint32_t)) {
        uint32_t word = 0;

        memcpy(&word, p + i, n - i < sizeof word ? n - i : sizeof word);
        seed = device_mix(seed, word);
    }
    return seed;
}

int device_new(const struct model *model, const struct device_fault *fault, double speed, struct device **ret)
{
    struct device *d = mem_calloc(1, sizeof *d);

    if (!d)
        return -E_NOMEM;
    d->model = model;
    d->speed = speed;
    if (fault)
        d->fault = *fault;
    d->tensors = mem_calloc(model->n_tensors, sizeof *d->tensors);
    d->held = mem_calloc(model->n_units, sizeof *d->held);
    if (!d->tensors || !d->held) {
        device_free(d);
        return -E_NOMEM;
    }
    *ret = d;
    return 0;
}

static void drop_tensor(struct device *d, uint32_t t)
{
    struct device_tensor *x = &d->tensors[t];

    for (int part = 0; part < PARAMS_PARTS; part++)
        x->part[part] = mem_free(x->part[part]);
    for (uint32_t u = 0; u < MODEL_USES_MAX; u++)
        x->sum[u] = mem_free(x->sum[u]);
    *x = (struct device_tensor){0};
}

/* Forgets the plan, and the state unless it is kept; not the snapshots. */
static void clear(struct device *d, bool keep)
{
    for (uint32_t t = 0; !keep && d->tensors && t < d->model->n_tensors; t++)
        drop_tensor(d, t);
    for (uint32_t g = 0; d->group_sums && g < d->groups.n; g++)
        mem_free(d->group_sums[g]);
    d->group_sums = mem_free(d->group_sums);
    for (uint32_t i = 0; i < d->n_slots; i++)
        mem_free(d->slots[i].in);
    d->slots = mem_free(d->slots);
    d->n_slots = 0;
    plan_groups_done(&d->groups);
    plan_done(&d->plan);
}

struct device *device_free(struct device *d)
{
    if (!d)
        return NULL;
    clear(d, false);
    device_snapshots_free(d);
    mem_free(d->tensors);
    mem_free(d->held);
    return mem_free(d);
}

int64_t device_cost(const struct device *d, const struct task *t)
{
    int64_t ns = TASK_NS + (int64_t)t->n;

    switch (t->kind) {
    case TASK_FORWARD:
        ns = (int64_t)(t->u1 - t->u0) * UNIT_NS;
        break;
    case TASK_BACKWARD:
        ns = (int64_t)(t->u1 - t->u0) * UNIT_NS * 2;
        break;
    case TASK_APPLY:
    case TASK_SNAPSHOT:
        ns = UNIT_NS;
        break;
    case TASK_SETUP:
        ns = 10 * UNIT_NS;
        break;
    default:
        break;
    }
    return (int64_t)((double)ns / d->speed);
}

static bool alloc_tensor(struct device *d, uint32_t t, bool init, uint64_t seed)
{
    const struct model_tensor *m = &d->model->tensors[t];
    struct device_tensor *x = &d->tensors[t];
    bool kept = x->part[PARAMS_VALUE] != NULL;

    for (int part = 0; part < PARAMS_PARTS && !kept; part++)
        if (!(x->part[part] = mem_calloc((size_t)m->n, sizeof(float))))
            return false;
    for (uint32_t u = 0; u < m->n_uses; u++)
        if (!d->held[m->use_unit[u]])
            x->sum[u] = mem_free(x->sum[u]);
        else if (!x->sum[u] && !(x->sum[u] = mem_calloc((size_t)m->n, sizeof(int64_t))))
            return false;
    for (int64_t i = 0; !kept && i < m->n; i++)
        x->part[PARAMS_VALUE][i] =
            init ? device_float(device_mix(device_mix(seed, t), (uint64_t)i)) : -1; /* -1: not written yet */
    return true;
}

/* Memory of the group's sums, if this peer is a member that has use for them. */
static bool alloc_group(struct device *d, uint32_t g)
{
    const struct plan_group *group = &d->groups.groups[g];

    for (uint32_t i = 0; i < group->n_members; i++) {
        if (group->members[i] != d->self)
            continue;
        for (uint32_t k = 0; k < group->n_tensors; k++) {
            struct device_tensor *x = &d->tensors[group->tensors[k]];

            x->joins = group->joining[i];
            x->version_known = x->version_known && x->joins;
        }
        if (!group->joining[i] && !(d->group_sums[g] = mem_calloc((size_t)group->n_elems, sizeof(float))))
            return false;
    }
    return true;
}

static void run_setup(struct device *d, struct task *t)
{
    bool ok = true;

    clear(d, t->keep);
    if (plan_copy(t->plan, &d->plan) < 0 || plan_groups(&d->plan, d->model, &d->groups) < 0 ||
        !(d->group_sums = mem_calloc(d->groups.n, sizeof(float *)))) {
        t->status = -E_NOMEM;
        return;
    }
    d->self = t->peer;
    plan_held(&d->plan, d->self, d->held);
    for (uint32_t i = 0; ok && i < d->model->n_tensors; i++) {
        bool held = false;

        for (uint32_t u = 0; u < d->model->tensors[i].n_uses; u++)
            held = held || d->held[d->model->tensors[i].use_unit[u]];
        if (held)
            ok = alloc_tensor(d, i, !t->fetch && !t->keep, t->seed);
        else
            drop_tensor(d, i);
    }
    for (uint32_t g = 0; ok && g < d->groups.n; g++)
        ok = alloc_group(d, g);
    plan_current(&d->plan, d->self, d->held);
    if (!t->keep) {
        d->version = t->version;
        d->version_known = !t->fetch;
    }
    d->unit_state_valid = false;
    t->status = ok ? 0 : -E_NOMEM;
}

static void run_state_write(struct device *d, struct task *t)
{
    float *to = t->tensor < d->model->n_tensors ? d->tensors[t->tensor].part[t->part] : NULL;

    if (!to || t->in->size != t->n * sizeof(float) || t->offset + t->n > (uint64_t)d->model->tensors[t->tensor].n) {
        device_complain(d, t, "state that is not held");
        return;
    }
    memcpy(to + t->offset, t->in->data, t->in->size);
    d->tensors[t->tensor].version_known = false;
    d->unit_state_valid = false;
}

/* A number that stands for the values of all tensors of a held unit. */
static uint64_t unit_state(struct device *d, uint32_t u)
{
    if (!d->unit_state_valid) {
        for (uint32_t v = 0; v < d->model->n_units; v++) {
            const struct model_unit *unit = &d->model->units[v];

            d->unit_state[v] = v;
            for (uint32_t k = 0; d->held[v] && k < unit->n_tensors; k++)
                d->unit_state[v] = device_mix_bytes(d->unit_state[v], d->tensors[unit->tensor[k]].part[PARAMS_VALUE],
                                                    (size_t)d->model->tensors[unit->tensor[k]].n * sizeof(float));
        }
        d->unit_state_valid = true;
    }
    return d->unit_state[u];
}

/* A boundary tensor holds a number: 16 bits in each of the first four elements, the others follow from it. */
static int write_boundary(const struct device *d, uint64_t h, struct blob **ret)
{
    size_t n = (size_t)model_boundary_elems(d->model);
    int status = blob_new(n * sizeof(float), ret);

    for (size_t i = 0; status == 0 && i < n; i++)
        ((float *)(*ret)->data)[i] = i < 4 ? (float)(h >> (16 * i) & 0xffff) : device_float(device_mix(h, i));
    return status;
}

/* The number that a boundary tensor holds; anything that was not written above gives some other number. */
static uint64_t read_boundary(struct device *d, const struct task *t)
{
    size_t n = (size_t)model_boundary_elems(d->model);
    uint64_t h = 0;

    if (!t->in || t->in->size != n * sizeof(float)) {
        device_complain(d, t, "no boundary tensor of the right size");
        return 0;
    }
    const float *x = t->in->data;

    for (size_t i = 0; i < 4; i++) {
        if (!(x[i] >= 0 && x[i] <= 65535))
            return device_mix_bytes(1, x, t->in->size);
        h |= (uint64_t)x[i] << (16 * i);
    }
    for (size_t i = 4; i < n; i++)
        if (x[i] != device_float(device_mix(h, i)))
            return device_mix_bytes(1, x, t->in->size);
    return h;
}

static bool check_span(struct device *d, const struct task *t)
{
    for (uint32_t u = t->u0; u < t->u1; u++)
        if (u >= d->model->n_units || !d->held[u]) {
            device_complain(d, t, "units that are not held");
            return false;
        }
    if (t->kind == TASK_FORWARD && (t->u0 == 0) != (t->tokens != NULL))
        device_complain(d, t, "tokens belong to unit 0 and nowhere else");
    if (t->kind == TASK_FORWARD && (t->u1 == d->model->n_units) != (t->targets != NULL))
        device_complain(d, t, "targets belong to the head and nowhere else");
    if (d->version_known && t->step != d->version)
        device_complain(d, t, "not the step that the state is for");
    return t->u0 < t->u1;
}

/* The slot's memory, one number a unit and one more for the head's targets; NULL after a complaint. */
static struct device_slot *slot_of(struct device *d, const struct task *t)
{
    if (t->slot >= DEVICE_SLOTS_MAX) {
        device_complain(d, t, "no such slot");
        return NULL;
    }
    if (t->slot >= d->n_slots) {
        struct device_slot *grown = mem_resize(d->slots, d->n_slots, t->slot + 1, sizeof *grown);

        if (!grown)
            return NULL;
        memset(grown + d->n_slots, 0, (t->slot + 1 - d->n_slots) * sizeof *grown);
        d->slots = grown;
        d->n_slots = t->slot + 1;
    }
    struct device_slot *s = &d->slots[t->slot];

    if (!s->in && !(s->in = mem_calloc(d->model->n_units + 1, sizeof *s->in)))
        return NULL;
    if (s->used != (t->kind == TASK_BACKWARD))
        device_complain(d, t, s->used ? "the slot is in use" : "nothing was kept in the slot");
    return s;
}

static bool is_faulty(const struct device *d, const struct task *t)
{
    return t->train && t->step >= d->fault.step && t->step <= d->fault.step + d->fault.more_steps &&
           t->microbatch == d->fault.microbatch;
}

static void run_forward(struct device *d, struct task *t)
{
    struct device_slot *s = NULL;

    if (!check_span(d, t) || (t->train && !(s = slot_of(d, t))))
        return;
    uint64_t h =
        t->u0 == 0 ? device_mix_bytes(t->tokens ? 2 : 3, t->tokens->data, t->tokens->size) : read_boundary(d, t);

    for (uint32_t u = t->u0; u < t->u1; u++) {
        if (s)
            s->in[u] = h;
        h = device_mix(device_mix(h, unit_state(d, u)), u);
    }
    if (s) {
        s->used = true;
        s->microbatch = t->microbatch;
        s->u0 = t->u0;
        s->u1 = t->u1;
    }
    if (t->u1 < d->model->n_units) {
        t->status = write_boundary(d, h, &t->out);
        return;
    }
    h = device_mix_bytes(h, t->targets->data, t->targets->size);
    if (s)
        s->in[t->u1] = h;
    t->loss = (double)(h >> 11) * 0x1p-50;
    if (d->fault.nan && is_faulty(d, t))
        t->loss = __builtin_nan("");
}

/* One microbatch's gradient of a unit, small whole numbers, added to the unit's sums. */
static void accumulate(struct device *d, uint32_t u, uint64_t key)
{
    const struct model_unit *unit = &d->model->units[u];

    for (uint32_t k = 0; k < unit->n_tensors; k++) {
        int64_t *sum = d->tensors[unit->tensor[k]].sum[unit->use[k]];

        for (int64_t i = 0; i < d->model->tensors[unit->tensor[k]].n; i++)
            sum[i] += (int64_t)(device_mix(key + k, (uint64_t)i) >> 44) - (INT64_C(1) << 19);
    }
}

static void run_backward(struct device *d, struct task *t)
{
    struct device_slot *s = check_span(d, t) ? slot_of(d, t) : NULL;

    if (!s)
        return;
    if (s->microbatch != t->microbatch || s->u0 != t->u0 || s->u1 != t->u1)
        device_complain(d, t, "the slot holds something else");
    s->used = false;
    uint64_t g = t->u1 == d->model->n_units ? s->in[t->u1] : read_boundary(d, t);

    for (uint32_t u = t->u1; u-- > t->u0;) {
        accumulate(d, u, device_mix(g, s->in[u]));
        g = device_mix(device_mix(g, s->in[u]), unit_state(d, u));
        t->flagged = t->flagged || (d->fault.flag && d->fault.unit == u && is_faulty(d, t));
    }
    if (t->u0 > 0)
        t->status = write_boundary(d, g, &t->out);
}

void device_run(struct device *d, struct task *t)
{
    t->status = 0;
    t->busy_ns = device_cost(d, t);
    switch (t->kind) {
    case TASK_SETUP:
        run_setup(d, t);
        break;
    case TASK_STATE_WRITE:
        run_state_write(d, t);
        break;
    case TASK_FORWARD:
        run_forward(d, t);
        break;
    case TASK_BACKWARD:
        run_backward(d, t);
        break;
    default:
        device_run_state(d, t);
    }
}
