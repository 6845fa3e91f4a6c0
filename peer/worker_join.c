/* Getting the state of units while the others train with it (design 7): a snapshot of one version is fetched from its
 * holders, the sums of every step since then are kept as they come, and replayed in order when the snapshot is here.
 * Nobody waits for who joins; who falls too far behind, or misses something for good, begins anew at a later snapshot.
 * See worker_impl.h.
 *
 * Invariant: what is joined has had, at any time, the updates of all steps from the snapshot's version up to one step,
 * in order, and none else. */
#include <assert.h>
#include <string.h>

#include "peer/worker_impl.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"

#define STEPS_MAX 256             /* steps behind at most... */
#define BYTES_MIN (256ull << 20)  /* ...and bytes of their sums: so many, or four times the state that is joined */
#define STUCK_NS  (10 * NS_PER_S) /* neither a piece nor a step in so long: a snapshot or a sum is gone */

static bool joins(const struct worker *w, uint32_t group)
{
    return w->join.groups && w->join.groups[group];
}

int worker_join_init(struct worker *w)
{
    bool any = false;
    bool *joined = mem_calloc(w->groups.n, sizeof *joined);

    if (!joined)
        return -E_NOMEM;
    for (uint32_t g = 0; g < w->groups.n; g++) {
        const struct plan_group *group = &w->groups.groups[g];

        for (uint32_t i = 0; i < group->n_members; i++)
            joined[g] = joined[g] || (group->members[i] == w->self && group->joining[i]);
        any = any || joined[g];
    }
    if (any)
        w->join.groups = joined;
    else
        mem_free(joined);
    w->join.state = any ? MSG_JOINING_LOST : MSG_JOINING_CURRENT;
    return 0;
}

static void step_free(const struct worker *w, struct worker_join_step *s)
{
    for (uint32_t g = 0; s->reduces && g < w->groups.n; g++)
        reduce_free(s->reduces[g]);
    mem_free(s->reduces);
    mem_free(s->commit.groups);
    *s = (struct worker_join_step){0};
}

/* Forgets what was fetched and kept. */
static void clear(struct worker *w)
{
    struct worker_join *j = &w->join;

    for (uint32_t i = 0; i < j->n; i++)
        step_free(w, &j->steps[i]);
    j->n = 0;
    j->fetch = fetch_free(j->fetch);
    j->writes_pending = 0;
    j->attempt++;
}

void worker_join_done(struct worker *w)
{
    clear(w);
    mem_free(w->join.steps);
    mem_free(w->join.groups);
    w->join = (struct worker_join){.attempt = w->join.attempt};
}

void worker_join_lose(struct worker *w, const char *why)
{
    if (!w->join.groups || w->join.state == MSG_JOINING_LOST)
        return;
    log_debug("worker", "joining begins anew after step %llu: %s", (unsigned long long)w->version, why);
    clear(w);
    w->join.state = MSG_JOINING_LOST;
}

static bool in_view(const struct worker *w, const struct key *key)
{
    for (uint32_t i = 0; i < w->n_view_keys; i++)
        if (key_equal(&w->view_keys[i], key))
            return true;
    return w->view_keys == NULL;
}

/* Who of the group's holders is to give this tensor: others for other tensors and for other joiners. false: none is
 * there. */
static bool choose_donor(const struct worker *w, const struct plan_group *group, struct fetch_item *item)
{
    uint32_t n = 0, pick;

    for (uint32_t i = 0; i < group->n_members; i++)
        n += !group->joining[i] && in_view(w, &w->plan.peers[group->members[i]].key);
    if (n == 0)
        return false;
    pick = (item->tensor + item->part + w->self) % n;
    for (uint32_t i = 0; i < group->n_members; i++)
        if (!group->joining[i] && in_view(w, &w->plan.peers[group->members[i]].key) && pick-- == 0)
            item->donor = w->plan.peers[group->members[i]].key;
    return true;
}

/* Another donor in the place of one that is gone. */
static bool replace_donor(void *arg, struct fetch_item *item)
{
    const struct worker *w = arg;

    for (uint32_t g = 0; g < w->groups.n && !in_view(w, &item->donor); g++)
        for (uint32_t i = 0; i < w->groups.groups[g].n_tensors; i++)
            if (w->groups.groups[g].tensors[i] == item->tensor)
                return choose_donor(w, &w->groups.groups[g], item);
    return false;
}

