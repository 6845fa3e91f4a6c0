/* Dials: from a host and ports to a link that is up, or to one sentence that says why not.
 *
 * A dial that fails before it is up is never retried on the same address. Its zmq sockets are closed first; then one
 * raw look at the port (greeting.c) finds out what is there, because zmq's events do not tell. Of a name's several
 * addresses the next one is tried when one cannot be reached. */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

static void sockets_close(struct net_link *l, int linger_ms)
{
    for (int c = 0; c < NET_CHANNELS; c++) {
        struct net_conn *conn = &l->conn[c];
        conn->sock = net_sock_free(conn->sock, linger_ms);
        conn->greeted = conn->connected = false;
    }
}

static int sockets_open(struct net_link *l)
{
    struct net_dialling *d = l->dial;
    const struct sockaddr_storage *addr = &d->addrs[d->next_addr];
    char host[NI_MAXHOST], address[NET_ENDPOINT_MAX], endpoint[NET_ENDPOINT_MAX + 8];
    socklen_t len = addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (getnameinfo((const struct sockaddr *)addr, len, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0 ||
        strlen(host) > HOST_MAX_LEN)
        return -E_INVAL;
    d->connected_ns = 0;
    d->slow = false;
    l->state = NET_LINK_OPENING;
    net_link_deadline(l, clock_now_ns() + NET_DIAL_MS * NS_PER_MS);
    for (int c = 0; c < NET_CHANNELS; c++) {
        if (!(l->channels & (1u << c)))
            continue;
        net_sock_address(address, sizeof address, host, d->port[c]);
        snprintf(endpoint, sizeof endpoint, "tcp://%s", address);
        struct net_conn *conn = &l->conn[c];
        int rc = net_sock_connect(l->net, conn, (enum net_channel)c, &l->key, endpoint, &conn->sock);
        if (rc != 0) {
            sockets_close(l, 0);
            return rc;
        }
        net_hello_send(conn);
    }
    return 0;
}

static struct net_link *dial_find(const struct net *n, uint32_t dial_id)
{
    NET_EACH(it, (struct net_node *)&n->links)
    {
        struct net_link *l = NET_OF(it, struct net_link, all);
        if (l->dial_id == dial_id)
            return l;
    }
    return NULL;
}

/* An event about the dial that its owner has not seen yet. */
static struct net_event *event_find(struct net *n, uint32_t dial_id)
{
    for (size_t i = 0; i < n->n_events; i++) {
        struct net_event *e = &n->events[(n->first_event + i) % n->cap_events];
        if (e->dial_id == dial_id && e->kind != NET_EVENT_NONE)
            return e;
    }
    return NULL;
}

static int link_start(struct net_link *l)
{
    struct net_dialling *d = l->dial;
    int fd;
    if (net_resolve_numeric(d->host, &d->addrs[0])) {
        d->n_addrs = 1;
        return sockets_open(l);
    }
    int rc = net_resolve_start(d->host, &d->resolve, &fd);
    if (rc != 0)
        return rc;
    net_link_deadline(l, clock_now_ns() + NET_DIAL_MS * NS_PER_MS);
    return net_source_add(l->net, &d->resolve_source, NET_SOURCE_RESOLVE, fd, EPOLLIN, l);
}

int net_dial(struct net *n, uint32_t dial_id, const struct net_key *server_key, const char *host,
             const uint16_t port[NET_CHANNELS], uint32_t channels)
{
    if (dial_id == 0 || channels == 0 || channels >= 1u << NET_CHANNELS || !host[0] || strlen(host) > HOST_MAX_LEN)
        return -E_INVAL;
    for (int c = 0; c < NET_CHANNELS; c++)
        if ((channels & (1u << c)) && port[c] == 0)
            return -E_INVAL;
    if (dial_find(n, dial_id) || event_find(n, dial_id))
        return -E_EXIST;
    struct net_link *l = net_link_new(n, server_key, channels, NET_LINK_RESOLVING);
    if (!l)
        return -E_NOMEM;
    l->dial_id = dial_id;
    l->dial = mem_calloc(1, sizeof *l->dial);
    int rc = l->dial ? 0 : -E_NOMEM;
    if (rc == 0) {
        memcpy(l->dial->host, host, strlen(host) + 1);
        memcpy(l->dial->port, port, sizeof l->dial->port);
        l->dial->resolve_source.fd = -1;
        net_node_init(&l->dial->resolve_source.ready);
        rc = getrandom(l->nonce, sizeof l->nonce, 0) == sizeof l->nonce ? link_start(l) : -E_IO;
    }
    if (rc != 0)
        net_link_free(l, 0);
    return rc;
}

void net_hangup(struct net *n, uint32_t dial_id)
{
    if (dial_id == 0)
        return;
    struct net_link *l = dial_find(n, dial_id);
    if (l)
        net_link_free(l, l->state == NET_LINK_UP ? NET_GOODBYE_MS : 0);
    for (struct net_event *e; (e = event_find(n, dial_id));)
        *e = (struct net_event){.kind = NET_EVENT_NONE}; /* net_poll passes over it */
}

void net_dial_done(struct net_link *l)
{
    struct net_dialling *d = l->dial;
    if (!d)
        return;
    net_source_remove(l->net, &d->resolve_source);
    d->resolve = net_resolve_free(d->resolve);
    d->probe = net_probe_free(d->probe);
    l->dial = mem_free(d);
}

void net_dial_failed(struct net_link *l, enum net_failure failure, const char *fmt, ...)
{
    assert(l->dial && l->state != NET_LINK_UP && l->state != NET_LINK_ENDING);
    struct net_event *e = net_event_push(l->net, NET_EVENT_DIAL_FAILED, l);
    if (e) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(e->why.text, sizeof e->why.text, fmt, args);
        va_end(args);
        e->failure = failure;
    }
    net_link_free(l, 0);
}

