/* Sending: straight into zmq when it has room, else into a bounded queue per link and channel that net_poll flushes.
 * Large blobs travel without a copy: zmq holds a reference until it has encrypted them.
 *
 * Invariant: what is queued leaves before anything newer of the same link and channel. */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define COPY_BELOW_BYTES 2048 /* cheaper to copy than to count */

static void release_blob(void *data, void *hint)
{
    (void)data;
    blob_unref(hint);
}

static int message_of(struct blob *b, zmq_msg_t *ret)
{
    if (b->size < COPY_BELOW_BYTES) {
        if (zmq_msg_init_size(ret, b->size) != 0)
            return -E_NOMEM;
        if (b->size)
            memcpy(zmq_msg_data(ret), b->data, b->size);
        return 0;
    }
    if (zmq_msg_init_data(ret, b->data, b->size, release_blob, blob_ref(b)) != 0) {
        blob_unref(b);
        return -E_NOMEM;
    }
    return 0;
}

/* Names the receiving connection of a ROUTER. -E_AGAIN: it is full; -E_CLOSED: it is gone. */
static int address(struct net_sock *s, const struct net_rid *rid)
{
    if (s->dialled)
        return 0;
    if (zmq_send(s->zmq, rid->bytes, rid->n_bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0)
        return 0;
    return errno == EAGAIN || errno == EINTR ? -E_AGAIN : -E_CLOSED;
}

/* zmq accepts or refuses a message at its first frame; the rest of an accepted one is never refused. */
static int frame_send(struct net_sock *s, zmq_msg_t *frame, bool more)
{
    if (zmq_msg_send(frame, s->zmq, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0)
        return 0;
    int rc = errno == EAGAIN || errno == EINTR ? -E_AGAIN : -E_CLOSED;
    zmq_msg_close(frame);
    return rc;
}

int net_conn_write(struct net_conn *conn, struct blob *head, struct blob *body)
{
    struct net_sock *s = conn->sock;
    zmq_msg_t first, second;
    if (message_of(head, &first) != 0)
        return -E_NOMEM;
    if (body && message_of(body, &second) != 0) {
        zmq_msg_close(&first);
        return -E_NOMEM;
    }
    int rc = address(s, &conn->rid);
    net_sock_heat(s); /* sending may have taken in commands that made something readable */
    if (rc == 0)
        rc = frame_send(s, &first, body != NULL);
    else
        zmq_msg_close(&first);
    if (body && rc == 0)
        rc = frame_send(s, &second, false);
    else if (body)
        zmq_msg_close(&second);
    if (rc == 0) {
        s->net->counters.sent_messages++;
        s->net->counters.sent_bytes += head->size + (body ? body->size : 0);
    }
    return rc;
}

int net_sock_write_internal(struct net_sock *s, const struct net_rid *rid, const void *payload, size_t n_bytes)
{
    int events = 0;
    size_t len = sizeof events;
    zmq_getsockopt(s->zmq, ZMQ_EVENTS, &events, &len); /* takes in what zmq has to say, such as connections ended */
    int rc = address(s, rid);
    net_sock_heat(s);
    if (rc != 0)
        return rc;
    if (zmq_send(s->zmq, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return -E_CLOSED;
    return zmq_send(s->zmq, payload, n_bytes, ZMQ_DONTWAIT) < 0 ? -E_CLOSED : 0;
}

static void out_drop(struct net_outq *q)
{
    struct net_out *o = &q->items[q->first];
    q->bytes -= o->bytes;
    o->head = blob_unref(o->head);
    o->body = blob_unref(o->body);
    q->first = (q->first + 1) % q->cap;
    q->count--;
}

void net_outq_done(struct net_outq *q)
{
    while (q->count)
        out_drop(q);
    mem_free(q->items);
    *q = (struct net_outq){0};
}

static int out_push(struct net_outq *q, const struct net_out *o)
{
    if (q->count == q->cap) {
        size_t cap = q->cap ? q->cap * 2 : 16;
        struct net_out *wider = mem_calloc(cap, sizeof *wider);
        if (!wider)
            return -E_NOMEM;
        for (size_t i = 0; i < q->count; i++)
            wider[i] = q->items[(q->first + i) % q->cap];
        mem_free(q->items);
        q->items = wider;
        q->cap = cap;
        q->first = 0;
    }
    q->items[(q->first + q->count++) % q->cap] = *o;
    q->bytes += o->bytes;
    blob_ref(o->head);
    blob_ref(o->body);
    return 0;
}

static bool is_guest(const struct net_link *l)
{
    return l->dial_id == 0 && l->channels == 1u << NET_LOBBY;
}

static bool fits(const struct net_link *l, enum net_channel channel, const struct blob *head, const struct blob *body)
{
    size_t head_max = HEAD_BYTES_MAX, body_max = BODY_BYTES_MAX;
    if (channel == NET_LOBBY)
        body_max = HEAD_BYTES_MAX;
    if (channel == NET_LOBBY && l->dial_id != 0)
        head_max = body_max = GUEST_MESSAGE_BYTES_MAX;
    return head->size <= head_max && (!body || body->size <= body_max);
}

int net_send(struct net *n, const struct net_key *key, enum net_channel channel, struct blob *head, struct blob *body)
{
    assert(channel < NET_CHANNELS);
    if (!head || head->size == 0)
        return -E_INVAL;
    struct net_link *l = net_link_find(n, key, channel);
    if (!l)
        return -E_CLOSED;
    if (!fits(l, channel, head, body))
        return -E_TOOBIG;
    struct net_conn *conn = &l->conn[channel];
    bool shaped = n->config.emulate_rate_bytes_s || n->config.emulate_delay_ns;
    if (!shaped && conn->out.count == 0) {
        int rc = net_conn_write(conn, head, body);
        if (rc != -E_AGAIN)
            return rc;
    }
    struct net_out o = {.head = head, .body = body};
    size_t content = head->size + (body ? body->size : 0);
    o.bytes = content + NET_MESSAGE_OVERHEAD;
    if (is_guest(l) && conn->out.count > 0 && conn->out.bytes + o.bytes > GUEST_QUEUE_BYTES_MAX) {
        net_link_end(l, "it does not read what it is sent");
        return -E_CLOSED;
    }
    if (conn->out.bytes + o.bytes > SEND_QUEUE_BYTES_MAX)
        return -E_AGAIN;
    if (shaped)
        o.due_ns = net_emulate_due(n, channel, content, clock_now_ns());
    int rc = out_push(&conn->out, &o);
    if (rc == 0 && net_node_empty(&l->backlog))
        net_node_append(&n->backlog, &l->backlog);
    return rc;
}

/* Sends what is due of one conn while zmq takes it. A connection found gone is left to its monitor event. */
static void conn_flush(struct net_conn *conn, int64_t now_ns)
{
    struct net_outq *q = &conn->out;
    while (q->count && q->items[q->first].due_ns <= now_ns) {
        struct net_out *o = &q->items[q->first];
        int rc = net_conn_write(conn, o->head, o->body);
        if (rc == -E_AGAIN || rc == -E_NOMEM)
            return;
        out_drop(q);
    }
}

void net_send_flush(struct net *n, int64_t now_ns)
{
    n->flushed_ns = now_ns;
    n->flush_wanted = false;
    NET_EACH(it, &n->backlog)
    {
        struct net_link *l = NET_OF(it, struct net_link, backlog);
        bool left = false;
        for (int c = 0; c < NET_CHANNELS; c++) {
            conn_flush(&l->conn[c], now_ns);
            left |= l->conn[c].out.count > 0;
        }
        if (!left)
            net_node_remove(&l->backlog);
    }
}

int64_t net_send_next_ns(const struct net *n, int64_t now_ns)
{
    int64_t next_ns = INT64_MAX;
    NET_EACH(it, (struct net_node *)&n->backlog)
    {
        struct net_link *l = NET_OF(it, struct net_link, backlog);
        for (int c = 0; c < NET_CHANNELS; c++) {
            const struct net_outq *q = &l->conn[c].out;
            if (q->count == 0)
                continue;
            int64_t due_ns = q->items[q->first].due_ns;
            if (due_ns <= now_ns) /* due, and zmq was full */
                due_ns = now_ns + NET_RETRY_MS * NS_PER_MS;
            if (due_ns < next_ns)
                next_ns = due_ns;
        }
    }
    return next_ns;
}
