/* Links: their table, their states, and how they end.
 *
 *   dial:      RESOLVING -> OPENING -> UP -> ENDING -> (DOWN)       accepted: WAITING -> UP -> ENDING -> (DOWN)
 *              OPENING -> PROBING -> (DIAL_FAILED)
 *
 * Invariant: one UP event for each DOWN event, and a link in state UP or ENDING has exactly one DOWN still to come. Of
 * accepted links with one key and a channel in common at most one is UP: the newest. */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum net_channel net_link_first_channel(uint32_t channels)
{
    for (int c = 0; c < NET_CHANNELS; c++)
        if (channels & (1u << c))
            return (enum net_channel)c;
    assert(false && "a link has a channel");
    return NET_CONTROL;
}

const char *net_link_name(const struct net_link *l, char *ret, size_t size)
{
    if (l->dial)
        net_sock_address(ret, size, l->dial->host, l->dial->port[net_link_first_channel(l->channels)]);
    else
        snprintf(ret, size, "the peer with key %02x%02x%02x%02x", l->key.bytes[0], l->key.bytes[1], l->key.bytes[2],
                 l->key.bytes[3]);
    return ret;
}

struct net_link *net_link_new(struct net *n, const struct net_key *key, uint32_t channels, enum net_link_state state)
{
    struct net_link *l = mem_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->net = n;
    l->key = *key;
    l->channels = channels;
    l->state = state;
    net_node_init(&l->all);
    net_node_init(&l->timed);
    net_node_init(&l->backlog);
    for (int c = 0; c < NET_CHANNELS; c++) {
        l->conn[c].link = l;
        l->conn[c].fd = -1;
    }
    net_node_append(&n->links, &l->all);
    net_map_add(&n->by_key, &l->by_key, net_hash(n->hash_seed, key, sizeof *key));
    return l;
}

static void conn_forget(struct net_conn *conn)
{
    struct net *n = conn->link->net;
    net_map_remove(&n->by_rid, &conn->by_rid);
    if (conn->sock && !conn->sock->dialled && conn->fd >= 0 && (size_t)conn->fd < conn->sock->n_fds &&
        conn->sock->fds[conn->fd].conn == conn) {
        conn->sock->fds[conn->fd].conn = NULL;
        conn->sock->fds[conn->fd].active_ns = clock_now_ns();
    }
    conn->fd = -1;
    net_outq_done(&conn->out);
}

void net_link_free(struct net_link *l, int linger_ms)
{
    struct net *n = l->net;
    for (int c = 0; c < NET_CHANNELS; c++) {
        conn_forget(&l->conn[c]);
        if (l->conn[c].sock && l->conn[c].sock->dialled)
            net_sock_free(l->conn[c].sock, linger_ms);
    }
    net_dial_done(l);
    net_map_remove(&n->by_key, &l->by_key);
    net_node_remove(&l->all);
    net_node_remove(&l->timed);
    net_node_remove(&l->backlog);
    mem_free(l);
}

/* The newest UP link of key that has channel. */
struct net_link *net_link_find(const struct net *n, const struct net_key *key, enum net_channel channel)
{
    struct net_link *best = NULL;
    for (struct net_map_node *x = net_map_first(&n->by_key, net_hash(n->hash_seed, key, sizeof *key)); x;
         x = net_map_next(x)) {
        struct net_link *l = NET_OF(x, struct net_link, by_key);
        if (l->state == NET_LINK_UP && (l->channels & (1u << channel)) && memcmp(&l->key, key, sizeof *key) == 0 &&
            (!best || l->up_seq > best->up_seq))
            best = l;
    }
    return best;
}

struct net_conn *net_link_by_rid(const struct net *n, enum net_channel channel, const struct net_rid *rid)
{
    for (struct net_map_node *x = net_map_first(&n->by_rid, net_hash(n->hash_seed, rid, sizeof *rid)); x;
         x = net_map_next(x)) {
        struct net_conn *conn = NET_OF(x, struct net_conn, by_rid);
        if (conn->sock->channel == channel && memcmp(&conn->rid, rid, sizeof *rid) == 0)
            return conn;
    }
    return NULL;
}

