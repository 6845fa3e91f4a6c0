/* The coordinator engine's frame: events in, dispatch, ticks, and the end of a run. See coord.h and coord_impl.h. */
#include "scheduler/coord.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

#define HEARTBEAT_NS (100 * NS_PER_MS)
#define ENDING_LIMIT_NS                                                                                                \
    (20 * NS_PER_S) /* the last checkpoint of a run that failed or is stopped: silence until given up */
#define DONE_LIMIT_NS   (120 * NS_PER_S) /* the same when all steps are done */
#define DEAD_DEFAULT_NS (5 * NS_PER_S)
#define WAITING_SAID_NS (5 * NS_PER_S)
#define OWN_STALL_NS    (500 * NS_PER_MS)

bool coord_on_lobby(enum msg_type type)
{
    return type == MSG_WELCOME || type == MSG_REFUSE || type == MSG_STATUS;
}

int coord_new(const struct coord_config *config, struct coord **ret)
{
    struct coord *c = mem_calloc(1, sizeof *c);

    if (!c)
        return -E_NOMEM;
    c->config = *config;
    if (c->config.dead_ns == 0)
        c->config.dead_ns = DEAD_DEFAULT_NS;
    blob_ref(c->config.job_text);
    c->version = config->start_version;
    c->updates = config->start_updates;
    c->loss = config->start_loss;
    *ret = c;
    return 0;
}

struct coord *coord_free(struct coord *c)
{
    if (!c)
        return NULL;
    coord_forget_plan(c);
    for (uint32_t i = 0; i < c->n_peers; i++)
        coord_peer_free(c->peers[i]);
    mem_free(c->peers);
    mem_free(c->forced);
    mem_free(c->last_commit.groups);
    blob_unref(c->config.job_text);
    return mem_free(c);
}

void coord_oom(struct coord *c)
{
    c->update->fx.oom = true;
}

struct msg *coord_msg(struct coord *c, enum msg_type type)
{
    struct msg *m = msg_new(type, c->config.term);

    if (!m)
        coord_oom(c);
    return m;
}

void coord_send(struct coord *c, const struct coord_peer *p, struct msg *m)
{
    effects_send(&c->update->fx, &p->join.key, m);
}

void coord_note(struct coord *c, const struct note *n)
{
    if (c->update->note)
        c->update->note(c->update->note_arg, n);
}

void coord_warn(struct coord *c, const char *fmt, ...)
{
    char text[TEXT_MAX_LEN + 1];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    coord_note(c, &(struct note){.kind = NOTE_WARNING, .text = text});
}

static void say_bye(struct coord *c, const struct coord_peer *p, enum msg_bye_code code, const char *text)
{
    struct msg *m = coord_msg(c, MSG_BYE);

    if (!m)
        return;
    m->bye.code = code;
    snprintf(m->bye.text, sizeof m->bye.text, "%s", text);
    coord_send(c, p, m);
}

/* Says goodbye to everyone and ends. */
void coord_over(struct coord *c)
{
    struct note n = {.kind = NOTE_STOPPED, .step = c->version, .steps_total = c->config.stop_after};
    char text[2 * REASON_TEXT_MAX + sizeof c->saved_path];

    if (c->phase == COORD_OVER)
        return;
    c->phase = COORD_OVER;
    c->update->over = true;
    c->update->status = c->ending_status;
    c->update->why = c->ending_why;
    for (uint32_t i = 0; i < c->n_peers; i++)
        if (c->peers[i]->admitted)
            say_bye(c, c->peers[i],
                    c->ending_status == 0             ? MSG_BYE_DONE
                    : c->ending_status == -E_CANCELED ? MSG_BYE_STOPPED
                                                      : MSG_BYE_FAILED,
                    reason_text(&c->ending_why, c->ending_status));
    if (c->ending_status == 0) {
        n.kind = NOTE_DONE;
        n.loss = c->loss;
        n.eval_loss = c->eval_loss;
        n.text = c->saved_path;
        memcpy(n.hash, c->saved_hash, HASH_BYTES);
    } else {
        if (c->has_saved)
            snprintf(text, sizeof text,
                     "%s; step %" PRIu64 " is saved in %s: run the same command with --resume to go on",
                     reason_text(&c->ending_why, c->ending_status), c->saved_version, c->saved_path);
        else
            snprintf(text, sizeof text,
                     "%s; nothing was saved yet: run the same command with --resume to begin again at step %" PRIu64,
                     reason_text(&c->ending_why, c->ending_status), c->config.start_version);
        n.text = text;
    }
    coord_note(c, &n);
}

