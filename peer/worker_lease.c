/* The worker's leases: taking them, running them, passing boundary tensors on. See worker_impl.h. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "peer/worker_impl.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

/* A lease that waits for so long, while nothing else comes from that neighbour either, asks for its tensor; the tensor
 * may still be queued behind others on a slow link, so each further request waits twice as long as the one before. */
#define QUIET_NS  (1 * NS_PER_S)
#define ASKED_MAX 5

/* Whether the plan has a place for this lease at this peer. */
static bool lease_fits(const struct worker *w, const struct msg_lease *l)
{
    const struct model *m = w->config.model;
    uint32_t limit = l->mode == MSG_MODE_TRAIN ? m->M : MICROBATCHES_MAX;

    if ((l->mode != MSG_MODE_TRAIN && l->mode != MSG_MODE_EVAL) || l->microbatch >= limit || l->u0 >= l->u1 ||
        l->u1 > m->n_units)
        return false;
    for (uint32_t u = l->u0; u < l->u1; u++)
        if (!w->held_units[u])
            return false;
    if ((l->u0 == 0) != (l->prev == MSG_NO_PEER) || (l->u1 == m->n_units) != (l->next == MSG_NO_PEER))
        return false;
    return (l->u0 == 0 || l->prev < w->plan.n_peers) && (l->u1 == m->n_units || l->next < w->plan.n_peers);
}

static void report(struct worker *w, const struct lease *l)
{
    struct msg *m = worker_msg(w, MSG_DONE);

    if (!m)
        return;
    m->done = (struct msg_done){.epoch = w->plan.epoch,
                                .step = l->step,
                                .microbatch = l->info.microbatch,
                                .mode = l->info.mode,
                                .u0 = l->info.u0,
                                .u1 = l->info.u1,
                                .flagged = l->flagged || !isfinite(l->loss),
                                .loss = l->loss};
    worker_tell(w, m);
}

static bool reports(const struct worker *w, const struct lease *l)
{
    return l->info.mode == MSG_MODE_TRAIN || l->info.u1 == w->config.model->n_units;
}

/* Sends a boundary tensor to the neighbour that waits for it, in pieces. The lease keeps it until commit. */
static void send_boundary(struct worker *w, const struct lease *l, enum msg_direction direction)
{
    struct blob *whole = direction == MSG_FORWARD ? l->out : l->grad_out;
    uint64_t total = whole->size / sizeof(float);

    for (uint64_t at = 0; at < total; at += LEASE_PIECE_ELEMS) {
        uint64_t n = total - at < LEASE_PIECE_ELEMS ? total - at : LEASE_PIECE_ELEMS;
        struct msg *m = worker_msg(w, MSG_BOUNDARY);

        if (!m)
            return;
        m->boundary = (struct msg_boundary){.key = {.epoch = w->plan.epoch,
                                                    .step = l->step,
                                                    .microbatch = l->info.microbatch,
                                                    .mode = l->info.mode,
                                                    .unit = direction == MSG_FORWARD ? l->info.u1 : l->info.u0,
                                                    .direction = direction},
                                            .offset = at,
                                            .n = n,
                                            .total = total};
        if (blob_slice(whole, at * sizeof(float), n * sizeof(float), &m->body) < 0) {
            w->update->fx.oom = true;
            msg_free(m);
            return;
        }
        worker_send(w, direction == MSG_FORWARD ? l->info.next : l->info.prev, m);
    }
}

/* A lease that is known, told again. Where its route changed, what was sent is sent to the new neighbours. */
static void renew(struct worker *w, struct lease *l, const struct msg_lease *info)
{
    bool prev = l->info.prev != info->prev, next = l->info.next != info->next;

    l->info.prev = info->prev;
    l->info.next = info->next;
    if (prev || next)
        lease_forget_pieces(l); /* of who is gone: the new neighbour sends whole tensors */
    if (next && l->out)
        send_boundary(w, l, MSG_FORWARD);
    if (prev && l->grad_out)
        send_boundary(w, l, MSG_BACKWARD);
    if (l->state == LEASE_DONE && reports(w, l))
        report(w, l);
}

/* A slice of the leases' body for one (B,T) array. */
static int take_array(struct worker *w, const struct msg *m, uint64_t *at, struct blob **ret)
{
    uint64_t size = (uint64_t)w->config.model->B * w->config.model->n_ctx * sizeof(int32_t);

    if (!m->body || m->body->size < size || *at > m->body->size - size)
        return -E_PROTO;
    int status = blob_slice(m->body, *at, size, ret);

    *at += size;
    return status;
}

