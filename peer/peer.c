/* A peer's process around the pure engine worker: see peer.h. The calling thread is the I/O thread; compute has its
 * own; a third one lives for the seconds in which the device is measured. */
#include "peer/peer.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/registry.h"
#include "model/job.h"
#include "model/model.h"
#include "parallel/wire.h"
#include "peer/compute.h"
#include "peer/join.h"
#include "peer/links.h"
#include "peer/worker.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/base/pool.h"

#define POLL_MS             20
#define TICK_NS             (20 * NS_PER_MS)
#define PROFILE_NS          (1 * NS_PER_S)
#define COORDINATOR_MUTE_NS (5 * NS_PER_S)  /* it says nothing on a link that is up: dial anew */
#define COORDINATOR_GONE_NS (20 * NS_PER_S) /* nothing heard of it for this long: give up */
#define STALL_NS            (1 * NS_PER_S)  /* this process stood still: then nobody else is to blame */
#define LEAVE_NS            (10 * NS_PER_S)
#define SAY_NS              (10 * NS_PER_S)
#define COORDINATOR_DIAL_ID 32u

struct profile {
    pthread_t thread;
    bool running;
    _Atomic bool done;
    int status;
    struct reason why;
    double *forward_s, *backward_s;
};

struct peer {
    struct peer_config config;
    struct wire wire;
    struct net_config net_config;
    struct join join;
    bool joined;
    struct links links;
    struct job job;
    struct model *model;
    struct compute *compute;
    struct worker *worker;
    struct worker_update update;
    struct profile profile;

    char host[HOST_MAX_LEN + 1]; /* where the coordinator answered */
    uint16_t ports[NET_CHANNELS];
    struct net_key coordinator;
    bool linked, profile_sent;
    int64_t heard_at, looped_at, redial_at; /* heard_at: a message of the coordinator's, or its handshake */

    _Atomic int stops;
    int stops_seen;
    int64_t leaving_since;
    int64_t said_at;
    uint64_t memory_bytes;
};

static void say(struct peer *p, const char *line)
{
    if (p->config.say)
        p->config.say(p->config.say_arg, line);
}

int peer_new(const struct peer_config *config, struct peer **ret, struct reason *why)
{
    struct peer *p = mem_calloc(1, sizeof *p);
    int status = 0;

    if (!p)
        return -E_NOMEM;
    p->config = *config;
    if (p->config.n_threads <= 0)
        p->config.n_threads = pool_cpus();
    p->memory_bytes = config->memory_bytes ? config->memory_bytes : mem_available_bytes() / 10 * 8;
    bool local = config->invite->n_addrs > 0 && strncmp(config->invite->addrs[0].host, "127.", 4) == 0;

    p->net_config.host = config->host ? config->host : local ? "127.0.0.1" : "*";
    p->net_config.listen[NET_CONTROL] = p->net_config.listen[NET_BULK] = true;
    if (config->port) {
        p->net_config.port[NET_CONTROL] = config->port;
        p->net_config.port[NET_BULK] = (uint16_t)(config->port + 1);
    }
    memcpy(p->net_config.curve_pub, config->key->curve_pub, NET_KEY_BYTES);
    memcpy(p->net_config.curve_secret, config->key->curve_secret, NET_KEY_BYTES);
    if (config->emulate)
        status = net_emulate_parse(config->emulate, &p->net_config, why);
    if (status == 0)
        status = net_open(&p->net_config, &p->wire.net, why);
    if (status < 0) {
        peer_free(p);
        return status;
    }
    *ret = p;
    return 0;
}

struct peer *peer_free(struct peer *p)
{
    if (!p)
        return NULL;
    if (p->profile.running)
        pthread_join(p->profile.thread, NULL);
    mem_free(p->profile.forward_s);
    mem_free(p->profile.backward_s);
    compute_free(p->compute);
    effects_done(&p->update.fx);
    worker_free(p->worker);
    join_done(&p->join);
    links_done(&p->links);
    net_free(p->wire.net);
    wire_done(&p->wire);
    model_free(p->model);
    job_done(&p->job);
    return mem_free(p);
}

void peer_stop(struct peer *p)
{
    atomic_fetch_add(&p->stops, 1);
    net_wake(p->wire.net);
}

/* ---- joining ---- */

/* What JOIN says of this machine. The device is opened for a moment to see what it is and which numerics class it
 * belongs to. */
