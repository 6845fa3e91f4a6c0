/* The coordinator's process around the pure engine: see coordinator.h. One thread owns the sockets and the engine; a
 * second one writes checkpoints. */
#include "scheduler/coordinator.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/data.h"
#include "parallel/wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"
#include "scheduler/coord.h"
#include "scheduler/runfile.h"
#include "scheduler/saver.h"

#define POLL_MS    20
#define TICK_NS    (20 * NS_PER_MS)
#define EXITED_MAX 64

struct exited {
    struct key key;
    char text[TEXT_MAX_LEN + 1];
};

struct coordinator {
    struct coordinator_config config;
    struct runfile run;
    struct file_lock *lock;
    struct model *model;
    struct data *data;
    struct checkpoint *checkpoint; /* resumed from, NULL for a fresh run */
    struct blob *job_text;
    char *checkpoints_dir;
    struct wire wire;
    struct coord *engine;
    struct coord_update update;
    struct saver *saver;
    char invite[INVITE_TEXT_MAX + 1];

    _Atomic int stops;
    int stops_seen;
    pthread_mutex_t exited_lock;
    struct exited exited[EXITED_MAX];
    uint32_t n_exited;
};

static void wake(void *arg)
{
    net_wake(((struct coordinator *)arg)->wire.net);
}

/* ---- starting ---- */

static int open_run(struct coordinator *c, struct reason *why)
{
    cleanup_mem_ char *lock = file_join(c->config.run_dir, "lock");
    int status;

    c->checkpoints_dir = file_join(c->config.run_dir, "checkpoints");
    if (!lock || !c->checkpoints_dir)
        return -E_NOMEM;
    status = file_make_dirs(c->config.run_dir, why);
    if (status == 0)
        status = file_lock(lock, &c->lock, why);
    if (status == -E_AGAIN)
        return reason_set(why, status,
                          "another coordinator is running in %s; wait for it, or choose another folder with --run",
                          c->config.run_dir);
    if (status == 0)
        status = runfile_begin_term(c->config.run_dir, &c->run, why);
    return status;
}

static int open_checkpoint(struct coordinator *c, struct reason *why)
{
    cleanup_mem_ char *path = NULL;
    int status = checkpoint_latest(c->checkpoints_dir, &path, why);

    if (status == -E_NOENT) {
        *why = (struct reason){0};
        return 0;
    }
    if (status == 0)
        status = checkpoint_open(path, c->model, &c->checkpoint, why);
    if (status < 0)
        return status;
    const struct checkpoint_state *s = checkpoint_state(c->checkpoint);

    if (s->data_fingerprint != data_fingerprint(c->data) || s->seed != c->config.job->seed) {
        char text[256];

        snprintf(text, sizeof text,
                 "the %s changed since the checkpoint of step %" PRIu64 ": training goes on, but not to the same bits",
                 s->seed != c->config.job->seed ? "seed" : "training text", s->version);
        c->config.note(c->config.note_arg, &(struct note){.kind = NOTE_WARNING, .text = text});
    }
    return 0;
}

static int open_net(struct coordinator *c, struct reason *why)
{
    uint16_t port = c->config.port;
    struct net_config n = {.host = c->config.host, .listen = {true, true, true}};

    memcpy(n.curve_pub, c->config.key->curve_pub, sizeof n.curve_pub);
    memcpy(n.curve_secret, c->config.key->curve_secret, sizeof n.curve_secret);
    if (port) {
        n.port[NET_LOBBY] = port;
        n.port[NET_CONTROL] = (uint16_t)(port + 1);
        n.port[NET_BULK] = (uint16_t)(port + 2);
    }
    return net_open(&n, &c->wire.net, why);
}

static int make_invite(struct coordinator *c, struct reason *why)
{
    struct invite inv = {.coordinator = c->config.key->pub};
    char local[ADDRS_MAX][HOST_MAX_LEN + 1];
    bool any =
        strcmp(c->config.host, "*") == 0 || strcmp(c->config.host, "0.0.0.0") == 0 || strcmp(c->config.host, "::") == 0;
    int n_local = any ? net_local_addrs(local, ADDRS_MAX) : 0;
    uint32_t n = c->config.n_advertise ? c->config.n_advertise : any ? (uint32_t)n_local : 1;

    memcpy(inv.job_id, c->run.job_id, sizeof inv.job_id);
    memcpy(inv.capability, c->run.capability, sizeof inv.capability);
    for (uint32_t i = 0; i < n && i < ADDRS_MAX; i++) {
        const char *host = c->config.n_advertise ? c->config.advertise[i] : any ? local[i] : c->config.host;

        if (snprintf(inv.addrs[i].host, sizeof inv.addrs[i].host, "%s", host) > HOST_MAX_LEN)
            return reason_set(why, -E_INVAL, "the address to advertise is too long: %s", host);
        inv.addrs[i].port = net_port(c->wire.net, NET_LOBBY);
        inv.n_addrs++;
    }
    int status = invite_encode(&inv, c->invite);

    return status < 0 ? reason_set(why, status, "no invite can be made of the addresses to advertise") : 0;
}

