/* Forward and backward of one microbatch through a span of units. A slot keeps, from one to the other, what each unit
 * saved, the boundary tensors inside the span, and the arrays that came in. Its memory is drawn from spares: what one
 * slot gives back the next takes, so after the first microbatches a step allocates nothing here.
 *
 * Invariant: a unit runs on what it would run on if it stood alone in its span, so the cut does not change a bit. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "peer/compute_impl.h"
#include "runtime/base/mem.h"

static size_t boundary_bytes(const struct compute *c)
{
    return (size_t)model_boundary_elems(c->model) * sizeof(float);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int spare_take(struct compute *c, size_t n_bytes, struct compute_spare *ret)
{
    void *mem;

    for (uint32_t i = c->n_spares; i-- > 0;)
        if (c->spares[i].n_bytes == n_bytes) {
            *ret = c->spares[i];
            c->spares[i] = c->spares[--c->n_spares];
            return 0;
        }
    int r = c->kern.backend->alloc(c->kern.ctx, n_bytes, &mem);

    if (r == 0)
        *ret = (struct compute_spare){n_bytes, mem};
    return r;
}

/* Leaves *s empty; empty is fine. */
static void spare_give(struct compute *c, struct compute_spare *s)
{
    if (s->mem && c->n_spares == c->cap_spares) {
        const uint32_t cap = c->cap_spares ? 2 * c->cap_spares : 64;
        struct compute_spare *p = mem_resize(c->spares, c->cap_spares, cap, sizeof *p);

        if (p) {
            c->spares = p;
            c->cap_spares = cap;
        }
    }
    if (s->mem && c->n_spares < c->cap_spares)
        c->spares[c->n_spares++] = *s;
    else
        c->kern.backend->free(c->kern.ctx, s->mem);
    *s = (struct compute_spare){0};
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

static void input_release(struct compute *c, struct compute_input *in)
{
    spare_give(c, &in->copy);
    blob_unref(in->blob);
    *in = (struct compute_input){0};
}

/* b's bytes for the device: where they lie if it can read them there. Elements are 4 bytes wide. */
static int input_set(struct compute *c, struct compute_input *in, struct blob *b)
{
    if (compute_on_host(c) && (uintptr_t)b->data % sizeof(float) == 0) {
        in->blob = blob_ref(b);
        in->data = b->data;
        return 0;
    }
    int r = spare_take(c, b->size, &in->copy);

    if (r < 0)
        return r;
    in->data = in->copy.mem;
    return c->kern.backend->copy(c->kern.ctx, in->copy.mem, b->data, b->size, KERN_HOST_TO_DEVICE);
}

static void slot_release(struct compute *c, struct compute_slot *s)
{
    for (uint32_t u = s->u0; u < s->u1; u++) {
        spare_give(c, &s->units[u].saved);
        spare_give(c, &s->units[u].out);
    }
    input_release(c, &s->in);
    input_release(c, &s->tokens);
    input_release(c, &s->targets);
    s->u0 = s->u1 = 0;
    s->used = false;
}

/* The slot of that number, made when it is not there yet. */
static int slot_at(struct compute *c, uint32_t number, struct compute_slot **ret)
{
    if (number >= c->n_slots) {
        uint32_t n = c->n_slots ? c->n_slots : 4;

        while (n <= number)
            n *= 2;
        struct compute_slot *p = mem_resize(c->slots, c->n_slots, n, sizeof *p);

        if (!p)
            return -E_NOMEM;
        memset(p + c->n_slots, 0, (n - c->n_slots) * sizeof *p);
        c->slots = p;
        c->n_slots = n;
    }
    *ret = &c->slots[number];
    return 0;
}

/* Memory and inputs of task t's span. On failure the slot is released by the caller. */
static int slot_fill(struct compute *c, struct compute_slot *s, const struct task *t)
{
    int r = 0;

    if (!s->units) {
        s->units = mem_calloc(c->model->n_units, sizeof *s->units);
        if (!s->units)
            return -E_NOMEM;
    }
    s->used = true;
    s->u0 = t->u0;
    s->u1 = t->u1;
    for (uint32_t u = t->u0; r == 0 && u < t->u1; u++) {
        const size_t n_saved = unit_saved_bytes(c->model, u);

        if (n_saved > 0)
            r = spare_take(c, n_saved, &s->units[u].saved);
        if (r == 0 && u + 1 < t->u1)
            r = spare_take(c, boundary_bytes(c), &s->units[u].out);
    }
    if (r == 0 && t->u0 > 0)
        r = input_set(c, &s->in, t->in);
    if (r == 0 && t->u0 == 0)
        r = input_set(c, &s->tokens, t->tokens);
    if (r == 0 && t->u1 == c->model->n_units)
        r = input_set(c, &s->targets, t->targets);
    return r;
}

void compute_slots_clear(struct compute *c)
{
    for (uint32_t i = 0; i < c->n_slots; i++)
        slot_release(c, &c->slots[i]);
}

void compute_slots_done(struct compute *c)
{
    compute_slots_clear(c);
    slot_release(c, &c->eval);
    for (uint32_t i = 0; i < c->n_slots; i++)
        mem_free(c->slots[i].units);
    c->eval.units = mem_free(c->eval.units);
    c->slots = mem_free(c->slots);
    c->n_slots = 0;
    for (uint32_t i = 0; i < c->n_spares; i++)
        c->kern.backend->free(c->kern.ctx, c->spares[i].mem);
    c->spares = mem_free(c->spares);
    c->n_spares = c->cap_spares = 0;
}

/* ---- Checks: what came from the network -------------------------------------------------------------------------- */

static int check_span(const struct compute *c, struct task *t)
{
    if (t->u0 >= t->u1 || t->u1 > c->model->n_units)
        return reason_set(&t->why, -E_PROTO, "no such span: units %" PRIu32 " up to %" PRIu32, t->u0, t->u1);
    for (uint32_t u = t->u0; u < t->u1; u++)
        if (!c->held[u])
            return reason_set(&t->why, -E_PROTO, "unit %" PRIu32 " is not held here", u);
    return 0;
}

static int check_size(struct task *t, const struct blob *b, size_t n_bytes, const char *what)
{
    if (!b)
        return reason_set(&t->why, -E_PROTO, "no %s for units %" PRIu32 " up to %" PRIu32, what, t->u0, t->u1);
    if (b->size != n_bytes)
        return reason_set(&t->why, -E_PROTO, "%s for units %" PRIu32 " up to %" PRIu32 ": %zu bytes instead of %zu",
                          what, t->u0, t->u1, b->size, n_bytes);
    return 0;
}

/* A (B,T) array of numbers below the vocabulary's size. */
static int check_ids(const struct compute *c, struct task *t, const struct blob *b, const char *what)
{
    const size_t n = (size_t)c->model->B * c->model->n_ctx;
    int r = check_size(t, b, n * sizeof(int32_t), what);

    for (size_t i = 0; r == 0 && i < n; i++) {
        int32_t id;

        memcpy(&id, (const char *)b->data + i * sizeof id, sizeof id); /* of any alignment */
        if (id < 0 || (uint32_t)id >= c->model->n_vocab)
            r = reason_set(&t->why, -E_PROTO, "%s: %" PRId32 " at %zu is outside the vocabulary of %" PRIu32, what, id,
                           i, c->model->n_vocab);
    }
    return r;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static struct unit_run unit_run_of(struct compute *c, const struct compute_slot *s, uint32_t u)
{
    return (struct unit_run){
        .model = c->model,
        .kern = &c->kern,
        .scratch = c->scratch,
        .params = params_unit(c->params, u),
        .tokens = s->tokens.data,
        .targets = s->targets.data,
        .in = u > s->u0 ? s->units[u - 1].out.mem : s->in.data,
        .saved = s->units[u].saved.mem,
    };
}

/* Where the boundary tensor that leaves a task is written: into its blob if the device can, else into mem. */
static int leaving_begin(struct compute *c, float *mem, struct blob **ret_blob, float **ret)
{
    *ret = mem;
    if (!compute_on_host(c))
        return 0;
    int r = blob_new(boundary_bytes(c), ret_blob);

    if (r == 0)
        *ret = (*ret_blob)->data;
    return r;
}

static int leaving_end(struct compute *c, const float *mem, struct blob **blob)
{
    return *blob ? 0 : compute_to_blob(c, mem, boundary_bytes(c), blob);
}

static int span_forward(struct compute *c, const struct compute_slot *s, struct task *t)
{
    const bool leaves = s->u1 < c->model->n_units;
    float *leaving = NULL;
    int r = leaves ? leaving_begin(c, c->boundary[0], &t->out, &leaving) : 0;

    for (uint32_t u = s->u0; r == 0 && u < s->u1; u++) {
        const struct unit_run run = unit_run_of(c, s, u);

        r = unit_forward(&run, u, u + 1 < s->u1 ? s->units[u].out.mem : leaving, &t->loss);
    }
    if (r == 0 && leaves)
        r = leaving_end(c, leaving, &t->out);
    return r;
}

int compute_forward(struct compute *c, struct task *t)
{
    struct compute_slot *s = &c->eval;
    int r = check_span(c, t);

    if (r == 0)
        r = t->u0 > 0 ? check_size(t, t->in, boundary_bytes(c), "activations") : check_ids(c, t, t->tokens, "tokens");
    if (r == 0 && t->u1 == c->model->n_units)
        r = check_ids(c, t, t->targets, "targets");
    assert(!t->train || t->slot != TASK_NO_SLOT);
    if (r == 0 && t->train)
        r = slot_at(c, t->slot, &s);
    if (r < 0)
        return r;
    slot_release(c, s);
    r = slot_fill(c, s, t);
    if (r == 0)
        r = span_forward(c, s, t);
    r = compute_finish(c, r);
    if (r < 0 || !t->train)
        slot_release(c, s);
    return r;
}

/* The gradient of the span's upper boundary, for the device. */
static int gradient_in(struct compute *c, const struct task *t, const float **ret)
{
    float *mem = c->boundary[t->u1 & 1];

    if (compute_on_host(c) && (uintptr_t)t->in->data % sizeof(float) == 0) {
        *ret = t->in->data;
        return 0;
    }
    *ret = mem;
    return c->kern.backend->copy(c->kern.ctx, mem, t->in->data, t->in->size, KERN_HOST_TO_DEVICE);
}

static int span_backward(struct compute *c, const struct compute_slot *s, struct task *t)
{
    const float *dout = NULL;
    float *leaving = NULL;
    int r = 0;

    if (s->u1 < c->model->n_units)
        r = gradient_in(c, t, &dout);
    if (r == 0 && s->u0 > 0)
        r = leaving_begin(c, c->boundary[s->u0 & 1], &t->out, &leaving);
    for (uint32_t u = s->u1; r == 0 && u-- > s->u0;) {
        const struct unit_run run = unit_run_of(c, s, u);
        float *din = u > s->u0 ? c->boundary[u & 1] : leaving;

        r = unit_backward(&run, u, dout, din, params_unit_grads(c->params, u), t->loss_scale);
        if (r == 0)
            r = params_accumulate(c->params, u, &t->flagged);
        dout = din;
    }
    if (r == 0 && s->u0 > 0)
        r = leaving_end(c, leaving, &t->out);
    return r;
}

int compute_backward(struct compute *c, struct task *t)
{
    int r = check_span(c, t);

    if (r == 0 && t->u1 < c->model->n_units)
        r = check_size(t, t->in, boundary_bytes(c), "gradients");
    if (r < 0)
        return r;
    struct compute_slot *s = t->slot < c->n_slots ? &c->slots[t->slot] : NULL;

    if (!s || !s->used || s->u0 != t->u0 || s->u1 != t->u1)
        return reason_set(&t->why, -E_INVAL, "slot %" PRIu32 " holds no forward of units %" PRIu32 " up to %" PRIu32,
                          t->slot, t->u0, t->u1);
    r = compute_finish(c, span_backward(c, s, t));
    slot_release(c, s);
    return r;
}