static int describe(struct peer *p, struct msg_join *ret, struct reason *why)
{
    struct kern k = {0};
    struct kern_device d = {0};
    int status = kern_open(p->config.device, p->config.n_threads, &k, why);

    if (status < 0)
        return status;
    *ret = (struct msg_join){.key = p->config.key->pub, .incarnation = (uint64_t)clock_wall_ns()};
    status = kern_fingerprint(&k, ret->fingerprint);
    if (status == 0 && k.backend->devices(&d, 1) >= 1)
        snprintf(ret->device, sizeof ret->device, "%.*s", NAME_MAX_LEN, d.name);
    kern_close(&k);
    if (status < 0)
        return reason_set(why, status, "the device's kernels do not work: %s", status_text(status));
    snprintf(ret->software, sizeof ret->software, "shoal");
    if (gethostname(ret->name, sizeof ret->name) != 0)
        snprintf(ret->name, sizeof ret->name, "?");
    ret->name[sizeof ret->name - 1] = '\0';
    ret->memory_bytes = p->memory_bytes;
    ret->n_threads = (uint32_t)p->config.n_threads;
    ret->control_port = net_port(p->wire.net, NET_CONTROL);
    ret->bulk_port = net_port(p->wire.net, NET_BULK);
    if (strcmp(p->net_config.host, "*") == 0) {
        int n = net_local_addrs(ret->addrs, ADDRS_MAX);

        ret->n_addrs = n > 0 ? (uint32_t)n : 0;
    } else {
        snprintf(ret->addrs[0], sizeof ret->addrs[0], "%s", p->net_config.host);
        ret->n_addrs = 1;
    }
    return 0;
}

static void *profile_thread(void *arg)
{
    struct peer *p = arg;

    p->profile.status =
        compute_profile(p->compute, PROFILE_NS, p->profile.forward_s, p->profile.backward_s, &p->profile.why);
    atomic_store(&p->profile.done, true);
    net_wake(p->wire.net);
    return NULL;
}

static int start_profile(struct peer *p, struct reason *why)
{
    p->profile.forward_s = mem_calloc(p->model->n_units, sizeof(double));
    p->profile.backward_s = mem_calloc(p->model->n_units, sizeof(double));
    if (!p->profile.forward_s || !p->profile.backward_s)
        return -E_NOMEM;
    if (pthread_create(&p->profile.thread, NULL, profile_thread, p) != 0)
        return reason_set(why, -E_AGAIN, "no thread could be started");
    p->profile.running = true;
    return 0;
}

static void dial_coordinator(struct peer *p, int64_t now)
{
    p->redial_at = now + 500 * NS_PER_MS;
    net_dial(p->wire.net, COORDINATOR_DIAL_ID, &p->coordinator, p->host, p->ports, 1u << NET_CONTROL | 1u << NET_BULK);
}

/* The job is known: build what depends on it, and dial the coordinator proper. */
static int on_welcome(struct peer *p, int64_t now, struct reason *why)
{
    const struct msg *m = p->join.welcome;
    char line[256];
    int status = job_parse(m->body->data, m->body->size, NULL, &p->job, why);

    if (status < 0)
        return reason_wrap(why, status, "the coordinator's job file");
    /* First of all, because the coordinator waits only so long for the link: a device may take seconds to open. */
    p->coordinator = p->join.lobby;
    p->ports[NET_CONTROL] = m->welcome.control_port;
    p->ports[NET_BULK] = m->welcome.bulk_port;
    snprintf(p->host, sizeof p->host, "%s", p->config.invite->addrs[p->join.up - 1].host);
    dial_coordinator(p, now);
    status = model_new(&p->job, &p->model, why);
    if (status < 0)
        return status;
    struct compute_config compute = {.model = p->model,
                                     .reduction = p->job.reduction,
                                     .device = p->config.device,
                                     .n_threads = p->config.n_threads,
                                     .speed = p->config.speed > 0 ? p->config.speed : 1};

    status = compute_new(&compute, &p->compute, why);
    if (status < 0)
        return status;
    status = net_watch(p->wire.net, compute_fd(p->compute));
    if (status < 0)
        return status;
    struct worker_config worker = {.model = p->model,
                                   .exact = p->job.reduction == JOB_REDUCTION_EXACT,
                                   .self = p->config.key->pub,
                                   .coordinator = p->config.invite->coordinator};

    status = worker_new(&worker, &p->worker);
    if (status < 0)
        return status;
    links_init(&p->links, &p->wire, &p->config.key->pub, &p->config.invite->coordinator);
    p->links.term = m->term;
    snprintf(line, sizeof line, "joined job %s; measuring this device", p->job.name);
    say(p, line);
    join_done(&p->join);
    p->joined = true;
    p->heard_at = now;
    return start_profile(p, why);
}

