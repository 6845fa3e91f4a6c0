/* The worker's state across a step's end: reduces, commits, snapshots for checkpoints, and state fetched at the start.
 * See worker_impl.h. */
#include <assert.h>
#include <string.h>

#include "peer/worker_impl.h"
#include "runtime/base/mem.h"

void worker_drop_reduces(struct worker *w)
{
    for (uint32_t i = 0; w->reduces && i < w->groups.n; i++)
        w->reduces[i] = reduce_free(w->reduces[i]);
}

void worker_on_reduce(struct worker *w, const struct key *from, struct msg **mp)
{
    const struct msg *m = *mp;
    const struct msg_reduce *o = &m->reduce;
    struct reason why = {0};

    if (o->epoch > w->plan.epoch || (o->epoch == w->plan.epoch && (o->step > w->version || w->phase < WORKER_READY))) {
        worker_hold(w, from, mp);
        return;
    }
    if (o->epoch < w->plan.epoch || o->step < w->version || w->phase != WORKER_READY)
        return;
    if (o->group >= w->groups.n) {
        worker_drop(w, from, m, "no such group");
        return;
    }
    struct reduce **slot = &w->reduces[o->group];

    if (*slot && reduce_attempt(*slot) >= o->attempt) {
        if (reduce_attempt(*slot) == o->attempt && reduce_finished(*slot))
            worker_tell(w, reduce_report(*slot));
        return;
    }
    *slot = reduce_free(*slot);
    struct reduce_config config = {.term = w->term,
                                   .epoch = o->epoch,
                                   .step = o->step,
                                   .plan = &w->plan,
                                   .group = &w->groups.groups[o->group],
                                   .group_index = o->group,
                                   .self = w->self,
                                   .exact = w->config.exact,
                                   .now = w->now};
    int status = reduce_new(&config, o, &w->update->fx, slot, &why);

    if (status == -E_NOMEM)
        w->update->fx.oom = true;
    else if (status < 0)
        worker_drop(w, from, m, why.text);
    else
        worker_retry_held(w);
}

/* The running attempt that a key names, NULL if there is none. */
static struct reduce *find_reduce(const struct worker *w, uint64_t epoch, uint64_t step, uint32_t group,
                                  uint32_t attempt)
{
    if (epoch != w->plan.epoch || step != w->version || group >= w->groups.n || !w->reduces || !w->reduces[group] ||
        reduce_attempt(w->reduces[group]) != attempt)
        return NULL;
    return w->reduces[group];
}

void worker_on_chunk(struct worker *w, const struct key *from, uint32_t peer, struct msg **mp)
{
    const struct msg *m = *mp;
    const struct msg_chunk_key *k = &m->chunk.key;
    struct reduce *r = find_reduce(w, k->epoch, k->step, k->group, k->attempt);

    if (r) {
        if (reduce_chunk(r, peer, m, w->now, &w->update->fx) < 0)
            worker_drop(w, from, m, "does not fit its reduce");
        else if (reduce_joins(r) && reduce_finished(r))
            worker_tell(w, reduce_report(r));
        return;
    }
    if (k->epoch == w->plan.epoch && (r = worker_join_reduce(w, k->step, k->group, k->attempt))) {
        if (reduce_chunk(r, peer, m, w->now, &w->update->fx) == 0)
            worker_join_advance(w);
        return;
    }
    if (k->epoch < w->plan.epoch || (k->epoch == w->plan.epoch && k->step < w->version))
        return;
    if (worker_too_far(w, k->epoch, k->step) || k->group >= GROUPS_MAX)
        worker_drop(w, from, m, "too far ahead");
    else if (k->epoch == w->plan.epoch && k->step == w->version && k->group < w->groups.n && w->reduces[k->group] &&
             reduce_attempt(w->reduces[k->group]) > k->attempt)
        return; /* a voided attempt's */
    else
        worker_hold(w, from, mp);
}

void worker_on_reduce_task(struct worker *w, struct task *t)
{
    struct reduce *r = find_reduce(w, t->epoch, t->step, t->group, t->attempt);

    if (!r)
        return;
    reduce_task_done(r, t, w->now, &w->update->fx);
    if (t->kind == TASK_DIGEST)
        worker_tell(w, reduce_report(r));
}

