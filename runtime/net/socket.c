/* Making and closing zmq sockets: the options every link runs with, the monitor beside each socket, and registration
 * with epoll. A socket's ZMQ_FD only says "commands may be waiting", so a socket whose descriptor fired, or on which
 * anything was called, stays in its channel's hot list until a receive has found nothing. */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* Messages that zmq holds per connection. Bulk messages are a megabyte: these bound memory at a receiver that does not
 * poll; a lobby's guests are strangers. */
static const int high_water[NET_CHANNELS] = {[NET_CONTROL] = 256, [NET_BULK] = 16, [NET_LOBBY] = 8};
static const int send_high_water[NET_CHANNELS] = {[NET_CONTROL] = 256, [NET_BULK] = 32, [NET_LOBBY] = 32};
static const char *const domain[NET_CHANNELS] = {"control", "bulk", "lobby"};

void net_sock_heat(struct net_sock *s)
{
    if (net_node_empty(&s->hot))
        net_node_append(&s->net->hot[s->channel], &s->hot);
}

/* "host:port", with brackets where the host is a bare IPv6 address. */
void net_sock_address(char *ret, size_t size, const char *host, uint16_t port)
{
    bool bare6 = strchr(host, ':') && host[0] != '[';
    snprintf(ret, size, bare6 ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
}

static bool set_int(void *zmq, int option, int value)
{
    return zmq_setsockopt(zmq, option, &value, sizeof value) == 0;
}

static bool set_options(struct net_sock *s, const struct net_key *server_key)
{
    const struct net_config *c = &s->net->config;
    size_t max = s->channel != NET_LOBBY ? BODY_BYTES_MAX : server_key ? HEAD_BYTES_MAX : GUEST_MESSAGE_BYTES_MAX;
    int64_t max_bytes = (int64_t)max + NET_CURVE_OVERHEAD; /* of a frame: flow.c bounds a message's frames */
    bool ok = zmq_setsockopt(s->zmq, ZMQ_CURVE_PUBLICKEY, c->curve_pub, NET_KEY_BYTES) == 0 &&
              zmq_setsockopt(s->zmq, ZMQ_CURVE_SECRETKEY, c->curve_secret, NET_KEY_BYTES) == 0 &&
              zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes) == 0;
    ok = ok && set_int(s->zmq, ZMQ_LINGER, 0) && set_int(s->zmq, ZMQ_HANDSHAKE_IVL, NET_HANDSHAKE_MS) &&
         set_int(s->zmq, ZMQ_SNDHWM, send_high_water[s->channel]) &&
         set_int(s->zmq, ZMQ_RCVHWM, high_water[s->channel]);
    ok = ok && set_int(s->zmq, ZMQ_IPV6, 1) && set_int(s->zmq, ZMQ_TCP_KEEPALIVE, 1) &&
         set_int(s->zmq, ZMQ_TCP_KEEPALIVE_IDLE, 10) && set_int(s->zmq, ZMQ_TCP_KEEPALIVE_INTVL, 5) &&
         set_int(s->zmq, ZMQ_TCP_KEEPALIVE_CNT, 3) && set_int(s->zmq, ZMQ_TCP_MAXRT, NET_MAXRT_MS);
    if (!ok)
        return false;
    if (server_key) /* a dial is one connection: no reconnecting behind our back */
        return zmq_setsockopt(s->zmq, ZMQ_CURVE_SERVERKEY, server_key->bytes, NET_KEY_BYTES) == 0 &&
               set_int(s->zmq, ZMQ_RECONNECT_IVL, -1) && set_int(s->zmq, ZMQ_CONNECT_TIMEOUT, NET_CONNECT_MS);
    return set_int(s->zmq, ZMQ_CURVE_SERVER, 1) && set_int(s->zmq, ZMQ_ROUTER_MANDATORY, 1) &&
           set_int(s->zmq, ZMQ_BACKLOG, 256) &&
           zmq_setsockopt(s->zmq, ZMQ_ZAP_DOMAIN, domain[s->channel], strlen(domain[s->channel])) == 0;
}

/* The monitor's receiving end has no high-water mark: a full one would block zmq's I/O thread.
 *
 * HANDSHAKE_FAILED_PROTOCOL must stay off: libzmq 4.3.4 raises it for a message that fails to decrypt, after setting
 * errno, and sending the event overwrites errno with EAGAIN: the engine then takes the forgery for back-pressure and
 * stops reading instead of closing (test_wire.c). DISCONNECTED tells us all we need. */
