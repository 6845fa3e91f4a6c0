/* The three messages links exchange among themselves: [empty frame][12-byte payload]. A caller's message never has an
 * empty head, so the two cannot be confused.
 *
 *   HELLO  dialling side, first on each channel: which channel this is, which ones the link has, and a nonce that says
 *          which connections belong together. From it ROUTER's owner learns (routing id, key, descriptor).
 *   ACK    accepting side, for each HELLO. The dialling side reads nothing further from a channel before every channel
 *          was acknowledged, and the accepting side has then already seen all HELLOs: no message precedes UP.
 *   BYE    accepting side, with a reason: it cannot close one connection of a ROUTER, so it asks the dialling side to.
 */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LINK_PROTOCOL 1
#define PAYLOAD_BYTES 12
#define NONCE_AT      4

enum payload_type { PAYLOAD_HELLO = 1, PAYLOAD_ACK, PAYLOAD_BYE };

/* payload: [0] protocol version, [1] type, [2] channel or reason for BYE, [3] channels, [4..11] nonce */
static void payload_make(uint8_t ret[PAYLOAD_BYTES], enum payload_type type, unsigned detail, const struct net_link *l)
{
    ret[0] = LINK_PROTOCOL;
    ret[1] = (uint8_t)type;
    ret[2] = (uint8_t)detail;
    ret[3] = l ? (uint8_t)l->channels : 0;
    memset(ret + NONCE_AT, 0, PAYLOAD_BYTES - NONCE_AT);
    if (l)
        memcpy(ret + NONCE_AT, l->nonce, sizeof l->nonce);
}

void net_hello_send(struct net_conn *conn)
{
    uint8_t payload[PAYLOAD_BYTES];
    payload_make(payload, PAYLOAD_HELLO, conn->sock->channel, conn->link);
    /* A fresh DEALER has an empty pipe; should this ever fail, the dial's deadline tells. */
    net_sock_write_internal(conn->sock, NULL, payload, sizeof payload);
}

static void bye_to(struct net_sock *s, const struct net_rid *rid, enum net_bye reason)
{
    uint8_t payload[PAYLOAD_BYTES];
    payload_make(payload, PAYLOAD_BYE, reason, NULL);
    net_sock_write_internal(s, rid, payload, sizeof payload);
}

void net_hello_bye(struct net_link *l, enum net_bye reason)
{
    if (l->dial_id != 0)
        return; /* our own sockets: closing them says it */
    for (int c = 0; c < NET_CHANNELS; c++)
        if (l->conn[c].sock && l->conn[c].fd >= 0)
            bye_to(l->conn[c].sock, &l->conn[c].rid, reason);
}

static struct net_link *waiting_link(struct net *n, const struct net_key *key, uint32_t channels, const uint8_t *nonce)
{
    struct net_link *found = NULL;
    NET_EACH(it, &n->timed)
    {
        struct net_link *l = NET_OF(it, struct net_link, timed);
        if (l->state != NET_LINK_WAITING || memcmp(&l->key, key, sizeof *key) != 0 || !(l->channels & channels))
            continue;
        if (l->channels == channels && memcmp(l->nonce, nonce, sizeof l->nonce) == 0) {
            found = l;
        } else { /* given up by its owner, who started anew */
            net_hello_bye(l, NET_BYE_REPLACED);
            net_link_free(l, 0);
        }
    }
    if (found)
        return found;
    struct net_link *l = net_link_new(n, key, channels, NET_LINK_WAITING);
    if (l) {
        memcpy(l->nonce, nonce, sizeof l->nonce);
        net_link_deadline(l, clock_now_ns() + NET_DIAL_MS * NS_PER_MS);
    }
    return l;
}

/* 0, or why the greeted channels cannot be had here. */
static enum net_bye objection(const struct net_sock *s, const struct net_key *key, const uint8_t *payload)
{
    const struct net *n = s->net;
    uint32_t channels = payload[3];
    if (payload[0] != LINK_PROTOCOL)
        return NET_BYE_VERSION;
    if (payload[2] != s->channel || !(channels & (1u << s->channel)) || channels >= 1u << NET_CHANNELS)
        return NET_BYE_CHANNELS;
    for (int c = 0; c < NET_CHANNELS; c++)
        if ((channels & (1u << c)) && !n->bound[c])
            return NET_BYE_CHANNELS;
    if (channels != 1u << NET_LOBBY && !net_admitted(n, key))
        return NET_BYE_NOT_ADMITTED;
    return 0;
}

/* Ties the connection to its descriptor, or not at all if it has ended meanwhile.
 *
 * Draining the monitor first shows this connection's ACCEPTED (it precedes the handshake) and possibly its end. If the
 * descriptor is closed now, the connection is dead. If it is open it may already be another connection's: then the
 * kernel reused it, so zmq had closed ours, and before closing it had told ROUTER; the ACK then finds no such id. */
