/* The worker's frame: events in, dispatch, plan and heartbeat. See worker.h and worker_impl.h. */
#include "peer/worker.h"

#include <stdio.h>
#include <string.h>

#include "peer/worker_impl.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"

#define HEARTBEAT_NS (100 * NS_PER_MS)

bool worker_bulk(enum msg_type type)
{
    return type == MSG_BOUNDARY || type == MSG_CHUNK || type == MSG_STATE_CHUNK;
}

int worker_new(const struct worker_config *config, struct worker **ret)
{
    struct worker *w = mem_calloc(1, sizeof *w);

    if (!w)
        return -E_NOMEM;
    w->config = *config;
    w->held_units = mem_calloc(config->model->n_units, sizeof(bool));
    if (!w->held_units) {
        worker_free(w);
        return -E_NOMEM;
    }
    *ret = w;
    return 0;
}

struct worker *worker_free(struct worker *w)
{
    if (!w)
        return NULL;
    worker_forget_plan(w);
    plan_done(&w->next.plan);
    lease_queue_done(&w->leases);
    held_done(&w->held);
    mem_free(w->commit.groups);
    mem_free(w->view_keys);
    mem_free(w->held_units);
    mem_free(w->slots);
    return mem_free(w);
}

void worker_fatal(struct worker *w, int status, const struct reason *why)
{
    if (w->update->over)
        return;
    w->update->over = true;
    w->update->status = status;
    reason_set(&w->update->why, status, "%s", reason_text(why, status));
    struct msg *m = worker_msg(w, MSG_LEAVE);

    if (m) {
        snprintf(m->leave.text, sizeof m->leave.text, "%s", reason_text(why, status));
        worker_tell(w, m);
    }
}

struct msg *worker_msg(struct worker *w, enum msg_type type)
{
    struct msg *m = msg_new(type, w->term);

    if (!m)
        w->update->fx.oom = true;
    return m;
}

static void from_peer(struct worker *w, const struct key *from, struct msg **mp);

bool worker_send(struct worker *w, uint32_t peer, struct msg *m)
{
    if (peer >= w->plan.n_peers) {
        msg_free(m);
        return false;
    }
    if (peer == w->self && m) { /* two leases of one route can meet here after somebody else died */
        from_peer(w, &w->config.self, &m);
        msg_free(m);
        return true;
    }
    effects_send(&w->update->fx, &w->plan.peers[peer].key, m);
    return true;
}

void worker_tell(struct worker *w, struct msg *m)
{
    effects_send(&w->update->fx, &w->config.coordinator, m);
}

void worker_hold(struct worker *w, const struct key *from, struct msg **m)
{
    if (held_add(&w->held, from, TAKE_PTR(*m)) == -E_NOMEM)
        w->update->fx.oom = true;
}

bool worker_too_far(const struct worker *w, uint64_t epoch, uint64_t step)
{
    uint64_t newest = w->next.plan.epoch > w->plan.epoch ? w->next.plan.epoch : w->plan.epoch;

    return epoch > newest + 1 || (epoch == w->plan.epoch && step > w->version + WORKER_AHEAD_MAX);
}

void worker_drop(struct worker *w, const struct key *from, const struct msg *m, const char *why)
{
    char id[KEY_SHORT_LEN + 1];

    key_short(from, id);
    w->dropped++;
    log_debug("worker", "%s of %s dropped: %s", msg_name(m->type), id, why);
}

void worker_heartbeat(struct worker *w)
{
    struct msg *m = worker_msg(w, MSG_HEARTBEAT);

    w->heartbeat_at = w->now;
    if (!m)
        return;
    m->heartbeat = (struct msg_heartbeat){.view = w->view,
                                          .epoch = w->phase >= WORKER_READY ? w->plan.epoch : 0,
                                          .version = w->version,
                                          .step_leases = w->step_leases,
                                          .busy_ns = w->busy_ns,
                                          .joining = w->join.state};
    w->join.told = w->join.state;
    worker_tell(w, m);
}

void worker_tell_ready(struct worker *w, uint64_t epoch)
{
    struct msg *m = worker_msg(w, MSG_READY);

    if (m) {
        m->ready.epoch = epoch;
        m->ready.ok = true;
        worker_tell(w, m);
    }
}