static bool monitor_open(struct net_sock *s)
{
    int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "inproc://monitor.%llu", (unsigned long long)++s->net->monitor_seq);
    s->monitor = zmq_socket(s->net->ctx, ZMQ_PAIR);
    if (!s->monitor || !set_int(s->monitor, ZMQ_RCVHWM, 0) || !set_int(s->monitor, ZMQ_LINGER, 0) ||
        zmq_socket_monitor(s->zmq, endpoint, events) != 0 || zmq_connect(s->monitor, endpoint) != 0)
        return false;
    /* A pipe that was never read from does not signal its first message: one vain read arms the descriptor. */
    char none;
    int rc = zmq_recv(s->monitor, &none, sizeof none, ZMQ_DONTWAIT);
    assert(rc < 0);
    return true;
}

static int zmq_descriptor(void *zmq)
{
    int fd = -1;
    size_t len = sizeof fd;
    return zmq_getsockopt(zmq, ZMQ_FD, &fd, &len) == 0 ? fd : -1;
}

static struct net_sock *sock_new(struct net *n, enum net_channel channel, const struct net_key *server_key)
{
    struct net_sock *s = mem_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->net = n;
    s->channel = channel;
    s->data.fd = s->monitor_source.fd = s->fd = -1;
    net_node_init(&s->data.ready);
    net_node_init(&s->monitor_source.ready);
    net_node_init(&s->hot);
    s->zmq = zmq_socket(n->ctx, server_key ? ZMQ_DEALER : ZMQ_ROUTER);
    if (s->zmq && set_options(s, server_key) && monitor_open(s) &&
        net_source_add(n, &s->data, NET_SOURCE_DATA, zmq_descriptor(s->zmq), EPOLLIN, s) == 0 &&
        net_source_add(n, &s->monitor_source, NET_SOURCE_MONITOR, zmq_descriptor(s->monitor), EPOLLIN, s) == 0)
        return s;
    int saved = errno;
    net_sock_free(s, 0);
    errno = saved;
    return NULL;
}

struct net_sock *net_sock_free(struct net_sock *s, int linger_ms)
{
    if (!s)
        return NULL;
    net_node_remove(&s->hot);
    net_source_remove(s->net, &s->data);
    net_source_remove(s->net, &s->monitor_source);
    if (s->zmq) {
        zmq_socket_monitor(s->zmq, NULL, 0);
        set_int(s->zmq, ZMQ_LINGER, linger_ms);
        zmq_close(s->zmq);
    }
    if (s->monitor)
        zmq_close(s->monitor);
    mem_free(s->fds);
    mem_free(s);
    return NULL;
}

/* The port at the end of "tcp://127.0.0.1:43210". */
static uint16_t bound_port(void *zmq)
{
    char endpoint[NET_ENDPOINT_MAX];
    size_t len = sizeof endpoint;
    if (zmq_getsockopt(zmq, ZMQ_LAST_ENDPOINT, endpoint, &len) != 0)
        return 0;
    const char *colon = strrchr(endpoint, ':');
    return colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
}

int net_sock_bind(struct net *n, enum net_channel channel, struct net_sock **ret, struct reason *why)
{
    char address[NET_ENDPOINT_MAX], endpoint[NET_ENDPOINT_MAX + 8];
    net_sock_address(address, sizeof address, n->config.host, n->config.port[channel]);
    struct net_sock *s = sock_new(n, channel, NULL);
    if (!s)
        return reason_set(why, -E_IO, "cannot listen on %s: %s", address, zmq_strerror(errno));
    snprintf(endpoint, sizeof endpoint, "tcp://%s", address);
    if (zmq_bind(s->zmq, endpoint) != 0) {
        int error = errno;
        net_sock_free(s, 0);
        return reason_set(why, -E_IO, "cannot listen on %s: %s%s", address, zmq_strerror(error),
                          error == EADDRINUSE ? " (another process uses this port)" : "");
    }
    s->port = bound_port(s->zmq);
    assert(s->port != 0);
    *ret = s;
    return 0;
}

int net_sock_connect(struct net *n, struct net_conn *conn, enum net_channel channel, const struct net_key *server_key,
                     const char *endpoint, struct net_sock **ret)
{
    struct net_sock *s = sock_new(n, channel, server_key);
    if (!s)
        return -E_IO;
    s->dialled = conn;
    if (zmq_connect(s->zmq, endpoint) != 0) {
        net_sock_free(s, 0);
        return -E_INVAL;
    }
    *ret = s;
    return 0;
}