static bool conn_bind(struct net_sock *s, struct net_conn *conn, const struct net_rid *rid, int fd)
{
    uint8_t payload[PAYLOAD_BYTES];
    payload_make(payload, PAYLOAD_ACK, s->channel, conn->link);
    if (net_sock_write_internal(s, rid, payload, sizeof payload) != 0)
        return false;
    conn->sock = s;
    conn->rid = *rid;
    conn->fd = fd;
    if (s->fds[fd].conn) /* cannot be: its connection ended without an event */
        s->fds[fd].conn->fd = -1;
    s->fds[fd].conn = conn;
    s->fds[fd].linked = true;
    s->fds[fd].active_ns = clock_now_ns();
    net_map_add(&s->net->by_rid, &conn->by_rid, net_hash(s->net->hash_seed, rid, sizeof *rid));
    return true;
}

static void on_hello(struct net_sock *s, const struct net_rid *rid, zmq_msg_t *message)
{
    struct net *n = s->net;
    const uint8_t *payload = zmq_msg_data(message);
    const char *user = zmq_msg_gets(message, "User-Id");
    struct net_key key;
    int fd = zmq_msg_get(message, ZMQ_SRCFD);
    net_monitor_drain(s);
    if (!user || net_key_from_hex(user, &key) != 0 || fd < 0 || (size_t)fd >= s->n_fds || !s->fds[fd].open) {
        n->counters.dropped_messages++;
        return;
    }
    enum net_bye no = objection(s, &key, payload);
    if (no) {
        n->counters.dropped_messages++;
        bye_to(s, rid, no);
        return;
    }
    uint32_t channels = payload[3];
    struct net_link *l = waiting_link(n, &key, channels, payload + NONCE_AT);
    if (!l || l->conn[s->channel].sock) { /* out of memory, or the same HELLO on two connections */
        n->counters.dropped_messages++;
        return;
    }
    if (!conn_bind(s, &l->conn[s->channel], rid, fd)) {
        net_hello_bye(l, NET_BYE_CUT);
        net_link_free(l, 0);
        return;
    }
    for (int c = 0; c < NET_CHANNELS; c++)
        if ((channels & (1u << c)) && !l->conn[c].sock)
            return;
    net_link_up(l);
}

static void on_ack(struct net_conn *conn)
{
    struct net_link *l = conn->link;
    if (l->state != NET_LINK_OPENING)
        return;
    conn->greeted = true;
    for (int c = 0; c < NET_CHANNELS; c++)
        if (l->conn[c].sock && !l->conn[c].greeted)
            return;
    net_link_up(l);
}

static void on_bye(struct net_link *l, unsigned reason)
{
    char who[NET_ENDPOINT_MAX];
    net_link_name(l, who, sizeof who);
    if (l->state == NET_LINK_UP || l->state == NET_LINK_ENDING) { /* ENDING: the connection's end was seen first */
        if (reason == NET_BYE_REPLACED)
            l->failure = NET_FAILURE_REPLACED;
        net_link_cut(l, "the other side closed the link");
        if (reason == NET_BYE_REPLACED || reason == NET_BYE_NOT_ADMITTED)
            reason_set(&l->why, -E_CLOSED, "%s",
                       reason == NET_BYE_REPLACED ? "the same key opened a newer link"
                                                  : "this key is no longer admitted there");
        return;
    }
    if (l->state != NET_LINK_OPENING)
        return;
    switch (reason) {
    case NET_BYE_NOT_ADMITTED:
        net_dial_failed(l, NET_FAILURE_NOT_ADMITTED, "%s does not admit this key", who);
        return;
    case NET_BYE_VERSION:
        net_dial_failed(l, NET_FAILURE_NOT_SHOAL, "%s speaks another version of the link protocol than %d", who,
                        LINK_PROTOCOL);
        return;
    default:
        net_dial_failed(l, NET_FAILURE_REFUSED, "%s refused the link", who);
        return;
    }
}

/* A message with an empty head. conn: of the socket (dialled) or of the routing id (accepted), NULL if it has none. May
 * end the link and, for a dial that was not up, free s. */
void net_hello_receive(struct net_sock *s, const struct net_rid *rid, struct net_conn *conn, zmq_msg_t *message)
{
    const uint8_t *payload = zmq_msg_data(message);
    if (zmq_msg_size(message) == PAYLOAD_BYTES) {
        if (payload[1] == PAYLOAD_HELLO && !s->dialled && !conn) {
            on_hello(s, rid, message);
            return;
        }
        if (payload[1] == PAYLOAD_ACK && s->dialled && payload[0] == LINK_PROTOCOL) {
            on_ack(conn);
            return;
        }
        if (payload[1] == PAYLOAD_BYE && s->dialled) {
            on_bye(conn->link, payload[2]);
            return;
        }
    }
    s->net->counters.dropped_messages++;
}
