/* Checkpoints: snapshots at the holders, their digests compared, the state pulled, the shell asked to write it; and
 * handing out the state of the checkpoint that the run resumed from. See coord_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/digest.h"
#include "model/params.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

#define STALLED_NS (30 * NS_PER_S) /* no piece of a snapshot came for this long */

static void free_saving(struct coord_saving *s)
{
    mem_free(s->taken);
    mem_free(s->digest_of);
    mem_free(s->digests);
    fetch_free(s->fetch);
    *s = (struct coord_saving){0};
}

void coord_send_snapshot(struct coord *c, struct coord_peer *p, uint64_t version, bool drop)
{
    struct msg *m = coord_msg(c, MSG_SNAPSHOT);

    if (!m)
        return;
    m->snapshot.version = version;
    m->snapshot.drop = drop;
    coord_send(c, p, m);
}

/* Ends the checkpoint in the making; holders may forget their snapshots. */
void coord_abort_saving(struct coord *c)
{
    bool drop = c->saving.phase != SAVING_NONE && c->update && c->saving.what.version != c->join_version;

    for (uint32_t i = 0; drop && i < c->plan.n_peers; i++)
        if (c->plan_peers[i]->admitted)
            coord_send_snapshot(c, c->plan_peers[i], c->saving.what.version, true);
    free_saving(&c->saving);
}

void coord_saving_snapshots_due(struct coord *c, uint64_t version)
{
    struct coord_saving *s = &c->saving;
    uint32_t n = c->config.model->n_tensors;

    s->what = (struct coord_save){.version = version, .updates = c->updates, .loss = c->loss};
    s->taken = mem_calloc(c->plan.n_peers, sizeof *s->taken);
    s->digest_of = mem_calloc(n, sizeof *s->digest_of);
    s->digests = mem_calloc(n, sizeof *s->digests);
    if (!s->taken || !s->digest_of || !s->digests) {
        coord_oom(c);
        return;
    }
    for (uint32_t t = 0; t < n; t++)
        s->digest_of[t] = UINT32_MAX;
    s->phase = SAVING_SNAPSHOT;
    s->asked_at = s->progress_at = c->now_ns;
}

void coord_start_saving(struct coord *c)
{
    coord_saving_snapshots_due(c, c->version);
    for (uint32_t i = 0; c->saving.phase == SAVING_SNAPSHOT && i < c->plan.n_peers; i++)
        if (c->plan_peers[i]->admitted)
            coord_send_snapshot(c, c->plan_peers[i], c->version, false);
}

static bool all_taken(const struct coord *c)
{
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        if (c->plan_peers[i]->admitted && !c->saving.taken[i] && plan_counts(&c->plan, i))
            return false;
    for (uint32_t t = 0; t < c->config.model->n_tensors; t++)
        if (c->saving.digest_of[t] == UINT32_MAX)
            return false;
    return true;
}

static void start_fetch(struct coord *c)
{
    const struct model *m = c->config.model;
    struct coord_saving *s = &c->saving;
    struct fetch_item *items = mem_calloc((size_t)m->n_tensors * PARAMS_PARTS, sizeof *items);
    uint32_t n = 0;

    for (uint32_t t = 0; items && t < m->n_tensors; t++)
        for (uint32_t part = 0; part < PARAMS_PARTS; part++)
            items[n++] =
                (struct fetch_item){t, part, (uint64_t)m->tensors[t].n, c->plan_peers[s->digest_of[t]]->join.key};
    if (!items || fetch_new(c->config.term, s->what.version, items, n, &s->fetch) < 0) {
        coord_oom(c);
    } else {
        s->phase = SAVING_FETCH;
        fetch_tick(s->fetch, c->now_ns, &c->update->fx);
    }
    mem_free(items);
}

/* Whether a peer speaks of the tensors that the plan gives it, all of them and no others. */
static bool names_its_own(const struct coord *c, const struct coord_peer *p, const struct msg_snapshot_taken *t)
{
    uint32_t n_held = 0, n_named = 0;

    for (uint32_t g = 0; g < c->groups.n; g++) {
        const struct plan_group *group = &c->groups.groups[g];
        bool member = false;

        for (uint32_t i = 0; i < group->n_members; i++)
            member = member || (group->members[i] == p->plan_peer && !group->joining[i]);
        n_held += member ? group->n_tensors : 0;
        for (uint32_t i = 0; member && i < t->n_tensors; i++)
            n_named += t->tensors[i] < c->config.model->n_tensors && c->group_of[t->tensors[i]] == g;
    }
    return n_named == n_held && t->n_tensors == n_held;
}

void coord_on_snapshot_taken(struct coord *c, struct coord_peer *p, const struct msg_snapshot_taken *t)
{
    struct coord_saving *s = &c->saving;

    if (s->phase != SAVING_SNAPSHOT || t->version != s->what.version || p->plan_peer == UINT32_MAX ||
        s->taken[p->plan_peer] || !names_its_own(c, p, t))
        return;
    for (uint32_t i = 0; i < t->n_tensors; i++) {
        uint32_t tensor = t->tensors[i];

        if (s->digest_of[tensor] == UINT32_MAX) {
            s->digest_of[tensor] = p->plan_peer;
            memcpy(s->digests[tensor], t->digests[i], HASH_BYTES);
        } else if (memcmp(s->digests[tensor], t->digests[i], HASH_BYTES) != 0) {
            struct reason why = {0};
            const struct coord_peer *other = c->plan_peers[s->digest_of[tensor]];

            reason_set(&why, -E_CORRUPT,
                       "%s and %s hold different bits of %s at step %" PRIu64 ": nobody can be trusted with it",
                       other->join.name, p->join.name, c->config.model->tensors[tensor].name, t->version);
            c->ending_status = -E_CORRUPT;
            c->ending_why = why;
            coord_over(c);
            return;
        }
    }
    s->taken[p->plan_peer] = true;
    s->progress_at = c->ending_since = c->now_ns;
    if (all_taken(c))
        start_fetch(c);
}