void coord_finish(struct coord *c)
{
    if (c->saving.phase == SAVING_WRITE)
        return; /* the shell is at it and reads what another would overwrite; coord_on_saved goes on from here */
    if (!c->group || (c->has_saved && c->saved_version == c->version)) {
        coord_over(c);
    } else if (!coord_covered(c, NULL)) {
        if (c->ending_status == 0) { /* all steps done, and lost before the last checkpoint: they are done again */
            coord_rollback(c);
            return;
        }
        coord_abort_saving(c);
        coord_over(c);
    } else {
        coord_abort_saving(c);
        coord_start_saving(c);
    }
}

void coord_end(struct coord *c, int status, const struct reason *why)
{
    if (c->phase >= COORD_ENDING)
        return;
    c->phase = COORD_ENDING;
    c->ending_status = status;
    c->ending_since = c->now_ns;
    if (why)
        c->ending_why = *why;
    if (status == 0 && c->saving.phase != SAVING_NONE && c->saving.what.version == c->version)
        return; /* it was asked for with the last commit */
    coord_finish(c);
}

/* A last checkpoint may take as long as it makes progress. */
static void check_ending(struct coord *c)
{
    int64_t limit = c->ending_status == 0 ? DONE_LIMIT_NS : ENDING_LIMIT_NS;

    if (c->saving.phase == SAVING_WRITE || c->now_ns - c->ending_since <= limit)
        return;
    if (c->ending_status == 0)
        c->ending_status =
            reason_set(&c->ending_why, -E_PEER, "the peers did not hand over the last checkpoint for %d s",
                       (int)(DONE_LIMIT_NS / NS_PER_S));
    coord_over(c);
}

static void heartbeat(struct coord *c)
{
    c->heartbeat_at = c->now_ns;
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct msg *m = c->peers[i]->admitted && c->peers[i]->linked ? coord_msg(c, MSG_HEARTBEAT) : NULL;

        if (!m)
            continue;
        m->heartbeat = (struct msg_heartbeat){.view = c->view,
                                              .epoch = c->plan.epoch,
                                              .version = c->version,
                                              .step_leases = c->phase == COORD_RUN ? c->now.step + 1 : 0};
        coord_send(c, c->peers[i], m);
    }
}

static void say_waiting(struct coord *c)
{
    uint32_t profiled = 0, measuring = 0;
    char text[128];

    if (c->phase != COORD_GATHER || c->now_ns - c->waiting_said_at < WAITING_SAID_NS)
        return;
    c->waiting_said_at = c->now_ns;
    for (uint32_t i = 0; i < c->n_peers; i++) {
        profiled += c->peers[i]->admitted && c->peers[i]->profiled;
        measuring += c->peers[i]->admitted && !c->peers[i]->profiled;
    }
    if (profiled + measuring >= coord_wanted(c))
        snprintf(text, sizeof text, "waiting for %u peers to finish measuring their devices", measuring);
    else
        snprintf(text, sizeof text, "waiting for %u more peers (%u here)", coord_wanted(c) - profiled - measuring,
                 profiled + measuring);
    coord_note(c, &(struct note){.kind = NOTE_WAITING, .text = text});
}

/* If this process itself was held up, the silence it sees is its own: nobody is blamed for it. */
static void forgive_own_stall(struct coord *c)
{
    int64_t gap = c->ticked_at ? c->now_ns - c->ticked_at : 0;

    c->ticked_at = c->now_ns;
    for (uint32_t i = 0; gap > OWN_STALL_NS && i < c->n_peers; i++) {
        c->peers[i]->heard_at += gap;
        c->peers[i]->unlinked_at += gap;
    }
}

static void tick(struct coord *c)
{
    forgive_own_stall(c);
    if (c->now_ns - c->heartbeat_at >= HEARTBEAT_NS)
        heartbeat(c);
    say_waiting(c);
    coord_check_silence(c);
    switch (c->phase) {
    case COORD_GATHER:
        coord_try_plan(c);
        break;
    case COORD_CONNECT:
    case COORD_SETUP:
        coord_connect(c);
        break;
    case COORD_RUN:
        coord_resend_step(c);
        coord_saving_tick(c);
        coord_check_parted(c);
        coord_next_tick(c);
        break;
    case COORD_STALLED:
        break;
    case COORD_ENDING:
        coord_resend_commit(c); /* or its snapshot never comes */
        coord_saving_tick(c);
        check_ending(c);
        break;
    case COORD_OVER:
        break;
    }
}