void worker_ready(struct worker *w)
{
    w->phase = WORKER_READY;
    worker_tell_ready(w, w->plan.epoch);
    worker_retry_held(w);
}

void worker_free_slots(struct worker *w)
{
    for (uint32_t i = 0; i < w->n_slots; i++)
        w->slots[i] = 0;
}

static void on_bye(struct worker *w, const struct msg_bye *b)
{
    static const int status[MSG_BYE_END] = {
        [MSG_BYE_DONE] = 0, [MSG_BYE_STOPPED] = -E_CANCELED, [MSG_BYE_FENCED] = -E_AUTH, [MSG_BYE_FAILED] = -E_PEER};

    w->update->over = true;
    w->update->status = b->code < MSG_BYE_END ? status[b->code] : -E_CLOSED;
    if (w->update->status < 0)
        reason_set(&w->update->why, w->update->status, "%s", b->text);
}

static void from_coordinator(struct worker *w, const struct key *from, struct msg **mp)
{
    struct msg *m = *mp;

    switch (m->type) {
    case MSG_PLAN:
        worker_on_plan(w, &m->plan);
        break;
    case MSG_LEASES:
        worker_on_leases(w, from, mp);
        break;
    case MSG_REDUCE:
        worker_on_reduce(w, from, mp);
        break;
    case MSG_COMMIT:
        worker_on_commit(w, from, mp);
        break;
    case MSG_SNAPSHOT:
        worker_on_snapshot(w, from, mp);
        break;
    case MSG_STATE_GET:
        worker_on_state_get(w, from, MSG_NO_PEER, mp);
        break;
    case MSG_STATE_CHUNK:
        worker_on_state_chunk(w, from, mp);
        break;
    case MSG_BYE:
        on_bye(w, &m->bye);
        break;
    case MSG_VIEW:
        if (m->view.number > w->view) {
            w->view = m->view.number;
            worker_join_view(w, &m->view);
        }
        break;
    case MSG_HEARTBEAT:
        break;
    default:
        worker_drop(w, from, m, "not a coordinator's message");
    }
}

static void from_peer(struct worker *w, const struct key *from, struct msg **mp)
{
    struct msg *m = *mp;
    int peer = plan_find(&w->plan, from);

    if (peer < 0) {
        if ((w->phase < WORKER_READY && worker_bulk(m->type)) || plan_find(&w->next.plan, from) >= 0)
            worker_hold(w, from, mp); /* the plan that explains it may be on its way, or about to come into force */
        else
            worker_drop(w, from, m, "not in the plan");
        return;
    }
    if (worker_bulk(m->type) && w->bulk_heard_at)
        w->bulk_heard_at[peer] = w->now;
    switch (m->type) {
    case MSG_BOUNDARY:
        worker_on_boundary(w, from, (uint32_t)peer, mp);
        break;
    case MSG_CHUNK:
        worker_on_chunk(w, from, (uint32_t)peer, mp);
        break;
    case MSG_NEED:
        if (!m->need.is_chunk) {
            worker_on_need_boundary(w, (uint32_t)peer, &m->need.boundary);
        } else if (m->need.chunk.epoch == w->plan.epoch && m->need.chunk.step < w->version) {
            worker_past_need(w, (uint32_t)peer, &m->need.chunk);
        } else if (m->need.chunk.epoch == w->plan.epoch && m->need.chunk.step == w->version &&
                   m->need.chunk.group < w->groups.n && w->reduces[m->need.chunk.group] &&
                   reduce_attempt(w->reduces[m->need.chunk.group]) == m->need.chunk.attempt) {
            reduce_need(w->reduces[m->need.chunk.group], (uint32_t)peer, &m->need.chunk, &w->update->fx);
        }
        break;
    case MSG_STATE_GET:
        worker_on_state_get(w, from, (uint32_t)peer, mp);
        break;
    case MSG_STATE_CHUNK:
        worker_on_state_chunk(w, from, mp);
        break;
    default:
        worker_drop(w, from, m, "not a peer's message");
    }
}