void coord_on_state_chunk(struct coord *c, const struct key *from, const struct msg *m)
{
    struct coord_saving *s = &c->saving;

    if (s->phase != SAVING_FETCH || fetch_chunk(s->fetch, from, m, c->now_ns, &c->update->fx) != 1)
        return;
    struct task *t = task_new(TASK_STATE_WRITE);

    s->progress_at = c->ending_since = c->now_ns;
    if (t) {
        t->tensor = m->state_chunk.key.tensor;
        t->part = m->state_chunk.key.part;
        t->offset = m->state_chunk.key.offset;
        t->n = m->state_chunk.key.n;
        t->in = blob_ref(m->body);
    }
    effects_task(&c->update->fx, t);
    if (fetch_finished(s->fetch)) {
        s->phase = SAVING_WRITE;
        digest_model((const uint8_t(*)[HASH_BYTES])s->digests, c->config.model->n_tensors, s->what.hash);
        c->update->save = true;
        c->update->save_what = s->what;
    }
}

void coord_on_saved(struct coord *c, const struct coord_event *e)
{
    struct coord_saving *s = &c->saving;

    if (s->phase != SAVING_WRITE)
        return;
    if (e->status == 0) {
        c->has_saved = true;
        c->saved_version = s->what.version;
        c->saved_updates = s->what.updates;
        c->saved_loss = s->what.loss;
        memcpy(c->saved_hash, s->what.hash, HASH_BYTES);
        snprintf(c->saved_path, sizeof c->saved_path, "%s", e->text ? e->text : "");
        coord_note(c, &(struct note){.kind = NOTE_CHECKPOINT, .step = s->what.version, .text = c->saved_path});
    } else {
        coord_warn(c, "the checkpoint of step %" PRIu64 " could not be written: %s", s->what.version,
                   e->text ? e->text : "?");
    }
    uint64_t version = s->what.version;

    coord_abort_saving(c);
    if (c->phase == COORD_STALLED)
        coord_rollback(c);
    if (c->phase != COORD_ENDING)
        return;
    c->ending_since = c->now_ns;
    if (version < c->version || e->status == 0) {
        coord_finish(c);
        return;
    }
    if (c->ending_status == 0)
        c->ending_status = reason_set(&c->ending_why, e->status, "the last checkpoint could not be written: %s",
                                      e->text ? e->text : "?");
    coord_over(c);
}

void coord_saving_tick(struct coord *c)
{
    struct coord_saving *s = &c->saving;

    switch (s->phase) {
    case SAVING_NONE:
        if (c->save_due && c->phase == COORD_RUN) {
            c->save_due = false;
            coord_start_saving(c);
        }
        break;
    case SAVING_SNAPSHOT:
        if (c->now_ns - s->asked_at < 2 * COORD_RESEND_NS)
            break;
        if (s->what.version != c->version) { /* some request was lost, and its step is over: take the present one */
            coord_abort_saving(c);
            coord_start_saving(c);
            break;
        }
        s->asked_at = c->now_ns;
        for (uint32_t i = 0; i < c->plan.n_peers; i++)
            if (c->plan_peers[i]->admitted && !s->taken[i])
                coord_send_snapshot(c, c->plan_peers[i], c->version, false);
        break;
    case SAVING_FETCH:
        if (c->now_ns - s->progress_at < STALLED_NS) {
            fetch_tick(s->fetch, c->now_ns, &c->update->fx);
            break;
        }
        coord_abort_saving(c); /* somebody lost its snapshot */
        coord_start_saving(c);
        break;
    case SAVING_WRITE:
        break;
    }
}

void coord_on_state_get(struct coord *c, const struct key *from, const struct msg *m)
{
    const struct msg_state_key *k = &m->state_get.key;
    const struct model *model = c->config.model;
    uint32_t peer = 0;

    while (peer < c->n_peers &&
           !(c->peers[peer]->plan_peer != UINT32_MAX && key_equal(&c->peers[peer]->join.key, from)))
        peer++;
    if (peer == c->n_peers || !c->config.resumed || k->version != c->config.start_version ||
        k->tensor >= model->n_tensors || k->part >= PARAMS_PARTS || k->offset > (uint64_t)model->tensors[k->tensor].n ||
        k->n > (uint64_t)model->tensors[k->tensor].n - k->offset || k->n > FETCH_PIECE_ELEMS)
        return;
    struct task *t = task_new(TASK_SNAPSHOT_READ);

    if (t) {
        t->version = k->version;
        t->tensor = k->tensor;
        t->part = k->part;
        t->offset = k->offset;
        t->n = k->n;
        t->to = c->peers[peer]->plan_peer;
    }
    effects_task(&c->update->fx, t);
}