static int make_engine(struct coordinator *c)
{
    const struct checkpoint_state *s = c->checkpoint ? checkpoint_state(c->checkpoint) : NULL;
    const struct job *job = c->config.job;
    struct coord_config e = {.job = job,
                             .model = c->model,
                             .key = c->config.key,
                             .job_text = c->job_text,
                             .plan_text = c->config.plan_text,
                             .term = c->run.term,
                             .stop_after = c->config.stop_after ? c->config.stop_after : job->train.steps,
                             .start_version = s ? s->version : 0,
                             .start_updates = s ? s->updates : 0,
                             .start_loss = s ? s->loss : 0,
                             .resumed = s != NULL,
                             .control_port = net_port(c->wire.net, NET_CONTROL),
                             .bulk_port = net_port(c->wire.net, NET_BULK)};

    memcpy(e.job_id, c->run.job_id, sizeof e.job_id);
    memcpy(e.capability, c->run.capability, sizeof e.capability);
    return coord_new(&e, &c->engine);
}

static int make_saver(struct coordinator *c)
{
    return saver_new(&(struct saver_config){.model = c->model,
                                            .job = c->config.job,
                                            .job_text = c->config.job_text,
                                            .dir = c->checkpoints_dir,
                                            .data_fingerprint = data_fingerprint(c->data),
                                            .wake = wake,
                                            .wake_arg = c},
                     &c->saver);
}

int coordinator_new(const struct coordinator_config *config, struct coordinator **ret, struct reason *why)
{
    struct coordinator *c = mem_calloc(1, sizeof *c);
    int status;

    if (!c)
        return -E_NOMEM;
    c->config = *config;
    pthread_mutex_init(&c->exited_lock, NULL);
    c->update.note = config->note;
    c->update.note_arg = config->note_arg;
    status = model_new(config->job, &c->model, why);
    if (status == 0)
        status = data_open(config->job, &c->data, why);
    if (status == 0)
        status = blob_new(strlen(config->job_text), &c->job_text);
    if (status == 0) {
        memcpy(c->job_text->data, config->job_text, c->job_text->size);
        status = open_run(c, why);
    }
    if (status == 0 && config->resume)
        status = open_checkpoint(c, why);
    if (status == 0)
        status = open_net(c, why);
    if (status == 0)
        status = make_invite(c, why);
    if (status == 0)
        status = make_engine(c);
    if (status == 0)
        status = make_saver(c);
    if (status < 0) {
        coordinator_free(c);
        return status;
    }
    *ret = c;
    return 0;
}

struct coordinator *coordinator_free(struct coordinator *c)
{
    if (!c)
        return NULL;
    saver_free(c->saver);
    effects_done(&c->update.fx);
    coord_free(c->engine);
    net_free(c->wire.net);
    wire_done(&c->wire);
    checkpoint_free(c->checkpoint);
    data_free(c->data);
    model_free(c->model);
    blob_unref(c->job_text);
    mem_free(c->checkpoints_dir);
    file_unlock(c->lock);
    pthread_mutex_destroy(&c->exited_lock);
    return mem_free(c);
}

const char *coordinator_invite(const struct coordinator *c)
{
    return c->invite;
}

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
    if (wire_learn(&c->wire, &m->join.key, NULL) < 0) {
        msg_free(m);
        return;
    }
    step(c, &(struct coord_event){.kind = COORD_JOIN, .key = m->join.key, .msg = m});
}

static void on_event(struct coordinator *c, struct net_event *e)
{
    const struct key *who = wire_who(&c->wire, &e->key);
    struct reason why = {0};
    struct msg *m = NULL;

    switch (e->kind) {
    case NET_EVENT_MESSAGE:
        if (e->channel == NET_LOBBY)
            on_lobby(c, e);
        else if (wire_receive(&c->wire, e, &m, &why) == 0 && who)
            step(c, &(struct coord_event){.kind = COORD_MESSAGE, .key = *who, .msg = m});
        else
            msg_free(m);
        break;
    case NET_EVENT_UP:
    case NET_EVENT_DOWN:
        if (who && e->channel != NET_LOBBY)
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
    struct exited gone[EXITED_MAX];
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

int coordinator_run(struct coordinator *c, struct reason *why)
{
    int64_t ticked = 0;
    int status = 0;

    c->update.note = note_with_data;
    c->update.note_arg = c;
    say_start(c);
    while (!c->update.over && status == 0) {
        struct net_event e = {0};

        status = net_poll(c->wire.net, POLL_MS, &e);
        if (status < 0) {
            reason_set(why, status, "the coordinator's sockets failed: %s", status_text(status));
            break;
        }
        on_event(c, &e);
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
    if (c->n_exited < EXITED_MAX) {
        c->exited[c->n_exited].key = *key;
        snprintf(c->exited[c->n_exited].text, sizeof c->exited[c->n_exited].text, "%s", text);
        c->n_exited++;
    }
    pthread_mutex_unlock(&c->exited_lock);
    net_wake(c->wire.net);
}