static int take_lease(struct worker *w, const struct msg *m, const struct msg_lease *l, uint64_t *at)
{
    struct blob *tokens = NULL, *targets = NULL;
    int status = 0;

    if (!lease_fits(w, l))
        return -E_PROTO;
    if (l->u0 == 0)
        status = take_array(w, m, at, &tokens);
    if (status == 0 && l->u1 == w->config.model->n_units)
        status = take_array(w, m, at, &targets);
    if (status == 0)
        status = lease_add(&w->leases, m->leases.step, l, m->leases.loss_scale, tokens, targets, w->now);
    blob_unref(tokens);
    blob_unref(targets);
    if (status == -E_EXIST) {
        struct lease *known = lease_find(&w->leases, m->leases.step, l->microbatch, l->mode, l->u0);

        if (known->info.u1 != l->u1)
            return -E_PROTO;
        renew(w, known, l);
        return 0;
    }
    return status;
}

void worker_on_leases(struct worker *w, const struct key *from, struct msg **mp)
{
    const struct msg *m = *mp;
    uint64_t at = 0;

    if (m->leases.epoch > w->plan.epoch || (m->leases.epoch == w->plan.epoch && w->phase < WORKER_READY)) {
        worker_hold(w, from, mp);
        return;
    }
    if (m->leases.epoch < w->plan.epoch || m->leases.step < w->version)
        return;
    if (m->leases.step > w->version + WORKER_AHEAD_MAX) {
        worker_drop(w, from, m, "too far ahead");
        return;
    }
    for (uint32_t i = 0; i < m->leases.n_leases; i++) {
        int status = take_lease(w, m, &m->leases.leases[i], &at);

        if (status == -E_NOMEM)
            w->update->fx.oom = true;
        if (status < 0) {
            worker_drop(w, from, m, "a lease does not fit the plan");
            return;
        }
    }
    if (m->leases.step + 1 > w->step_leases)
        w->step_leases = m->leases.step + 1;
    worker_retry_held(w);
}

void worker_on_boundary(struct worker *w, const struct key *from, uint32_t peer, struct msg **mp)
{
    const struct msg *m = *mp;
    const struct msg_boundary_key *k = &m->boundary.key;

    if (k->epoch < w->plan.epoch || (k->epoch == w->plan.epoch && k->step < w->version))
        return;
    if (k->unit == 0 || k->unit >= w->config.model->n_units || worker_too_far(w, k->epoch, k->step) || !m->body) {
        worker_drop(w, from, m, "no such boundary");
        return;
    }
    struct lease *l = k->epoch == w->plan.epoch ? lease_receiver(&w->leases, k) : NULL;

    if (!l) {
        worker_hold(w, from, mp);
        return;
    }
    if (peer != (k->direction == MSG_FORWARD ? l->info.prev : l->info.next)) {
        worker_drop(w, from, m, "not the neighbour on that route");
        return;
    }
    int r = lease_piece(l, &m->boundary, m->body, (uint64_t)model_boundary_elems(w->config.model));

    if (r == -E_NOMEM)
        w->update->fx.oom = true;
    else if (r < 0)
        worker_drop(w, from, m, "does not fit its lease");
}

void worker_on_need_boundary(struct worker *w, uint32_t peer, const struct msg_boundary_key *key)
{
    const struct lease *l = key->epoch == w->plan.epoch ? lease_sender(&w->leases, key) : NULL;

    if (!l)
        return;
    if (key->direction == MSG_FORWARD ? l->out && l->info.next == peer : l->grad_out && l->info.prev == peer)
        send_boundary(w, l, key->direction);
}

/* The lowest free slot. */
static uint32_t take_slot(struct worker *w)
{
    for (uint32_t i = 0; i < w->n_slots; i++)
        if (!w->slots[i]) {
            w->slots[i] = 1;
            return i;
        }
    uint32_t n = w->n_slots ? 2 * w->n_slots : 8;
    uint8_t *p = mem_resize(w->slots, w->n_slots, n, 1);

    if (!p)
        return TASK_NO_SLOT;
    memset(p + w->n_slots, 0, n - w->n_slots);
    w->slots = p;
    uint32_t slot = w->n_slots;

    w->n_slots = n;
    w->slots[slot] = 1;
    return slot;
}