/* Whether this peer has what the commit is about to apply. */
static bool has_sums(const struct worker *w, const struct msg_commit *c)
{
    if (c->n_groups != w->groups.n)
        return false;
    for (uint32_t g = 0; g < w->groups.n; g++) {
        const struct plan_group *group = &w->groups.groups[g];
        const struct reduce *r = w->reduces[g];

        for (uint32_t i = 0; i < group->n_members; i++)
            if (group->members[i] == w->self && !group->joining[i] &&
                (!r || !reduce_finished(r) || reduce_attempt(r) != c->groups[g].attempt ||
                 memcmp(reduce_hash(r), c->groups[g].hash, HASH_BYTES) != 0))
                return false;
    }
    return true;
}

void worker_on_commit(struct worker *w, const struct key *from, struct msg **mp)
{
    struct msg *m = *mp;
    const struct msg_commit *c = &m->commit;

    if ((w->phase == WORKER_IDLE || (w->phase == WORKER_READY && c->epoch > w->plan.epoch)) && worker_enters(w, c))
        return;
    /* Who only joins waits for no commit that it missed: it begins anew. */
    if (w->phase == WORKER_READY && c->epoch == w->plan.epoch && c->step > w->version &&
        !plan_counts(&w->plan, w->self)) {
        worker_join_lose(w, "a commit was lost");
        worker_drop_reduces(w);
        w->version = c->step;
    }
    if (c->epoch > w->plan.epoch || (c->epoch == w->plan.epoch && (c->step > w->version || w->phase < WORKER_READY))) {
        worker_hold(w, from, mp);
        return;
    }
    if (c->epoch < w->plan.epoch || c->step < w->version || w->phase == WORKER_COMMITTING)
        return;
    if (!c->skipped && !has_sums(w, c)) {
        struct reason why = {0};

        worker_fatal(w,
                     reason_set(&why, -E_CORRUPT,
                                "the commit of step %llu names gradient sums that this peer does not have",
                                (unsigned long long)c->step),
                     &why);
        return;
    }
    struct task *t = task_new(TASK_APPLY);

    if (t) {
        t->epoch = w->plan.epoch;
        t->step = c->step;
        t->skipped = c->skipped;
        t->update = c->update;
    }
    mem_free(w->commit.groups);
    w->commit = m->commit;
    m->commit.groups = NULL;
    m->commit.n_groups = 0;
    w->phase = WORKER_COMMITTING;
    effects_task(&w->update->fx, t);
}

static void take_snapshot(struct worker *w)
{
    struct task *t = task_new(TASK_SNAPSHOT);

    if (t) {
        t->epoch = w->plan.epoch;
        t->version = w->version;
    }
    effects_task(&w->update->fx, t);
}

void worker_on_applied(struct worker *w)
{
    assert(w->phase == WORKER_COMMITTING);
    w->phase = WORKER_READY;
    w->version++;
    worker_join_commit(w);
    worker_keep_past(w);
    worker_drop_reduces(w);
    lease_queue_drop_before(&w->leases, w->version);
    worker_free_slots(w);
    bool snapshot = w->commit.snapshot;

    if (w->commit.next_epoch > 0)
        worker_switch(w);
    /* Of what the plan in force from now on counts on: who joins asks its holders. */
    if (snapshot && w->phase != WORKER_IDLE && plan_counts(&w->plan, w->self))
        take_snapshot(w);
    worker_retry_held(w);
}

void worker_on_snapshot(struct worker *w, const struct key *from, struct msg **mp)
{
    const struct msg_snapshot *s = &(*mp)->snapshot;

    if (s->drop) {
        struct task *t = task_new(TASK_SNAPSHOT_DROP);

        if (t)
            t->version = s->version;
        effects_task(&w->update->fx, t);
    } else if (w->phase == WORKER_COMMITTING || w->phase == WORKER_SETUP || w->phase == WORKER_FETCHING ||
               s->version > w->version) {
        worker_hold(w, from, mp);
    } else if (w->phase == WORKER_READY && s->version == w->version && plan_counts(&w->plan, w->self)) {
        take_snapshot(w);
    }
}