/* ---- working ---- */

static void step(struct peer *p, struct worker_event *e)
{
    struct effects *fx = &p->update.fx;

    e->now = clock_now_ns();
    worker_step(p->worker, e, &p->update);
    for (uint32_t i = 0; i < fx->n_sends; i++) {
        wire_send(&p->wire, &fx->sends[i].to, fx->sends[i].msg); /* what cannot go out is asked for again */
        msg_free(fx->sends[i].msg);
    }
    for (uint32_t i = 0; i < fx->n_tasks; i++)
        compute_submit(p->compute, fx->tasks[i]);
    effects_clear(fx);
}

static void on_message(struct peer *p, struct net_event *e, int64_t now)
{
    const struct key *known = wire_who(&p->wire, &e->key);
    struct key who;
    struct reason why = {0};
    struct msg *m = NULL;

    if (wire_receive(&p->wire, e, &m, &why) < 0)
        return;
    if (!known || e->channel == NET_LOBBY) {
        msg_free(m);
        return;
    }
    who = *known; /* the book may grow below */
    bool coordinator = key_equal(&who, &p->config.invite->coordinator);

    if (coordinator)
        p->heard_at = now;
    if (coordinator && m->type == MSG_VIEW)
        links_on_view(&p->links, m, now);
    if (coordinator && m->type == MSG_DIAL) {
        links_on_dial(&p->links, m, now);
        msg_free(m);
        return;
    }
    step(p, &(struct worker_event){.kind = WORKER_MESSAGE, .from = who, .msg = m});
}

static void send_profile(struct peer *p)
{
    struct msg *m = msg_new(MSG_PROFILE, p->links.term);
    size_t bytes = p->model->n_units * sizeof(double);

    if (!m)
        return;
    m->profile.n_units = p->model->n_units;
    m->profile.memory_bytes = p->memory_bytes;
    m->profile.forward_s = mem_dup(p->profile.forward_s, bytes);
    m->profile.backward_s = mem_dup(p->profile.backward_s, bytes);
    if (m->profile.forward_s && m->profile.backward_s)
        p->profile_sent = wire_send(&p->wire, &p->config.invite->coordinator, m) == 0;
    msg_free(m);
}

/* The link to the coordinator came, went, or could not be made. */
static int on_coordinator_link(struct peer *p, const struct net_event *e, int64_t now, struct reason *why)
{
    if (e->kind == NET_EVENT_UP) {
        p->linked = true;
        p->heard_at = now;
        p->profile_sent = false;
        links_report_all(&p->links);
        return 0;
    }
    p->linked = false;
    if (p->leaving_since)
        return reason_set(why, -E_CANCELED, "left the job");
    if (e->failure == NET_FAILURE_NOT_ADMITTED)
        return reason_set(why, -E_AUTH,
                          "your key is not admitted any more: the coordinator took this peer for dead; start it again");
    if (e->failure == NET_FAILURE_REPLACED) /* to dial again would take it back from the newer one, and so for ever */
        return reason_set(
            why, -E_AUTH,
            "another process joined with this peer's key and took its place; for two peers on one machine "
            "give each its own key: shoal peer INVITE --key FILE");
    log_debug("peer", "no link to the coordinator: %s", e->why.text);
    return 0;
}

static int on_event(struct peer *p, struct net_event *e, int64_t now, struct reason *why)
{
    if (!p->joined) {
        int r = join_event(&p->join, e, now, why);

        return r == 1 ? on_welcome(p, now, why) : r;
    }
    switch (e->kind) {
    case NET_EVENT_MESSAGE:
        on_message(p, e, now);
        return 0;
    case NET_EVENT_UP:
    case NET_EVENT_DOWN:
    case NET_EVENT_DIAL_FAILED:
        if (e->dial_id == COORDINATOR_DIAL_ID)
            return on_coordinator_link(p, e, now, why);
        links_on_event(&p->links, e, now);
        return 0;
    default:
        return 0;
    }
}