void net_link_deadline(struct net_link *l, int64_t deadline_ns)
{
    l->deadline_ns = deadline_ns;
    if (deadline_ns)
        net_node_append(&l->net->timed, &l->timed);
    else
        net_node_remove(&l->timed);
}

static void finish(struct net_link *l)
{
    struct net_event *e = net_event_push(l->net, NET_EVENT_DOWN, l);
    if (e) {
        e->why = l->why;
        e->failure = l->failure;
    }
    net_link_free(l, 0);
}

/* The newest link of a key wins, even over one that still drains: its DOWN comes before our UP. */
static void replace_older(struct net_link *l)
{
    NET_EACH(it, &l->net->links)
    {
        struct net_link *old = NET_OF(it, struct net_link, all);
        if (old == l || old->dial_id != 0 || !(old->channels & l->channels) ||
            (old->state != NET_LINK_UP && old->state != NET_LINK_ENDING) ||
            memcmp(&old->key, &l->key, sizeof l->key) != 0)
            continue;
        net_hello_bye(old, NET_BYE_REPLACED);
        net_link_cut(old, "the same key opened a newer link");
        finish(old);
    }
}

void net_link_up(struct net_link *l)
{
    assert(l->state == NET_LINK_OPENING || l->state == NET_LINK_WAITING);
    if (l->dial_id == 0)
        replace_older(l);
    l->state = NET_LINK_UP;
    l->up_seq = ++l->net->up_seq;
    net_link_deadline(l, 0);
    net_event_push(l->net, NET_EVENT_UP, l);
    for (int c = 0; c < NET_CHANNELS; c++)
        if (l->conn[c].sock)
            net_sock_heat(l->conn[c].sock); /* a dial left messages unread until now */
}

void net_link_cut(struct net_link *l, const char *why)
{
    switch (l->state) {
    case NET_LINK_RESOLVING:
    case NET_LINK_OPENING:
        net_dial_failed(l, NET_FAILURE_TIMEOUT, "%s", why);
        return;
    case NET_LINK_WAITING:
        net_link_free(l, 0);
        return;
    case NET_LINK_UP:
        l->state = NET_LINK_ENDING;
        reason_set(&l->why, -E_CLOSED, "%s", why);
        for (int c = 0; c < NET_CHANNELS; c++) {
            if (l->conn[c].sock)
                net_sock_heat(l->conn[c].sock);
            net_outq_done(&l->conn[c].out);
        }
        net_node_remove(&l->backlog);
        net_link_deadline(l, clock_now_ns() + NET_DRAIN_MS * NS_PER_MS);
        return;
    case NET_LINK_PROBING:
    case NET_LINK_ENDING:
        return; /* already on its way out */
    }
}

void net_link_end(struct net_link *l, const char *why)
{
    net_hello_bye(l, NET_BYE_CUT);
    net_link_cut(l, why);
}

void net_expel(struct net *n, const struct net_key *key, enum net_channel channel, const char *why)
{
    struct net_link *l = net_link_find(n, key, channel);
    if (l && l->dial_id == 0)
        net_link_end(l, why);
}

static bool is_drained(const struct net_link *l)
{
    for (int c = 0; c < NET_CHANNELS; c++)
        if (l->conn[c].sock && !net_node_empty(&l->conn[c].sock->hot))
            return false;
    return true;
}

void net_link_finish_drained(struct net *n, int64_t now_ns)
{
    NET_EACH(it, &n->timed)
    {
        struct net_link *l = NET_OF(it, struct net_link, timed);
        if (l->state == NET_LINK_ENDING && (is_drained(l) || l->deadline_ns <= now_ns))
            finish(l);
    }
}

void net_link_timers(struct net *n, int64_t now_ns)
{
    NET_EACH(it, &n->timed)
    {
        struct net_link *l = NET_OF(it, struct net_link, timed);
        if (l->deadline_ns > now_ns)
            continue;
        switch (l->state) {
        case NET_LINK_RESOLVING:
        case NET_LINK_OPENING:
            net_dial_timeout(l);
            break;
        case NET_LINK_PROBING:
            net_dial_step_probe(l, true);
            break;
        case NET_LINK_WAITING:
            net_link_end(l, "");
            break;
        case NET_LINK_ENDING:
            finish(l);
            break;
        case NET_LINK_UP:
            break;
        }
    }
}