void worker_on_snapshot_task(struct worker *w, struct task *t)
{
    struct msg *m;

    if (t->kind == TASK_SNAPSHOT) {
        m = worker_msg(w, MSG_SNAPSHOT_TAKEN);
        if (!m)
            return;
        m->snapshot_taken =
            (struct msg_snapshot_taken){t->version, t->n_digests, TAKE_PTR(t->digest_tensors), TAKE_PTR(t->digests)};
        t->n_digests = 0;
    } else {
        m = worker_msg(w, MSG_STATE_CHUNK);
        if (!m)
            return;
        m->state_chunk.key = (struct msg_state_key){t->version, t->tensor, t->part, t->offset, t->n};
        memcpy(m->state_chunk.hash, t->hash, HASH_BYTES);
        m->body = blob_ref(t->out);
    }
    if (t->kind == TASK_SNAPSHOT || t->to == MSG_NO_PEER)
        worker_tell(w, m);
    else if (t->epoch == w->plan.epoch)
        worker_send(w, t->to, m);
    else
        msg_free(m); /* it asks again */
}

void worker_on_state_get(struct worker *w, const struct key *from, uint32_t peer, struct msg **mp)
{
    const struct msg_state_key *k = &(*mp)->state_get.key;
    const struct model *m = w->config.model;

    if (k->tensor >= m->n_tensors || k->part >= PARAMS_PARTS || k->offset > (uint64_t)m->tensors[k->tensor].n ||
        k->n > (uint64_t)m->tensors[k->tensor].n - k->offset || (peer != MSG_NO_PEER && k->n > FETCH_PIECE_ELEMS)) {
        worker_drop(w, from, *mp, "no such state");
        return;
    }
    /* Of a version that is about to be committed here, too: so is its snapshot. */
    if (peer != MSG_NO_PEER && k->version == w->version + 1) {
        worker_hold(w, from, mp);
        return;
    }
    if (peer != MSG_NO_PEER && w->reads_pending >= WORKER_READS_MAX)
        return;
    struct task *t = task_new(TASK_SNAPSHOT_READ);

    w->reads_pending += peer != MSG_NO_PEER;

    if (t) {
        t->epoch = w->plan.epoch;
        t->to = peer;
        t->version = k->version;
        t->tensor = k->tensor;
        t->part = k->part;
        t->offset = k->offset;
        t->n = k->n;
    }
    effects_task(&w->update->fx, t);
}

void worker_start_fetch(struct worker *w)
{
    const struct model *m = w->config.model;
    struct fetch_item *items = mem_calloc((size_t)m->n_tensors * PARAMS_PARTS, sizeof *items);
    uint32_t n = 0;

    if (!items) {
        w->update->fx.oom = true;
        return;
    }
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        bool holds = false;

        for (uint32_t i = 0; i < m->tensors[t].n_uses; i++)
            holds = holds || w->held_units[m->tensors[t].use_unit[i]];
        for (uint32_t part = 0; holds && part < PARAMS_PARTS; part++)
            items[n++] = (struct fetch_item){t, part, (uint64_t)m->tensors[t].n, w->config.coordinator};
    }
    if (fetch_new(w->term, w->start_version, items, n, &w->fetch) < 0) {
        w->update->fx.oom = true;
    } else {
        w->phase = WORKER_FETCHING;
        fetch_tick(w->fetch, w->now, &w->update->fx);
    }
    mem_free(items);
}

void worker_on_state_chunk(struct worker *w, const struct key *from, struct msg **mp)
{
    const struct msg *m = *mp;

    worker_join_chunk(w, from, m);
    if (!w->fetch || fetch_chunk(w->fetch, from, m, w->now, &w->update->fx) != 1)
        return;
    struct task *t = task_new(TASK_STATE_WRITE);

    if (t) {
        t->epoch = w->plan.epoch;
        t->tensor = m->state_chunk.key.tensor;
        t->part = m->state_chunk.key.part;
        t->offset = m->state_chunk.key.offset;
        t->n = m->state_chunk.key.n;
        t->in = blob_ref(m->body);
        w->writes_pending++;
    }
    effects_task(&w->update->fx, t);
}

void worker_on_state_written(struct worker *w, const struct task *t)
{
    worker_join_written(w, t);
    if (w->phase != WORKER_FETCHING || t->epoch != w->plan.epoch)
        return;
    if (--w->writes_pending == 0 && fetch_finished(w->fetch)) {
        w->fetch = fetch_free(w->fetch);
        worker_ready(w);
    }
}
