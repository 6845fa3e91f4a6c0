/* From one plan to the next: plans told at a start, plans announced and named by a commit, and what a step that is over
 * leaves for peers that join. See worker_impl.h.
 *
 * Invariant: under one plan a worker's leases, reduces and messages are of that plan's epoch alone. */
#include <string.h>

#include "peer/worker_impl.h"
#include "runtime/base/mem.h"

/* Everything of the plan before is void. */
void worker_forget_plan(struct worker *w)
{
    worker_past_done(w);
    worker_join_done(w);
    worker_drop_reduces(w);
    w->reduces = mem_free(w->reduces);
    lease_queue_clear(&w->leases);
    w->fetch = fetch_free(w->fetch);
    w->writes_pending = 0;
    w->step_leases = 0;
    w->commit.snapshot = false;
    w->commit.next_epoch = 0;
    worker_free_slots(w);
    w->bulk_heard_at = mem_free(w->bulk_heard_at);
    plan_groups_done(&w->groups);
    plan_done(&w->plan);
    w->phase = WORKER_IDLE;
}

/* Makes *plan (moved) the plan in force, if it has a place for us, and has the device set up for it. keep: what the
 * device holds already stays. */
static void adopt(struct worker *w, struct plan *plan, bool keep, bool fetch, uint64_t seed)
{
    struct task *t = task_new(TASK_SETUP);
    int self;

    worker_forget_plan(w);
    w->plan = *plan;
    *plan = (struct plan){0};
    if (!t || plan_groups(&w->plan, w->config.model, &w->groups) < 0)
        goto nomem;
    self = plan_find(&w->plan, &w->config.self);
    if (self < 0) {
        task_free(t);
        return;
    }
    w->self = (uint32_t)self;
    plan_current(&w->plan, w->self, w->held_units);
    w->reduces = mem_calloc(w->groups.n, sizeof(struct reduce *));
    w->bulk_heard_at = mem_calloc(w->plan.n_peers, sizeof *w->bulk_heard_at);
    t->plan = mem_calloc(1, sizeof *t->plan);
    if (!w->reduces || !w->bulk_heard_at || !t->plan || plan_copy(&w->plan, t->plan) < 0 || worker_join_init(w) < 0)
        goto nomem;
    t->epoch = w->plan.epoch;
    t->peer = w->self;
    t->keep = keep;
    t->fetch = fetch;
    t->seed = seed;
    w->phase = WORKER_SETUP;
    effects_task(&w->update->fx, t);
    return;
nomem:
    task_free(t);
    w->update->fx.oom = true;
}

/* A plan that is to come into force with a commit. */
static void announced(struct worker *w, const struct msg_plan *p)
{
    if (p->plan.epoch <= w->plan.epoch || p->plan.epoch < w->next.plan.epoch)
        return;
    if (p->plan.epoch > w->next.plan.epoch) {
        plan_done(&w->next.plan);
        if (plan_copy(&p->plan, &w->next.plan) < 0) {
            w->update->fx.oom = true;
            return;
        }
        w->next.self = plan_find(&w->next.plan, &w->config.self);
    }
    if (w->next.self >= 0)
        worker_tell_ready(w, p->plan.epoch);
}

void worker_on_plan(struct worker *w, const struct msg_plan *p)
{
    struct reason why = {0};
    struct plan plan = {0};

    if (p->plan.epoch < w->plan.epoch)
        return;
    if (p->plan.epoch == w->plan.epoch && w->phase != WORKER_IDLE) {
        if (w->phase >= WORKER_READY)
            worker_tell_ready(w, w->plan.epoch); /* it was lost */
        return;
    }
    if (plan_validate(&p->plan, w->config.model->n_units, &why) < 0) {
        worker_fatal(w, reason_wrap(&why, -E_PROTO, "the coordinator's plan %llu", (unsigned long long)p->plan.epoch),
                     &why);
        return;
    }
    if (p->next) {
        announced(w, p);
        return;
    }
    if (plan_copy(&p->plan, &plan) < 0) {
        w->update->fx.oom = true;
        return;
    }
    w->start_version = p->version;
    adopt(w, &plan, false, p->fetch, p->seed);
}

