/* See lease.h. A few hundred leases at most live at once, so a plain array is searched. */
#include "parallel/lease.h"

#include <assert.h>
#include <string.h>

#include "parallel/task.h"
#include "runtime/base/mem.h"

static void inbox_done(struct lease_inbox *in)
{
    in->whole = blob_unref(in->whole);
    in->have = mem_free(in->have);
}

static struct lease *lease_free(struct lease *l)
{
    if (!l)
        return NULL;
    blob_unref(l->tokens);
    blob_unref(l->targets);
    blob_unref(l->out);
    blob_unref(l->grad_out);
    inbox_done(&l->in);
    inbox_done(&l->grad_in);
    return mem_free(l);
}

void lease_queue_clear(struct lease_queue *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        lease_free(q->leases[i]);
    q->n = 0;
}

void lease_queue_done(struct lease_queue *q)
{
    lease_queue_clear(q);
    mem_free(q->leases);
    *q = (struct lease_queue){0};
}

void lease_queue_drop_before(struct lease_queue *q, uint64_t step)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < q->n; i++)
        if (q->leases[i]->step < step)
            lease_free(q->leases[i]);
        else
            q->leases[kept++] = q->leases[i];
    q->n = kept;
}

struct lease *lease_find(const struct lease_queue *q, uint64_t step, uint32_t microbatch, uint32_t mode, uint32_t u0)
{
    for (uint32_t i = 0; i < q->n; i++) {
        struct lease *l = q->leases[i];

        if (l->step == step && l->info.microbatch == microbatch && l->info.mode == mode && l->info.u0 == u0)
            return l;
    }
    return NULL;
}

static struct lease *find_end(const struct lease_queue *q, const struct msg_boundary_key *key, bool starts)
{
    for (uint32_t i = 0; i < q->n; i++) {
        struct lease *l = q->leases[i];

        if (l->step == key->step && l->info.microbatch == key->microbatch && l->info.mode == key->mode &&
            (starts ? l->info.u0 : l->info.u1) == key->unit)
            return l;
    }
    return NULL;
}

struct lease *lease_receiver(const struct lease_queue *q, const struct msg_boundary_key *key)
{
    return find_end(q, key, key->direction == MSG_FORWARD);
}

struct lease *lease_sender(const struct lease_queue *q, const struct msg_boundary_key *key)
{
    return find_end(q, key, key->direction == MSG_BACKWARD);
}

int lease_add(struct lease_queue *q, uint64_t step, const struct msg_lease *info, float loss_scale, struct blob *tokens,
              struct blob *targets, int64_t now)
{
    if (lease_find(q, step, info->microbatch, info->mode, info->u0))
        return -E_EXIST;
    if (q->n == q->cap) {
        uint32_t cap = q->cap ? 2 * q->cap : 64;
        struct lease **p = mem_resize(q->leases, q->cap, cap, sizeof *p);

        if (!p)
            return -E_NOMEM;
        q->leases = p;
        q->cap = cap;
    }
    struct lease *l = mem_calloc(1, sizeof *l);

    if (!l)
        return -E_NOMEM;
    l->info = *info;
    l->step = step;
    l->loss_scale = loss_scale;
    l->state = info->u0 == 0 ? LEASE_READY_FORWARD : LEASE_WAIT_INPUT;
    l->tokens = blob_ref(tokens);
    l->targets = blob_ref(targets);
    l->slot = TASK_NO_SLOT;
    l->waiting_since = now;
    q->leases[q->n++] = l;
    return 0;
}