static void say_progress(struct peer *p, int64_t now)
{
    struct worker_stats s;
    char line[128];

    if (now - p->said_at < SAY_NS)
        return;
    p->said_at = now;
    worker_stats(p->worker, &s);
    if (s.fetch_progress >= 0)
        snprintf(line, sizeof line, "fetching the model's state: %.0f %%", 100 * s.fetch_progress);
    else if (!s.ready)
        snprintf(line, sizeof line, "standing by for a plan");
    else
        snprintf(line, sizeof line, "at step %" PRIu64, s.version);
    say(p, line);
}

static int tick(struct peer *p, int64_t now, struct reason *why)
{
    if (!p->joined)
        return join_tick(&p->join, now, why);
    if (now - p->heard_at > COORDINATOR_GONE_NS)
        return reason_set(why, -E_PEER,
                          "the coordinator is gone: nothing came from %s for %d s; start this peer again when it is "
                          "back",
                          p->host, (int)(COORDINATOR_GONE_NS / NS_PER_S));
    if (p->linked && now - p->heard_at > COORDINATOR_MUTE_NS) {
        log_debug("peer", "the coordinator says nothing: dialling it anew");
        net_hangup(p->wire.net, COORDINATOR_DIAL_ID);
        p->linked = false;
    }
    if (!p->linked && now >= p->redial_at)
        dial_coordinator(p, now);
    links_tick(&p->links, now);
    if (atomic_load(&p->profile.done)) {
        if (p->profile.status < 0)
            return reason_set(why, p->profile.status, "this device cannot run the job: %s",
                              reason_text(&p->profile.why, p->profile.status));
        if (p->linked && !p->profile_sent)
            send_profile(p);
        if (p->profile.running) {
            pthread_join(p->profile.thread, NULL);
            p->profile.running = false;
            say(p, "measured; waiting for the plan");
        }
    }
    step(p, &(struct worker_event){.kind = WORKER_TICK});
    say_progress(p, now);
    return 0;
}

/* The first wish to stop is told to the coordinator, the second is obeyed at once. */
static int check_stops(struct peer *p, int64_t now, struct reason *why)
{
    for (; p->stops_seen < atomic_load(&p->stops); p->stops_seen++) {
        struct msg *m;

        if (!p->joined || !p->linked || p->leaving_since)
            return reason_set(why, -E_CANCELED, "left at once");
        p->leaving_since = now;
        m = msg_new(MSG_LEAVE, p->links.term);
        if (m) {
            snprintf(m->leave.text, sizeof m->leave.text, "its user stopped it");
            wire_send(&p->wire, &p->config.invite->coordinator, m);
        }
        msg_free(m);
        say(p, "leaving; once more to leave at once");
    }
    if (p->leaving_since && now - p->leaving_since > LEAVE_NS)
        return reason_set(why, -E_CANCELED, "left the job");
    return 0;
}

static int run_loop(struct peer *p, struct reason *why)
{
    int64_t ticked = 0;

    for (;;) {
        struct net_event e = {0};
        struct task *t;
        int status = net_poll(p->wire.net, POLL_MS, &e);
        int64_t now = clock_now_ns();

        if (status < 0)
            return reason_set(why, status, "this peer's sockets failed: %s", status_text(status));
        if (now - p->looped_at > STALL_NS)
            p->heard_at += now - p->looped_at;
        p->looped_at = now;
        status = on_event(p, &e, now, why);
        blob_unref(e.head);
        blob_unref(e.body);
        while (status >= 0 && p->joined && (t = compute_take(p->compute)))
            step(p, &(struct worker_event){.kind = WORKER_TASK_DONE, .task = t});
        if (status >= 0 && now - ticked >= TICK_NS) {
            ticked = now;
            status = tick(p, now, why);
        }
        if (status >= 0)
            status = check_stops(p, now, why);
        if (status < 0)
            return status;
        if (p->update.fx.oom)
            return reason_set(why, -E_NOMEM, "this peer ran out of memory");
        if (p->update.over) {
            reason_set(why, p->update.status ? p->update.status : -E_INTERNAL, "%s",
                       reason_text(&p->update.why, p->update.status));
            return p->leaving_since && p->update.status < 0 ? -E_CANCELED : p->update.status;
        }
    }
}

int peer_run(struct peer *p, struct reason *why)
{
    struct msg_join hello;
    int status = describe(p, &hello, why);

    if (status == 0)
        status = join_start(&p->join, &p->wire, p->config.invite, &hello, clock_now_ns(), why);
    return status < 0 ? status : run_loop(p, why);
}