/* Makes the fetch of the state of version w->version, of which the holders are taking snapshots. */
static void start_fetch(struct worker *w)
{
    const struct model *m = w->config.model;
    struct fetch_item *items = mem_calloc((size_t)m->n_tensors * PARAMS_PARTS, sizeof *items);
    uint32_t n = 0;

    for (uint32_t g = 0; items && g < w->groups.n; g++)
        for (uint32_t i = 0; joins(w, g) && i < w->groups.groups[g].n_tensors; i++)
            for (uint32_t part = 0; part < PARAMS_PARTS; part++) {
                const uint32_t t = w->groups.groups[g].tensors[i];

                items[n] = (struct fetch_item){.tensor = t, .part = part, .n_elems = (uint64_t)m->tensors[t].n};
                choose_donor(w, &w->groups.groups[g], &items[n++]);
            }
    if (!items || fetch_new(w->term, w->version, items, n, &w->join.fetch) < 0)
        w->update->fx.oom = true;
    mem_free(items);
}

void worker_join_begin(struct worker *w)
{
    if (!w->join.groups)
        return;
    clear(w);
    w->join.state = MSG_JOINING_BEHIND;
    w->join.progress_at = w->now;
    start_fetch(w);
    worker_join_tick(w);
}

/* Room for one more step; NULL when out of memory. */
static struct worker_join_step *add_step(struct worker *w)
{
    struct worker_join *j = &w->join;

    if (j->n == j->cap) {
        uint32_t cap = j->cap ? 2 * j->cap : 16;
        struct worker_join_step *grown = mem_resize(j->steps, j->cap, cap, sizeof *grown);

        if (!grown)
            return NULL;
        j->steps = grown;
        j->cap = cap;
    }
    j->steps[j->n] = (struct worker_join_step){.reduces = mem_calloc(w->groups.n, sizeof(struct reduce *))};
    return j->steps[j->n].reduces ? &j->steps[j->n++] : NULL;
}

/* Keeps the step that was just committed. false: its sums were never announced here. */
static bool keep_step(struct worker *w)
{
    struct worker_join_step *s = add_step(w);

    if (!s) {
        w->update->fx.oom = true;
        return true;
    }
    s->commit = w->commit;
    w->commit.groups = NULL;
    w->commit.n_groups = 0;
    for (uint32_t g = 0; g < w->groups.n && !s->commit.skipped; g++) {
        if (!joins(w, g))
            continue;
        if (!w->reduces[g] || g >= s->commit.n_groups || reduce_attempt(w->reduces[g]) != s->commit.groups[g].attempt)
            return false;
        s->reduces[g] = TAKE_PTR(w->reduces[g]);
    }
    return true;
}

static bool too_far_behind(const struct worker *w)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < w->groups.n; g++)
        bytes += joins(w, g) ? (uint64_t)w->groups.groups[g].n_elems * sizeof(float) : 0;
    uint64_t most = 4 * PARAMS_PARTS * bytes;

    return w->join.n > STEPS_MAX || bytes * w->join.n > (most > BYTES_MIN ? most : BYTES_MIN);
}

void worker_join_commit(struct worker *w)
{
    struct worker_join *j = &w->join;

    if (!j->groups)
        return;
    if (j->state != MSG_JOINING_LOST) {
        if (!keep_step(w))
            worker_join_lose(w, "a step's sums were never announced");
        else if (too_far_behind(w))
            worker_join_lose(w, "too far behind");
    }
    if (j->state == MSG_JOINING_LOST && w->commit.snapshot)
        worker_join_begin(w);
    worker_join_advance(w);
}

struct reduce *worker_join_reduce(const struct worker *w, uint64_t step, uint32_t group, uint32_t attempt)
{
    for (uint32_t i = 0; i < w->join.n && group < w->groups.n; i++) {
        struct reduce *r = w->join.steps[i].commit.step == step ? w->join.steps[i].reduces[group] : NULL;

        if (r && reduce_attempt(r) == attempt)
            return r;
    }
    return NULL;
}