static void start_task(struct worker *w, struct lease *l)
{
    bool forward = l->state == LEASE_READY_FORWARD;
    struct task *t = task_new(forward ? TASK_FORWARD : TASK_BACKWARD);

    if (forward && l->info.mode == MSG_MODE_TRAIN)
        l->slot = take_slot(w);
    if (!t || (forward && l->info.mode == MSG_MODE_TRAIN && l->slot == TASK_NO_SLOT)) {
        w->update->fx.oom = true;
        task_free(t);
        return;
    }
    t->term = w->term;
    t->epoch = w->plan.epoch;
    t->step = l->step;
    t->microbatch = l->info.microbatch;
    t->mode = l->info.mode;
    t->u0 = l->info.u0;
    t->u1 = l->info.u1;
    t->slot = l->slot;
    t->train = l->info.mode == MSG_MODE_TRAIN;
    t->loss_scale = l->loss_scale;
    if (forward) {
        /* The device keeps what backward needs of these; the lease has no further use for them. */
        t->tokens = TAKE_PTR(l->tokens);
        t->targets = TAKE_PTR(l->targets);
        t->in = TAKE_PTR(l->in.whole);
        l->state = LEASE_RUN_FORWARD;
    } else {
        t->in = TAKE_PTR(l->grad_in.whole);
        l->state = LEASE_RUN_BACKWARD;
    }
    w->device_busy = true;
    effects_task(&w->update->fx, t);
}

void worker_pick(struct worker *w)
{
    if (w->phase != WORKER_READY || w->device_busy)
        return;
    struct lease *l = lease_pick(&w->leases, w->version, w->plan.in_flight);

    if (l)
        start_task(w, l);
}

static void forward_done(struct worker *w, struct lease *l, struct task *t)
{
    bool last = l->info.u1 == w->config.model->n_units;

    l->waiting_since = w->now;
    l->n_asked = 0;
    l->loss = t->loss;
    l->out = TAKE_PTR(t->out);
    if (!last)
        send_boundary(w, l, MSG_FORWARD);
    lease_forward_done(l, last);
    if (l->state == LEASE_DONE && last)
        report(w, l);
}

void worker_on_run(struct worker *w, struct task *t)
{
    bool current = t->epoch == w->plan.epoch && t->term == w->term;
    struct lease *l = current ? lease_find(&w->leases, t->step, t->microbatch, t->mode, t->u0) : NULL;

    if (!l)
        return;
    if (t->kind == TASK_FORWARD) {
        assert(l->state == LEASE_RUN_FORWARD);
        forward_done(w, l, t);
        return;
    }
    assert(l->state == LEASE_RUN_BACKWARD);
    l->state = LEASE_DONE;
    l->flagged = t->flagged;
    l->grad_out = TAKE_PTR(t->out);
    w->slots[l->slot] = 0;
    l->slot = TASK_NO_SLOT;
    if (l->info.u0 > 0)
        send_boundary(w, l, MSG_BACKWARD);
    report(w, l);
}

/* Whether the lease has waited long enough for this neighbour. */
static bool waits_long(const struct worker *w, const struct lease *l, uint32_t neighbour)
{
    int64_t since = l->waiting_since > w->step_began_at ? l->waiting_since : w->step_began_at;
    int64_t heard = w->bulk_heard_at[neighbour];

    return w->now - (heard > since ? heard : since) >= QUIET_NS << l->n_asked;
}

void worker_ask_boundaries(struct worker *w)
{
    for (uint32_t i = 0; i < w->leases.n; i++) {
        struct lease *l = w->leases.leases[i];
        bool input = l->state == LEASE_WAIT_INPUT;
        uint32_t neighbour = input ? l->info.prev : l->info.next;

        if (l->step != w->version || (!input && l->state != LEASE_WAIT_GRADIENT) || !waits_long(w, l, neighbour))
            continue;
        l->waiting_since = w->now;
        l->n_asked += l->n_asked < ASKED_MAX;
        struct msg *m = worker_msg(w, MSG_NEED);

        if (!m)
            return;
        m->need.boundary = (struct msg_boundary_key){.epoch = w->plan.epoch,
                                                     .step = l->step,
                                                     .microbatch = l->info.microbatch,
                                                     .mode = l->info.mode,
                                                     .unit = input ? l->info.u0 : l->info.u1,
                                                     .direction = input ? MSG_FORWARD : MSG_BACKWARD};
        worker_send(w, neighbour, m);
    }
}
