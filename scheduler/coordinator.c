/* The coordinator's process around the pure engine: see coordinator.h. One thread owns the sockets and the engine; a
 * second one writes checkpoints. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coordinator_impl.h"

#define POLL_MS 20
#define TICK_NS (20 * NS_PER_MS)
#define BYE_NS  (3 * NS_PER_S) /* at the end: for the peers to read BYE and hang up */

/* ---- what the engine wants done ---- */

/* Puts the samples into the body of LEASES: the engine deals in numbers of microbatches, the text is here. */
static int fill_samples(struct coordinator *c, struct msg *m)
{
    size_t n = (size_t)c->model->B * c->model->n_ctx;
    size_t arrays = 0, at = 0;
    cleanup_mem_ int32_t *tokens = mem_calloc(2 * n, sizeof *tokens);

    for (uint32_t i = 0; i < m->leases.n_leases; i++)
        arrays += (m->leases.leases[i].u0 == 0) + (m->leases.leases[i].u1 == c->model->n_units);
    if (arrays == 0)
        return 0;
    if (!tokens || blob_new(arrays * n * sizeof(int32_t), &m->body) < 0)
        return -E_NOMEM;
    for (uint32_t i = 0; i < m->leases.n_leases; i++) {
        const struct msg_lease *l = &m->leases.leases[i];
        int32_t *body = m->body->data;

        if (l->u0 != 0 && l->u1 != c->model->n_units)
            continue;
        if (l->mode == MSG_MODE_EVAL)
            data_eval_sample(c->data, l->microbatch, tokens, tokens + n);
        else
            data_sample(c->data, m->leases.step, l->microbatch, tokens, tokens + n);
        if (l->u0 == 0)
            memcpy(body + n * at++, tokens, n * sizeof *tokens);
        if (l->u1 == c->model->n_units)
            memcpy(body + n * at++, tokens + n, n * sizeof *tokens);
    }
    return 0;
}

static void no_release(void *owner)
{
    (void)owner;
}

/* Reads a piece of the checkpoint resumed from; the mapped file stays until after the last link is closed. */
static void read_checkpoint(struct coordinator *c, struct task *t)
{
    const float *part = c->checkpoint ? checkpoint_part(c->checkpoint, t->tensor, (enum params_part)t->part) : NULL;

    t->status =
        part ? blob_wrap((void *)(part + t->offset), t->n * sizeof(float), no_release, NULL, &t->out) : -E_NOENT;
    if (t->status == 0)
        hash_of(t->out->data, t->out->size, t->hash);
}

static void admit(struct coordinator *c)
{
    struct key ids[PEERS_MAX];
    struct net_key curves[PEERS_MAX];
    uint32_t n = coord_view_keys(c->engine, ids), n_curves = 0;

    wire_keep(&c->wire, ids, n);
    for (uint32_t i = 0; i < n; i++)
        if (wire_learn(&c->wire, &ids[i], &curves[n_curves]) == 0)
            n_curves++;
    net_admit(c->wire.net, curves, n_curves);
    c->update.view_changed = false;
}

static void send_all(struct coordinator *c)
{
    struct effects *fx = &c->update.fx;

    for (uint32_t i = 0; i < fx->n_sends; i++) {
        struct msg *m = fx->sends[i].msg;

        if (m->type == MSG_LEASES && fill_samples(c, m) < 0)
            fx->oom = true;
        else
            wire_send(&c->wire, &fx->sends[i].to, m); /* what cannot go out is asked for again */
        fx->sends[i].msg = msg_free(m);
    }
    fx->n_sends = 0;
}