/* 1 when the tensor is whole by now. */
static int inbox_put(struct lease_inbox *in, const struct msg_boundary *piece, struct blob *body, uint64_t total)
{
    uint64_t expect = total - piece->offset < LEASE_PIECE_ELEMS ? total - piece->offset : LEASE_PIECE_ELEMS;

    if (piece->total != total || piece->offset >= total || piece->offset % LEASE_PIECE_ELEMS || piece->n != expect ||
        body->size != piece->n * sizeof(float))
        return -E_PROTO;
    if (in->complete)
        return 0;
    if (piece->n == total) {
        in->whole = blob_ref(body);
        in->complete = true;
        return 1;
    }
    if (!in->whole) {
        uint64_t n_pieces = (total + LEASE_PIECE_ELEMS - 1) / LEASE_PIECE_ELEMS;

        if (!(in->have = mem_calloc(n_pieces, 1)))
            return -E_NOMEM;
        if (blob_new(total * sizeof(float), &in->whole) < 0)
            return -E_NOMEM;
    }
    if (in->have[piece->offset / LEASE_PIECE_ELEMS])
        return 0;
    in->have[piece->offset / LEASE_PIECE_ELEMS] = 1;
    memcpy((float *)in->whole->data + piece->offset, body->data, body->size);
    in->got += piece->n;
    in->complete = in->got == total;
    return in->complete;
}

int lease_piece(struct lease *l, const struct msg_boundary *piece, struct blob *body, uint64_t total_elems)
{
    bool forward = piece->key.direction == MSG_FORWARD;

    if (forward ? l->state != LEASE_WAIT_INPUT : l->state > LEASE_WAIT_GRADIENT)
        return 0; /* it has come before */
    if (!forward && l->info.mode != MSG_MODE_TRAIN)
        return -E_PROTO;
    int r = inbox_put(forward ? &l->in : &l->grad_in, piece, body, total_elems);

    if (r == 1 && forward)
        l->state = LEASE_READY_FORWARD;
    else if (r == 1 && l->state == LEASE_WAIT_GRADIENT)
        l->state = LEASE_READY_BACKWARD;
    return r;
}

void lease_forward_done(struct lease *l, bool last)
{
    if (l->info.mode != MSG_MODE_TRAIN)
        l->state = LEASE_DONE;
    else if (last || l->grad_in.complete) /* who takes over from a lost peer finds the gradient there already */
        l->state = LEASE_READY_BACKWARD;
    else
        l->state = LEASE_WAIT_GRADIENT;
}

void lease_forget_pieces(struct lease *l)
{
    if (!l->in.complete) {
        inbox_done(&l->in);
        l->in.got = 0;
    }
    if (!l->grad_in.complete) {
        inbox_done(&l->grad_in);
        l->grad_in.got = 0;
    }
}

/* Whether a should run before b. Forwards: an evaluation first, so that its neighbours down the route are not kept
 * waiting for it at the step's end. */
static bool better(const struct lease *a, const struct lease *b)
{
    if (!b)
        return true;
    if (a->state != b->state)
        return a->state == LEASE_READY_BACKWARD;
    if (a->info.mode != b->info.mode)
        return a->info.mode == MSG_MODE_EVAL;
    if (a->info.microbatch != b->info.microbatch)
        return a->info.microbatch < b->info.microbatch;
    return a->info.u0 < b->info.u0;
}

struct lease *lease_pick(const struct lease_queue *q, uint64_t step, uint32_t in_flight)
{
    struct lease *best = NULL;
    uint32_t begun = 0;

    for (uint32_t i = 0; i < q->n; i++) {
        const struct lease *l = q->leases[i];

        begun += l->step == step && l->info.u0 == 0 && l->info.mode == MSG_MODE_TRAIN &&
                 l->state > LEASE_READY_FORWARD && l->state < LEASE_DONE;
    }
    for (uint32_t i = 0; i < q->n; i++) {
        struct lease *l = q->leases[i];

        if (l->step != step || (l->state != LEASE_READY_BACKWARD && l->state != LEASE_READY_FORWARD))
            continue;
        if (l->state == LEASE_READY_FORWARD && l->info.u0 == 0 && l->info.mode == MSG_MODE_TRAIN && begun >= in_flight)
            continue;
        if (better(l, best))
            best = l;
    }
    return best;
}