static void on_leave(struct coord *c, struct coord_peer *p, const struct msg_leave *l)
{
    if (p->leaving)
        return;
    p->leaving = true;
    if (c->phase >= COORD_RUN && p->plan_peer != UINT32_MAX && !coord_can_spare(c, p)) {
        char id[KEY_SHORT_LEN + 1];
        struct reason why = {0};

        key_short(&p->join.key, id);
        coord_note(c, &(struct note){.kind = NOTE_PEER,
                                     .key = p->join.key,
                                     .name = p->join.name,
                                     .peer_state = NOTE_PEER_LEFT,
                                     .text = l->text});
        coord_end(c, reason_set(&why, -E_PEER, "peer %s (%s) left: %s", id, p->join.name, l->text), &why);
        return;
    }
    say_bye(c, p, MSG_BYE_STOPPED, "left the job");
    coord_lost(c, p, NOTE_PEER_LEFT, l->text);
}

static void on_message(struct coord *c, const struct key *key, struct msg *m)
{
    struct coord_peer *p = coord_find(c, key);

    if (!p || !p->admitted || !p->linked || m->term != c->config.term)
        return;
    p->heard_at = c->now_ns;
    switch (m->type) {
    case MSG_PROFILE:
        coord_on_profile(c, p, m);
        break;
    case MSG_VIEW_ACK:
        if (m->view_ack.number <= c->view && m->view_ack.number > p->view_acked)
            p->view_acked = m->view_ack.number;
        coord_connect(c);
        break;
    case MSG_LINK:
        coord_on_link_report(c, p, &m->link);
        break;
    case MSG_READY:
        coord_on_ready(c, p, &m->ready);
        break;
    case MSG_DONE:
        coord_on_done(c, p, &m->done);
        break;
    case MSG_REDUCED:
        coord_on_reduced(c, p, &m->reduced);
        break;
    case MSG_HEARTBEAT:
        p->heartbeat = m->heartbeat;
        coord_on_joining(c, p);
        coord_try_finish(c);
        break;
    case MSG_SNAPSHOT_TAKEN:
        coord_on_snapshot_taken(c, p, &m->snapshot_taken);
        break;
    case MSG_STATE_GET:
        coord_on_state_get(c, key, m);
        break;
    case MSG_STATE_CHUNK:
        coord_on_state_chunk(c, key, m);
        break;
    case MSG_LEAVE:
        on_leave(c, p, &m->leave);
        break;
    default:
        break; /* not a peer's message: dropped */
    }
}

/* A piece of the checkpoint resumed from, read by the shell for a peer. */
static void on_task_done(struct coord *c, struct task *t)
{
    if (t->kind != TASK_SNAPSHOT_READ || t->status < 0 || t->to >= c->plan.n_peers)
        return;
    struct msg *m = coord_msg(c, MSG_STATE_CHUNK);

    if (!m)
        return;
    m->state_chunk.key = (struct msg_state_key){t->version, t->tensor, t->part, t->offset, t->n};
    memcpy(m->state_chunk.hash, t->hash, HASH_BYTES);
    m->body = blob_ref(t->out);
    coord_send(c, c->plan_peers[t->to], m);
}

/* The first wish lets the last checkpoint be written, also one that is on its way already; the second does not. */
static void on_stop(struct coord *c)
{
    struct reason why = {0};
    bool again = c->stop_asked;

    c->stop_asked = true;
    reason_set(&why, -E_CANCELED, "stopped as asked at step %" PRIu64, c->version);
    if (c->phase != COORD_ENDING) {
        coord_end(c, -E_CANCELED, &why);
    } else if (again) {
        if (c->ending_status == 0) {
            c->ending_status = -E_CANCELED;
            c->ending_why = why;
        }
        coord_over(c);
    }
}

void coord_step(struct coord *c, const struct coord_event *e, struct coord_update *update)
{
    c->update = update;
    c->now_ns = e->now;
    switch (e->kind) {
    case COORD_JOIN:
        coord_on_join(c, &e->key, e->msg);
        msg_free(e->msg);
        break;
    case COORD_MESSAGE:
        on_message(c, &e->key, e->msg);
        msg_free(e->msg);
        break;
    case COORD_LINK:
        coord_on_link(c, &e->key, e->up, e->text);
        break;
    case COORD_EXITED: {
        struct coord_peer *p = coord_find(c, &e->key);

        if (p && p->admitted)
            coord_lost(c, p, NOTE_PEER_DEAD, e->text);
        /* Whoever starts local peers starts no others: waiting for them would be for ever. */
        if (c->phase < COORD_RUN && (c->regather_until == 0 || coord_admitted(c) == 0)) {
            struct reason why = {0};

            coord_end(c, reason_set(&why, -E_PEER, "a local peer ended: %s", e->text), &why);
        }
        break;
    }
    case COORD_TASK_DONE:
        on_task_done(c, e->task);
        task_free(e->task);
        break;
    case COORD_SAVED:
        coord_on_saved(c, e);
        break;
    case COORD_STOP:
        on_stop(c);
        break;
    case COORD_TICK:
        tick(c);
        break;
    }
    c->update = NULL;
}