static void dispatch(struct worker *w, const struct key *from, struct msg *m)
{
    bool coordinator = key_equal(from, &w->config.coordinator);

    if (coordinator && m->term > w->term)
        w->term = m->term;
    if (m->term != w->term)
        worker_drop(w, from, m, "of another term");
    else if (coordinator)
        from_coordinator(w, from, &m);
    else
        from_peer(w, from, &m);
    msg_free(m);
}

void worker_retry_held(struct worker *w)
{
    struct held_entry *entries;
    uint32_t n = held_take(&w->held, &entries);

    for (uint32_t i = 0; i < n; i++)
        dispatch(w, &entries[i].from, entries[i].msg);
    mem_free(entries);
}

static void on_task(struct worker *w, struct task *t)
{
    w->busy_ns += (uint64_t)t->busy_ns;
    if (t->kind == TASK_FORWARD || t->kind == TASK_BACKWARD)
        w->device_busy = false;
    w->reads_pending -= t->kind == TASK_SNAPSHOT_READ && t->to != MSG_NO_PEER;
    if (t->kind == TASK_SNAPSHOT_READ && t->status == -E_NOENT)
        return; /* asked for a snapshot that was dropped meanwhile */
    if (t->kind == TASK_REPLAY && t->status == -E_CORRUPT) {
        if (t->epoch == w->plan.epoch && t->attempt == w->join.attempt)
            worker_join_lose(w, t->why.text);
        return;
    }
    if (t->status < 0) {
        worker_fatal(w, reason_wrap(&t->why, t->status, "%s on this device", task_name(t->kind)), &t->why);
        return;
    }
    switch (t->kind) {
    case TASK_SETUP:
        worker_on_setup_done(w, t);
        break;
    case TASK_STATE_WRITE:
        worker_on_state_written(w, t);
        break;
    case TASK_FORWARD:
    case TASK_BACKWARD:
        worker_on_run(w, t);
        break;
    case TASK_PARTIAL:
    case TASK_SUM:
    case TASK_STORE:
    case TASK_STORED:
    case TASK_DIGEST:
        worker_on_reduce_task(w, t);
        break;
    case TASK_APPLY:
        if (t->epoch == w->plan.epoch)
            worker_on_applied(w);
        break;
    case TASK_SNAPSHOT:
    case TASK_SNAPSHOT_READ:
        worker_on_snapshot_task(w, t);
        break;
    case TASK_REPLAY:
    case TASK_SNAPSHOT_DROP:
    case TASK_KINDS:
        break;
    }
}

static void on_tick(struct worker *w)
{
    if (w->now - w->heartbeat_at >= HEARTBEAT_NS)
        worker_heartbeat(w);
    if (w->fetch)
        fetch_tick(w->fetch, w->now, &w->update->fx);
    worker_join_tick(w);
    for (uint32_t i = 0; w->reduces && i < w->groups.n; i++)
        if (w->reduces[i])
            reduce_tick(w->reduces[i], w->now, &w->update->fx);
    if (w->phase == WORKER_READY)
        worker_ask_boundaries(w);
}

void worker_step(struct worker *w, const struct worker_event *event, struct worker_update *update)
{
    uint64_t version = w->version;

    w->update = update;
    w->now = event->now;
    switch (event->kind) {
    case WORKER_MESSAGE:
        dispatch(w, &event->from, event->msg);
        break;
    case WORKER_TASK_DONE:
        on_task(w, event->task);
        task_free(event->task);
        break;
    case WORKER_TICK:
        on_tick(w);
        break;
    }
    worker_pick(w);
    if (w->version != version)
        w->step_began_at = w->now;
    if (w->version != version || w->join.state != w->join.told)
        worker_heartbeat(w);
    w->update = NULL;
}

void worker_stats(const struct worker *w, struct worker_stats *ret)
{
    const struct fetch *fetch = w->fetch ? w->fetch : w->join.fetch;

    *ret = (struct worker_stats){.version = w->version,
                                 .epoch = w->plan.epoch,
                                 .ready = w->phase >= WORKER_READY,
                                 .standing_by = w->phase == WORKER_IDLE,
                                 .dropped = w->dropped,
                                 .held_dropped = w->held.dropped,
                                 .fetch_progress = fetch ? fetch_progress(fetch) : -1};
    for (uint32_t i = 0; i < w->leases.n; i++)
        ret->leases_open += w->leases.leases[i]->state != LEASE_DONE;
}