static void step(struct coordinator *c, struct coord_event *e)
{
    struct task **tasks;
    uint32_t n_tasks;

    e->now = clock_now_ns();
    coord_step(c->engine, e, &c->update);
    if (c->update.view_changed)
        admit(c);
    send_all(c);
    tasks = c->update.fx.tasks;
    n_tasks = c->update.fx.n_tasks;
    c->update.fx.tasks = NULL;
    c->update.fx.n_tasks = c->update.fx.cap_tasks = 0;
    for (uint32_t i = 0; i < n_tasks; i++) {
        struct task *t = tasks[i];

        if (t->kind == TASK_SNAPSHOT_READ)
            read_checkpoint(c, t);
        else if ((t->status = saver_store(c->saver, t)) == -E_NOMEM)
            c->update.fx.oom = true;
        step(c, &(struct coord_event){.kind = COORD_TASK_DONE, .task = t});
    }
    mem_free(tasks);
    if (c->update.rollback) {
        struct reason why = {0};
        int status = coordinator_open_checkpoint(c, &why);

        c->update.rollback = false;
        if (status == 0 && (!c->checkpoint || checkpoint_state(c->checkpoint)->version != c->update.rollback_version))
            status = reason_set(&why, -E_NOENT, "it is not there");
        if (status < 0) {
            c->update.over = true;
            c->update.status = reason_wrap(&why, status, "the checkpoint of step %llu cannot be gone back to",
                                           (unsigned long long)c->update.rollback_version);
            c->update.why = why;
        }
    }
    if (c->update.save) {
        c->update.save = false;
        int status = saver_start(c->saver, &c->update.save_what);

        if (status < 0)
            step(c, &(struct coord_event){.kind = COORD_SAVED, .status = status, .text = status_text(status)});
    }
}

/* ---- what comes in ---- */

static void refuse(struct coordinator *c, const struct net_key *to, enum msg_refusal code, const char *text)
{
    struct msg *m = msg_new(MSG_REFUSE, c->run.term);

    if (!m)
        return;
    m->refuse.code = code;
    snprintf(m->refuse.text, sizeof m->refuse.text, "%s", text);
    wire_send_curve(&c->wire, to, m);
    msg_free(m);
}

static void answer_status(struct coordinator *c, const struct net_key *to, const struct msg *m)
{
    struct jsonw w;
    struct msg *answer = msg_new(MSG_STATUS, c->run.term);

    if (memcmp(m->status_get.job_id, c->run.job_id, sizeof c->run.job_id) != 0 ||
        memcmp(m->status_get.capability, c->run.capability, sizeof c->run.capability) != 0) {
        refuse(c, to, MSG_REFUSAL_CAPABILITY, "the invite is not valid for this run; ask for a fresh one");
        msg_free(answer);
        return;
    }
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    coord_status(c->engine, &w);
    jsonw_object_end(&w);
    if (answer && jsonw_text(&w) && blob_new(strlen(jsonw_text(&w)), &answer->body) == 0) {
        memcpy(answer->body->data, jsonw_text(&w), answer->body->size);
        wire_send_curve(&c->wire, to, answer);
    }
    jsonw_done(&w);
    msg_free(answer);
}

static void on_lobby(struct coordinator *c, struct net_event *e)
{
    struct reason why = {0};
    struct msg *m = NULL;
    struct net_key curve;
    int status = wire_receive(&c->wire, e, &m, &why);

    if (status < 0) {
        refuse(c, &e->key, status == -E_VERSION ? MSG_REFUSAL_VERSION : MSG_REFUSAL_MALFORMED,
               reason_text(&why, status));
        net_expel(c->wire.net, &e->key, NET_LOBBY, "it sent what cannot be read");
        return;
    }
    if (m->type == MSG_STATUS_GET) {
        answer_status(c, &e->key, m);
        msg_free(m);
        return;
    }
    if (m->type != MSG_JOIN || key_to_curve(&m->join.key, curve.bytes) < 0 ||
        memcmp(curve.bytes, e->key.bytes, NET_KEY_BYTES) != 0) {
        refuse(c, &e->key, MSG_REFUSAL_KEY, "the key stated in JOIN is not the key of the link");
        msg_free(m);
        return;
    }
    /* The book is for the view's members (admit): strangers' keys cost nothing. */
    step(c, &(struct coord_event){.kind = COORD_JOIN, .key = m->join.key, .msg = m});
}