static bool complete(const struct worker *w, const struct worker_join_step *s)
{
    for (uint32_t g = 0; g < w->groups.n; g++)
        if (s->reduces[g] && !reduce_finished(s->reduces[g]))
            return false;
    return true;
}

static void replay(struct worker *w, const struct worker_join_step *s)
{
    for (uint32_t g = 0; g < w->groups.n; g++) {
        struct task *t = s->reduces[g] ? task_new(TASK_REPLAY) : NULL;

        if (!s->reduces[g])
            continue;
        if (t) {
            t->epoch = w->plan.epoch;
            t->step = s->commit.step;
            t->attempt = w->join.attempt;
            t->group = g;
            t->update = s->commit.update;
            memcpy(t->hash, s->commit.groups[g].hash, HASH_BYTES);
            if (reduce_sums(s->reduces[g], &t->parts, &t->n_parts) < 0)
                t = task_free(t);
        }
        effects_task(&w->update->fx, t);
    }
}

/* Replays what can be replayed: steps in order, as far as their sums are here. */
void worker_join_advance(struct worker *w)
{
    struct worker_join *j = &w->join;
    uint32_t done = 0;

    if (j->state == MSG_JOINING_LOST || j->fetch || j->writes_pending > 0)
        return;
    for (; done < j->n && complete(w, &j->steps[done]); done++) {
        replay(w, &j->steps[done]);
        step_free(w, &j->steps[done]);
    }
    if (done > 0) {
        j->n -= done;
        memmove(j->steps, j->steps + done, j->n * sizeof *j->steps);
        j->progress_at = w->now;
    }
    j->state = j->n > 0 ? MSG_JOINING_BEHIND : MSG_JOINING_CURRENT;
}

void worker_join_chunk(struct worker *w, const struct key *from, const struct msg *m)
{
    struct worker_join *j = &w->join;

    if (!j->fetch || fetch_chunk(j->fetch, from, m, w->now, &w->update->fx) != 1)
        return;
    struct task *t = task_new(TASK_STATE_WRITE);

    j->progress_at = w->now;
    if (t) {
        t->epoch = w->plan.epoch;
        t->attempt = j->attempt;
        t->tensor = m->state_chunk.key.tensor;
        t->part = m->state_chunk.key.part;
        t->offset = m->state_chunk.key.offset;
        t->n = m->state_chunk.key.n;
        t->in = blob_ref(m->body);
        j->writes_pending++;
    }
    effects_task(&w->update->fx, t);
    if (fetch_finished(j->fetch))
        j->fetch = fetch_free(j->fetch);
}

void worker_join_written(struct worker *w, const struct task *t)
{
    if (!w->join.groups || t->epoch != w->plan.epoch || t->attempt != w->join.attempt)
        return;
    assert(w->join.writes_pending > 0);
    w->join.writes_pending--;
    worker_join_advance(w);
}

void worker_join_tick(struct worker *w)
{
    struct worker_join *j = &w->join;

    if (!j->groups || w->phase < WORKER_READY)
        return;
    if (j->fetch)
        fetch_tick(j->fetch, w->now, &w->update->fx);
    for (uint32_t i = 0; i < j->n; i++)
        for (uint32_t g = 0; g < w->groups.n; g++)
            if (j->steps[i].reduces[g])
                reduce_tick(j->steps[i].reduces[g], w->now, &w->update->fx);
    if (j->state == MSG_JOINING_BEHIND && w->now - j->progress_at > STUCK_NS)
        worker_join_lose(w, "something never came");
}

void worker_join_view(struct worker *w, const struct msg_view *v)
{
    struct key *keys = mem_calloc(v->n_peers ? v->n_peers : 1, sizeof *keys);

    if (!keys) {
        w->update->fx.oom = true;
        return;
    }
    for (uint32_t i = 0; i < v->n_peers; i++)
        keys[i] = v->peers[i].key;
    mem_free(w->view_keys);
    w->view_keys = keys;
    w->n_view_keys = v->n_peers;
    if (w->join.fetch)
        fetch_redirect(w->join.fetch, replace_donor, w, w->now, &w->update->fx);
}
