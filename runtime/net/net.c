/* The net object: opening, closing, and the poll loop. One epoll set holds every descriptor; net_poll does what they
 * ask for and returns one event. Order of service: handshakes and monitors, queued events, control, lobby, bulk.
 *
 * Invariant: net_poll waits only when no socket is hot, no event is queued and nothing that could be sent waits. */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define EPOLL_BATCH     64
#define ZMQ_SOCKETS_MAX 8192 /* a dialled link takes three per channel: socket, monitor and its end */
#define NET_IO_THREADS  1

int net_source_add(struct net *n, struct net_source *s, enum net_source_kind kind, int fd, uint32_t events, void *owner)
{
    struct epoll_event e = {.events = events, .data = {.ptr = s}};
    *s = (struct net_source){.kind = kind, .fd = -1, .owner = owner};
    net_node_init(&s->ready);
    if (fd < 0 || epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
        return -E_IO;
    s->fd = fd;
    return 0;
}

int net_source_change(struct net *n, struct net_source *s, uint32_t events)
{
    struct epoll_event e = {.events = events, .data = {.ptr = s}};
    return epoll_ctl(n->epoll_fd, EPOLL_CTL_MOD, s->fd, &e) < 0 ? -E_IO : 0;
}

void net_source_remove(struct net *n, struct net_source *s)
{
    if (s->fd >= 0) {
        epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
        net_node_remove(&s->ready);
    }
    s->fd = -1;
}

/* A queued event about l (NULL: about nothing), for the caller to complete before anything else is pushed. */
struct net_event *net_event_push(struct net *n, enum net_event_kind kind, const struct net_link *l)
{
    if (n->n_events == n->cap_events) {
        size_t cap = n->cap_events ? n->cap_events * 2 : 16;
        struct net_event *wider = mem_calloc(cap, sizeof *wider);
        if (!wider) {
            n->broken = -E_NOMEM; /* an owner that misses an UP or DOWN would be wrong for ever */
            return NULL;
        }
        for (size_t i = 0; i < n->n_events; i++)
            wider[i] = n->events[(n->first_event + i) % n->cap_events];
        mem_free(n->events);
        n->events = wider;
        n->cap_events = cap;
        n->first_event = 0;
    }
    struct net_event *e = &n->events[(n->first_event + n->n_events++) % n->cap_events];
    *e = (struct net_event){.kind = kind};
    if (l) {
        e->key = l->key;
        e->dial_id = l->dial_id;
        e->channel = net_link_first_channel(l->channels);
    }
    return e;
}

static bool event_pop(struct net *n, struct net_event *ret)
{
    while (n->n_events) {
        *ret = n->events[n->first_event];
        n->first_event = (n->first_event + 1) % n->cap_events;
        n->n_events--;
        if (ret->kind != NET_EVENT_NONE) /* NONE: its dial was hung up meanwhile */
            return true;
    }
    return false;
}

static int context_open(struct net *n, struct reason *why)
{
    if (!zmq_has("curve"))
        return reason_set(why, -E_UNSUPPORTED, "this libzmq was built without CURVE encryption");
    n->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    n->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    n->ctx = zmq_ctx_new();
    if (n->epoll_fd < 0 || n->wake_fd < 0 || !n->ctx)
        return reason_set(why, -E_IO, "cannot start networking: %s", strerror(errno));
    int io_threads = n->config.io_threads > 0 ? n->config.io_threads : NET_IO_THREADS;
    if (zmq_ctx_set(n->ctx, ZMQ_IO_THREADS, io_threads) != 0 ||
        zmq_ctx_set(n->ctx, ZMQ_MAX_SOCKETS, ZMQ_SOCKETS_MAX) != 0)
        return reason_set(why, -E_INVAL, "cannot start networking: %s", zmq_strerror(errno));
    return net_source_add(n, &n->wake_source, NET_SOURCE_WAKE, n->wake_fd, EPOLLIN, n);
}

static int all_open(struct net *n, struct reason *why)
{
    net_flow_setup(n);
    int rc = net_map_init(&n->by_key);
    if (rc == 0)
        rc = net_map_init(&n->by_rid);
    if (rc == 0 && getrandom(&n->hash_seed, sizeof n->hash_seed, 0) != sizeof n->hash_seed)
        rc = -E_IO;
    if (rc == 0)
        rc = context_open(n, why);
    if (rc == 0)
        rc = net_zap_open(n, why);
    for (int c = 0; c < NET_CHANNELS && rc == 0; c++)
        if (n->config.listen[c])
            rc = net_sock_bind(n, (enum net_channel)c, &n->bound[c], why);
    return rc;
}

int net_open(const struct net_config *config, struct net **ret, struct reason *why)
{
    struct net *n = mem_calloc(1, sizeof *n);
    if (!n)
        return reason_set(why, -E_NOMEM, "cannot start networking: out of memory");
    n->config = *config;
    n->epoll_fd = n->wake_fd = -1;
    n->zap_source.fd = n->wake_source.fd = -1;
    net_node_init(&n->ready);
    net_node_init(&n->links);
    net_node_init(&n->timed);
    net_node_init(&n->backlog);
    net_node_init(&n->zap_questions);
    for (int c = 0; c < NET_CHANNELS; c++)
        net_node_init(&n->hot[c]);
    const char *host = config->host ? config->host : "*";
    if (strlen(host) > HOST_MAX_LEN) {
        mem_free(n);
        return reason_set(why, -E_INVAL, "the address to listen on is too long");
    }
    memcpy(n->host_copy, host, strlen(host) + 1);
    n->config.host = n->host_copy;
    int rc = all_open(n, why);
    if (rc != 0) {
        net_free(n);
        return rc;
    }
    *ret = n;
    return 0;
}

static void event_done(struct net_event *e)
{
    e->head = blob_unref(e->head);
    e->body = blob_unref(e->body);
}

/* Lets queued messages go while time remains; what arrives meanwhile is of no use any more. */
static void flush_last(struct net *n, int64_t deadline_ns)
{
    while (!net_node_empty(&n->backlog) && !n->broken) {
        int64_t left_ns = deadline_ns - clock_now_ns();
        if (left_ns <= 0)
            return;
        struct net_event e = {0};
        if (net_poll(n, (int)(left_ns / NS_PER_MS) + 1 < 10 ? (int)(left_ns / NS_PER_MS) + 1 : 10, &e) != 0)
            return;
        event_done(&e);
    }
}

struct net *net_free(struct net *n)
{
    if (!n)
        return NULL;
    int64_t deadline_ns = clock_now_ns() + NET_GOODBYE_MS * NS_PER_MS;
    flush_last(n, deadline_ns);
    int64_t left_ns = deadline_ns - clock_now_ns();
    int linger_ms = left_ns > 0 ? (int)(left_ns / NS_PER_MS) : 0;
    while (!net_node_empty(&n->links)) {
        struct net_link *l = NET_OF(n->links.next, struct net_link, all);
        net_link_free(l, l->state == NET_LINK_UP ? linger_ms : 0);
    }
    for (int c = 0; c < NET_CHANNELS; c++)
        n->bound[c] = net_sock_free(n->bound[c], linger_ms);
    for (struct net_event e; event_pop(n, &e);)
        event_done(&e);
    net_zap_close(n);
    if (n->ctx)
        while (zmq_ctx_term(n->ctx) != 0 && errno == EINTR)
            ;
    if (n->wake_fd >= 0)
        close(n->wake_fd);
    if (n->epoll_fd >= 0)
        close(n->epoll_fd);
    net_map_done(&n->by_key);
    net_map_done(&n->by_rid);
    mem_free(n->admitted);
    mem_free(n->events);
    explicit_bzero(&n->config, sizeof n->config);
    return mem_free(n);
}

uint16_t net_port(const struct net *n, enum net_channel channel)
{
    assert(channel < NET_CHANNELS);
    return n->bound[channel] ? n->bound[channel]->port : 0;
}

void net_wake(struct net *n)
{
    uint64_t one = 1;
    ssize_t rc = write(n->wake_fd, &one, sizeof one); /* full: it is readable anyway */
    (void)rc;
}

int net_watch(struct net *n, int fd)
{
    if (n->n_watch == NET_WATCH_MAX)
        return -E_TOOBIG;
    int rc = net_source_add(n, &n->watch[n->n_watch], NET_SOURCE_WATCH, fd, EPOLLIN, n);
    if (rc == 0)
        n->n_watch++;
    return rc;
}

void net_counters(const struct net *n, struct net_counters *ret)
{
    *ret = n->counters;
}

/* Handlers may free links and with them other sources: those leave the ready list by themselves. */
static void source_serve(struct net *n, struct net_source *s)
{
    uint64_t count;
    ssize_t rc;
    switch (s->kind) {
    case NET_SOURCE_WAKE:
        rc = read(s->fd, &count, sizeof count);
        (void)rc;
        n->wake_pending = true;
        return;
    case NET_SOURCE_WATCH:
        n->wake_pending = true;
        return;
    case NET_SOURCE_ZAP:
        net_zap_serve(n);
        return;
    case NET_SOURCE_DATA:
        net_sock_heat(s->owner);
        n->flush_wanted = true;
        return;
    case NET_SOURCE_MONITOR:
        net_monitor_drain(s->owner);
        return;
    case NET_SOURCE_RESOLVE:
        net_dial_resolved(s->owner);
        return;
    case NET_SOURCE_PROBE:
        net_dial_step_probe(s->owner, false);
        return;
    }
}

/* Waits up to wait_ms for descriptors and serves them, then timers and queues. */
static int turn(struct net *n, int wait_ms)
{
    struct epoll_event events[EPOLL_BATCH];
    int count = epoll_wait(n->epoll_fd, events, EPOLL_BATCH, wait_ms);
    if (count < 0 && errno != EINTR)
        return n->broken = -E_IO;
    for (int i = 0; i < count; i++) {
        struct net_source *s = events[i].data.ptr;
        net_node_append(&n->ready, &s->ready);
    }
    while (!net_node_empty(&n->ready)) {
        struct net_source *s = NET_OF(n->ready.next, struct net_source, ready);
        net_node_remove(&s->ready);
        source_serve(n, s);
    }
    int64_t now_ns = clock_now_ns();
    net_zap_answer_due(n, now_ns);
    net_link_timers(n, now_ns);
    if (n->look_ns <= now_ns)
        net_flow_look(n, now_ns);
    if (!net_node_empty(&n->backlog) && (n->flush_wanted || net_send_next_ns(n, n->flushed_ns) <= now_ns))
        net_send_flush(n, now_ns);
    return n->broken;
}

static int wait_ms_until(struct net *n, int64_t deadline_ns)
{
    int64_t now_ns = clock_now_ns();
    int64_t until_ns = net_send_next_ns(n, now_ns), zap_ns = net_zap_next_ns(n);
    if (zap_ns < until_ns)
        until_ns = zap_ns;
    if (n->look_ns < until_ns)
        until_ns = n->look_ns;
    if (deadline_ns < until_ns)
        until_ns = deadline_ns;
    NET_EACH(it, &n->timed)
    {
        const struct net_link *l = NET_OF(it, struct net_link, timed);
        if (l->deadline_ns < until_ns)
            until_ns = l->deadline_ns;
    }
    if (until_ns <= now_ns)
        return 0;
    int64_t wait_ms = (until_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS;
    return wait_ms > 3600 * 1000 ? 3600 * 1000 : (int)wait_ms;
}

/* Something may be readable still: net_receive_next stops after so many messages that nobody gets. */
static bool is_hot(const struct net *n)
{
    for (int c = 0; c < NET_CHANNELS; c++)
        if (!net_node_empty(&n->hot[c]))
            return true;
    return false;
}

static bool wake_take(struct net *n, struct net_event *ret)
{
    if (!n->wake_pending)
        return false;
    n->wake_pending = false;
    n->last_was_wake = true;
    *ret = (struct net_event){.kind = NET_EVENT_WAKE};
    return true;
}

int net_poll(struct net *n, int timeout_ms, struct net_event *ret)
{
    int64_t deadline_ns = timeout_ms < 0 ? INT64_MAX : clock_now_ns() + timeout_ms * NS_PER_MS;
    bool wake_had_its_turn = n->last_was_wake;
    n->last_was_wake = false;
    for (int wait_ms = 0;;) {
        int rc = turn(n, wait_ms);
        if (rc != 0)
            return rc;
        /* A watched descriptor that stays readable must not shut out messages, nor they it. */
        if (event_pop(n, ret) || (!wake_had_its_turn && wake_take(n, ret)) || net_receive_next(n, ret))
            return 0;
        net_link_finish_drained(n, clock_now_ns());
        if (event_pop(n, ret) || wake_take(n, ret))
            return 0;
        if (deadline_ns <= clock_now_ns()) {
            *ret = (struct net_event){.kind = NET_EVENT_NONE};
            return 0;
        }
        wait_ms = is_hot(n) ? 0 : wait_ms_until(n, deadline_ns);
    }
}