/* Also when the run is over: links are counted, the lobby says that it is. */
static void on_event(struct coordinator *c, struct net_event *e)
{
    bool peers = e->channel != NET_LOBBY && !c->update.over;
    const struct key *who = wire_who(&c->wire, &e->key);
    struct reason why = {0};
    struct msg *m = NULL;

    switch (e->kind) {
    case NET_EVENT_MESSAGE:
        if (e->channel == NET_LOBBY)
            on_lobby(c, e);
        else if (wire_receive(&c->wire, e, &m, &why) == 0 && who && peers)
            step(c, &(struct coord_event){.kind = COORD_MESSAGE, .key = *who, .msg = m});
        else
            msg_free(m);
        break;
    case NET_EVENT_UP:
    case NET_EVENT_DOWN:
        if (e->channel != NET_LOBBY)
            c->n_links += e->kind == NET_EVENT_UP ? 1 : UINT32_MAX;
        if (who && peers)
            step(c, &(struct coord_event){
                        .kind = COORD_LINK, .key = *who, .up = e->kind == NET_EVENT_UP, .text = e->why.text});
        break;
    default:
        break;
    }
}

static void take_outside(struct coordinator *c)
{
    int status;
    const char *text;
    struct exited gone[COORDINATOR_EXITED_MAX];
    uint32_t n;

    pthread_mutex_lock(&c->exited_lock);
    n = c->n_exited;
    memcpy(gone, c->exited, n * sizeof *gone);
    c->n_exited = 0;
    pthread_mutex_unlock(&c->exited_lock);
    for (uint32_t i = 0; i < n; i++)
        step(c, &(struct coord_event){.kind = COORD_EXITED, .key = gone[i].key, .text = gone[i].text});
    for (; c->stops_seen < atomic_load(&c->stops); c->stops_seen++)
        step(c, &(struct coord_event){.kind = COORD_STOP});
    if (saver_done(c->saver, &status, &text))
        step(c, &(struct coord_event){.kind = COORD_SAVED, .status = status, .text = text});
}

static void say_start(struct coordinator *c)
{
    c->config.note(c->config.note_arg, &(struct note){.kind = NOTE_INVITE, .text = c->invite});
    if (c->config.resume && !c->checkpoint)
        c->config.note(
            c->config.note_arg,
            &(struct note){.kind = NOTE_WARNING, .text = "there is no checkpoint to resume from: beginning at step 0"});
}

/* The engine's last note lacks what only the shell knows: the unigram loss for comparison. */
static void note_with_data(void *arg, const struct note *n)
{
    struct coordinator *c = arg;
    struct note with = *n;

    if (n->kind == NOTE_DONE)
        with.unigram_loss = data_unigram_loss(c->data);
    c->config.note(c->config.note_arg, &with);
}

/* The run is over, and its peers know or had the time to. */
static bool is_finished(const struct coordinator *c, int64_t now, int64_t *over_at)
{
    if (!c->update.over)
        return false;
    if (*over_at == 0)
        *over_at = now;
    return c->n_links == 0 || now - *over_at > BYE_NS;
}

int coordinator_run(struct coordinator *c, struct reason *why)
{
    int64_t ticked = 0, over_at = 0;
    int status = 0;

    c->update.note = note_with_data;
    c->update.note_arg = c;
    say_start(c);
    while (status == 0 && !is_finished(c, clock_now_ns(), &over_at)) {
        struct net_event e = {0};

        status = net_poll(c->wire.net, POLL_MS, &e);
        if (status < 0) {
            reason_set(why, status, "the coordinator's sockets failed: %s", status_text(status));
            break;
        }
        on_event(c, &e);
        if (c->update.over)
            continue;
        take_outside(c);
        if (clock_now_ns() - ticked >= TICK_NS) {
            ticked = clock_now_ns();
            step(c, &(struct coord_event){.kind = COORD_TICK});
        }
        if (c->update.fx.oom)
            status = reason_set(why, -E_NOMEM, "the coordinator ran out of memory");
    }
    if (c->update.over && c->update.status < 0) {
        status = c->update.status;
        reason_set(why, status, "%s", reason_text(&c->update.why, status));
    }
    return status;
}

void coordinator_stop(struct coordinator *c)
{
    atomic_fetch_add(&c->stops, 1);
    net_wake(c->wire.net);
}

void coordinator_peer_exited(struct coordinator *c, const struct key *key, const char *text)
{
    pthread_mutex_lock(&c->exited_lock);
    if (c->n_exited < COORDINATOR_EXITED_MAX) {
        c->exited[c->n_exited].key = *key;
        snprintf(c->exited[c->n_exited].text, sizeof c->exited[c->n_exited].text, "%s", text);
        c->n_exited++;
    }
    pthread_mutex_unlock(&c->exited_lock);
    net_wake(c->wire.net);
}
