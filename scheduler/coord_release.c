/* A holder is gone in the middle of a step: its leases go to others, by the uniform rule of design 7. Who takes over
 * redoes (microbatch, span) from the boundary tensors that the neighbours on the route kept; what it makes that a
 * neighbour already has is ignored there. Work whose sums every survivor already stores is not done again. See
 * coord_impl.h. */
#include <inttypes.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

bool coord_alive(const struct coord *c, uint32_t plan_peer)
{
    return c->plan_peers[plan_peer]->admitted;
}

/* Whether the gradient sums of all of the unit's tensors are stored at every surviving member. */
static bool unit_reduced(const struct coord *c, uint32_t u)
{
    const struct model_unit *unit = &c->config.model->units[u];

    for (uint32_t i = 0; i < unit->n_tensors; i++)
        if (!c->group[c->group_of[unit->tensor[i]]].complete)
            return false;
    return true;
}

/* Whether what this lease gave is lost with its peer. */
static bool must_redo(const struct coord *c, const struct route_lease *l, bool present)
{
    if (!present || !l->done)
        return !present || l->info.mode != MSG_MODE_EVAL || !c->eval_in[l->info.microbatch];
    if (l->info.mode == MSG_MODE_EVAL)
        return !c->eval_in[l->info.microbatch];
    for (uint32_t u = l->info.u0; u < l->info.u1; u++)
        if (!unit_reduced(c, u))
            return true;
    return false;
}

static bool holds(const struct plan_stage *st, const struct plan *plan, uint32_t peer)
{
    for (uint32_t h = 0; h < st->n_holders; h++)
        if (plan->holders[st->first_holder + h].peer == peer && !plan->holders[st->first_holder + h].joining)
            return true;
    return false;
}

/* Open leases of a peer in the route set: how busy it is. */
static uint32_t open_leases(const struct routes *r, uint32_t peer)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n; i++)
        n += r->leases[i].peer == peer && !r->leases[i].done;
    return n;
}

/* The surviving holder of the stage that has least to do, in microbatches by its share; a shadow counts as one with the
 * smallest share. */
static uint32_t pick_holder(const struct coord *c, const struct routes *r, const struct plan_stage *st)
{
    uint32_t best = UINT32_MAX;
    double best_load = 0;

    for (uint32_t h = 0; h < st->n_holders; h++) {
        const struct plan_holder *holder = &c->plan.holders[st->first_holder + h];
        double load = (open_leases(r, holder->peer) + 1.0) / (holder->weight ? holder->weight : 0.5);

        if (coord_alive(c, holder->peer) && !holder->joining && (best == UINT32_MAX || load < best_load)) {
            best = holder->peer;
            best_load = load;
        }
    }
    return best;
}

/* The lease of the same microbatch that ends (or begins) at unit u, NULL if there is none. */
static struct route_lease *neighbour(struct routes *r, const struct msg_lease *l, uint32_t u, bool ends)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct msg_lease *o = &r->leases[i].info;

        if (o->microbatch == l->microbatch && o->mode == l->mode && (ends ? o->u1 : o->u0) == u)
            return &r->leases[i];
    }
    return NULL;
}

/* Writes the leases that replace `old` into out (room for n_stages): as few and as long as the survivors' spans allow.
 */
static uint32_t replace(const struct coord *c, const struct routes *r, const struct msg_lease *old,
                        struct route_lease *out)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        const struct plan_stage *st = &c->plan.stages[s];

        if (st->u1 <= old->u0 || st->u0 >= old->u1)
            continue;
        if (n > 0 && holds(st, &c->plan, out[n - 1].peer)) {
            out[n - 1].info.u1 = st->u1;
            continue;
        }
        uint32_t peer = pick_holder(c, r, st);

        out[n] = (struct route_lease){.info = *old, .peer = peer, .changed = true};
        out[n].info.u0 = st->u0;
        out[n].info.u1 = st->u1;
        if (n > 0) {
            out[n - 1].info.next = peer;
            out[n].info.prev = out[n - 1].peer;
        }
        n++;
    }
    return n;
}

/* Puts the replacements in the place of lease i and tells the neighbours on the route in the table. false: out of
 * memory. */
static bool put(struct routes *r, uint32_t i, const struct route_lease *with, uint32_t n)
{
    struct route_lease *grown = mem_resize(r->leases, r->n, r->n + n - 1, sizeof *grown);
    struct route_lease *before, *after;

    if (!grown)
        return false;
    r->leases = grown;
    r->leases[i] = with[0];
    memcpy(&r->leases[r->n], &with[1], (n - 1) * sizeof *with);
    if (with[0].info.mode == MSG_MODE_TRAIN)
        r->n_train += n - 1;
    r->n += n - 1;
    before = neighbour(r, &with[0].info, with[0].info.u0, true);
    after = neighbour(r, &with[0].info, with[n - 1].info.u1, false);
    if (before) {
        before->info.next = with[0].peer;
        before->changed = true;
    }
    if (after) {
        after->info.prev = with[n - 1].peer;
        after->changed = true;
    }
    return true;
}

static uint32_t release(struct coord *c, struct routes *r, uint32_t gone, bool present)
{
    struct route_lease *with = mem_calloc(c->plan.n_stages, sizeof *with);
    uint32_t released = 0;

    for (uint32_t i = 0; with && i < r->n; i++) {
        struct route_lease *l = &r->leases[i];
        const struct msg_lease old = l->info;

        if (l->peer != gone || !must_redo(c, l, present))
            continue;
        if (l->done && old.mode == MSG_MODE_TRAIN) {
            c->n_train_done--;
            for (uint32_t u = old.u0; u < old.u1; u++)
                c->unit_done[u]--;
        }
        uint32_t n = replace(c, r, &old, with);

        if (!put(r, i, with, n))
            break;
        released++;
    }
    if (!with)
        coord_oom(c);
    mem_free(with);
    return released;
}

/* What becomes of the attempts at the groups that the gone peer was in. */
static void void_attempts(struct coord *c, uint32_t gone)
{
    for (uint32_t g = 0; g < c->groups.n; g++) {
        const struct plan_group *group = &c->groups.groups[g];
        struct coord_group *s = &c->group[g];
        bool member = false, all = s->attempt > 0 && !s->restart;

        for (uint32_t i = 0; i < group->n_members; i++) {
            member = member || (group->members[i] == gone && !group->joining[i]);
            all = all && (s->reported[i] || group->joining[i] || !coord_alive(c, group->members[i]));
        }
        if (!member || s->complete || s->attempt == 0)
            continue;
        if (all)
            s->complete = true; /* the survivors have the sums, the gone one's work is in them */
        else
            s->restart = true;
    }
}

uint32_t coord_release(struct coord *c, uint32_t gone)
{
    uint32_t released;

    void_attempts(c, gone);
    released = release(c, &c->now, gone, true);
    if (c->next_valid)
        release(c, &c->next, gone, false);
    coord_send_changed(c);
    coord_start_reduces(c);
    coord_progress(c);
    if (c->saving.phase == SAVING_SNAPSHOT || c->saving.phase == SAVING_FETCH) {
        coord_abort_saving(c);
        coord_start_saving(c);
    }
    coord_try_finish(c);
    return released;
}