void net_dial_resolved(struct net_link *l)
{
    struct net_dialling *d = l->dial;
    struct reason why = {0};
    int rc = net_resolve_take(d->resolve, d->addrs, NET_DIAL_ADDRS_MAX, &d->n_addrs, &why);
    if (rc == -E_AGAIN)
        return;
    net_source_remove(l->net, &d->resolve_source);
    d->resolve = net_resolve_free(d->resolve);
    if (rc == 0)
        rc = sockets_open(l);
    if (rc != 0)
        net_dial_failed(l, NET_FAILURE_UNREACHABLE, "cannot reach %s: %s", d->host, reason_text(&why, rc));
}

void net_dial_broken(struct net_link *l, enum net_channel channel)
{
    struct net_dialling *d = l->dial;
    int64_t now_ns = clock_now_ns();
    /* A wrong key fails at once; a handshake that used up its time met a busy or frozen process. */
    d->slow |= d->connected_ns && now_ns - d->connected_ns >= (NET_HANDSHAKE_MS - 200) * NS_PER_MS;
    sockets_close(l, 0);
    l->state = NET_LINK_PROBING;
    net_link_deadline(l, now_ns + NET_CONNECT_MS * NS_PER_MS);
    int rc = net_probe_start(l, &d->addrs[d->next_addr], d->port[channel], &d->probe);
    if (rc != 0)
        net_dial_failed(l, NET_FAILURE_UNREACHABLE, "cannot reach %s: %s", d->host, status_text(rc));
    else if (net_probe_errno(d->probe))
        net_dial_step_probe(l, false);
}

void net_dial_timeout(struct net_link *l)
{
    struct net_dialling *d = l->dial;
    if (l->state == NET_LINK_RESOLVING) {
        net_dial_failed(l, NET_FAILURE_UNREACHABLE, "looking up \"%s\" took longer than %d s", d->host,
                        NET_DIAL_MS / 1000);
        return;
    }
    enum net_channel channel = net_link_first_channel(l->channels);
    for (int c = NET_CHANNELS - 1; c >= 0; c--)
        if (l->conn[c].sock && !l->conn[c].greeted)
            channel = (enum net_channel)c;
    d->slow = true;
    net_dial_broken(l, channel);
}

static void verdict(struct net_link *l, enum net_probe_result result)
{
    struct net_dialling *d = l->dial;
    char who[NET_ENDPOINT_MAX], heard[32];
    net_sock_address(who, sizeof who, d->host, net_probe_port(d->probe));
    net_probe_heard(d->probe, heard, sizeof heard);
    switch (result) {
    case NET_PROBE_REFUSED:
        net_dial_failed(l, NET_FAILURE_REFUSED, "nothing listens at %s", who);
        return;
    case NET_PROBE_UNREACHABLE:
        net_dial_failed(l, NET_FAILURE_UNREACHABLE, "cannot reach %s: %s", who, strerror(net_probe_errno(d->probe)));
        return;
    case NET_PROBE_TIMEOUT:
        net_dial_failed(l, NET_FAILURE_TIMEOUT,
                        "%s does not answer: a wrong address, a firewall, or the machine is off", who);
        return;
    case NET_PROBE_SILENT:
        net_dial_failed(l, NET_FAILURE_TIMEOUT,
                        "%s takes connections but says nothing: a frozen process, or another program", who);
        return;
    case NET_PROBE_OTHER:
        if (heard[0])
            net_dial_failed(l, NET_FAILURE_NOT_SHOAL, "%s is another program: it answers \"%s\"", who, heard);
        else
            net_dial_failed(l, NET_FAILURE_NOT_SHOAL, "%s is another program: it does not speak ZMTP", who);
        return;
    case NET_PROBE_NO_CURVE:
        net_dial_failed(l, NET_FAILURE_NOT_SHOAL, "%s is another ZeroMQ program: it does not use CURVE", who);
        return;
    case NET_PROBE_CURVE:
        if (d->slow)
            net_dial_failed(l, NET_FAILURE_TIMEOUT, "%s answers but does not finish the handshake in time", who);
        else
            net_dial_failed(l, NET_FAILURE_WRONG_KEY, "the process at %s is not the expected one: its key differs",
                            who);
        return;
    case NET_PROBE_AGAIN:
        break;
    }
    assert(false && "a verdict is final");
}

void net_dial_step_probe(struct net_link *l, bool timed_out)
{
    struct net_dialling *d = l->dial;
    enum net_probe_result result = net_probe_step(d->probe, timed_out);
    if (result == NET_PROBE_AGAIN) { /* connected: now it has this long to greet, however it dribbles */
        int64_t deadline_ns = clock_now_ns() + NET_GREETING_MS * NS_PER_MS;
        if (deadline_ns < l->deadline_ns)
            net_link_deadline(l, deadline_ns);
        return;
    }
    bool not_there = result == NET_PROBE_REFUSED || result == NET_PROBE_UNREACHABLE || result == NET_PROBE_TIMEOUT;
    if (not_there && d->next_addr + 1 < d->n_addrs) {
        d->probe = net_probe_free(d->probe);
        d->next_addr++;
        int rc = sockets_open(l);
        if (rc != 0)
            net_dial_failed(l, NET_FAILURE_UNREACHABLE, "cannot reach %s: %s", d->host, status_text(rc));
        return;
    }
    verdict(l, result);
}