void worker_on_setup_done(struct worker *w, struct task *t)
{
    if (w->phase != WORKER_SETUP || t->epoch != w->plan.epoch)
        return;
    w->version = w->start_version;
    if (t->fetch) {
        worker_start_fetch(w);
        return;
    }
    worker_ready(w);
    worker_join_tick(w);
}

/* From version on the announced plan is in force. */
static void enter(struct worker *w, uint64_t version, bool snapshot)
{
    struct plan plan = w->next.plan;

    w->next.plan = (struct plan){0};
    adopt(w, &plan, true, false, 0);
    w->start_version = w->version = version;
    if (snapshot)
        worker_join_begin(w);
}

bool worker_enters(struct worker *w, const struct msg_commit *c)
{
    uint64_t epoch = w->next.plan.epoch;

    if (epoch == 0 || w->next.self < 0 || (c->next_epoch != epoch && c->epoch != epoch))
        return false;
    enter(w, c->step + 1, c->snapshot);
    return true;
}

/* Whether the next plan counts on something that was joined and is not complete. */
static bool counts_too_early(const struct worker *w)
{
    bool held[UNITS_MAX], next[UNITS_MAX];

    if (!w->join.groups || w->join.state == MSG_JOINING_CURRENT || w->next.self < 0)
        return false;
    plan_held(&w->plan, w->self, held);
    plan_current(&w->next.plan, (uint32_t)w->next.self, next);
    for (uint32_t u = 0; u < w->plan.n_units; u++)
        if (held[u] && !w->held_units[u] && next[u])
            return true;
    return false;
}

void worker_switch(struct worker *w)
{
    uint64_t epoch = w->commit.next_epoch;

    if (w->next.plan.epoch == epoch && counts_too_early(w)) {
        struct reason why = {0};

        worker_fatal(w,
                     reason_set(&why, -E_PROTO, "plan %llu counts on state that this peer has not got yet",
                                (unsigned long long)epoch),
                     &why);
        return;
    }
    if (w->next.plan.epoch == epoch) {
        enter(w, w->version, w->commit.snapshot);
        return;
    }
    /* A plan with a place for us would have been acknowledged by us before it was named. */
    worker_forget_plan(w);
    w->plan.epoch = epoch;
}

static void past_free(struct worker_past *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        reduce_free(p->reduces[i]);
    mem_free(p->reduces);
    *p = (struct worker_past){0};
}

void worker_past_done(struct worker *w)
{
    for (uint32_t i = 0; i < WORKER_PAST_MAX; i++)
        past_free(&w->past[i]);
}

/* The newest step's reduces that hold sums for who joins; those of old steps make room. */
void worker_keep_past(struct worker *w)
{
    struct worker_past p = {.step = w->version - 1, .n = w->groups.n};
    uint64_t bytes = 0, total = 0;
    bool any = false;

    for (uint32_t g = 0; g < w->groups.n; g++)
        any = any || (w->reduces[g] && reduce_keeps(w->reduces[g], &bytes));
    if (!any)
        return;
    p.reduces = mem_calloc(p.n, sizeof(struct reduce *));
    if (!p.reduces) {
        w->update->fx.oom = true;
        return;
    }
    for (uint32_t g = 0; g < w->groups.n; g++)
        if (w->reduces[g] && reduce_keeps(w->reduces[g], &bytes)) {
            p.bytes += bytes;
            p.reduces[g] = TAKE_PTR(w->reduces[g]);
        }
    past_free(&w->past[WORKER_PAST_MAX - 1]);
    memmove(&w->past[1], &w->past[0], (WORKER_PAST_MAX - 1) * sizeof w->past[0]);
    w->past[0] = p;
    for (uint32_t i = 0; i < WORKER_PAST_MAX; i++) {
        total += w->past[i].bytes;
        if (i > 0 && total > WORKER_PAST_BYTES_MAX)
            past_free(&w->past[i]);
    }
}

void worker_past_need(struct worker *w, uint32_t peer, const struct msg_chunk_key *key)
{
    for (uint32_t i = 0; i < WORKER_PAST_MAX; i++) {
        const struct worker_past *p = &w->past[i];

        if (p->n > key->group && p->step == key->step && p->reduces[key->group] && key->kind == MSG_CHUNK_SUM &&
            reduce_attempt(p->reduces[key->group]) == key->attempt)
            reduce_need(p->reduces[key->group], peer, key, &w->update->fx);
    }
}
