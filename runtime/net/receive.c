/* Receiving: one message at a time, control before lobby before bulk, with bulk never shut out. A frame becomes a blob
 * without a copy: the blob owns the zmq message.
 *
 * Nothing here trusts content: frames are counted and measured, and a message counts only if its connection said HELLO
 * and belongs to a link that is up. */
#include "runtime/net/net_internal.h"

#include <errno.h>
#include <string.h>

#define FRAMES_MAX 3   /* routing id, head, body */
#define VAIN_MAX   256 /* messages in a row that nobody gets, before timers and other channels have their turn */

struct frames {
    zmq_msg_t msg[FRAMES_MAX];
    size_t n; /* received, may exceed FRAMES_MAX: then the rest was thrown away */
};

static void frames_done(struct frames *f)
{
    for (size_t i = 0; i < f->n && i < FRAMES_MAX; i++)
        zmq_msg_close(&f->msg[i]);
}

/* False when there is nothing to read. zmq hands over whole messages: later frames are there if the first is. */
static bool frames_receive(struct net_sock *s, struct frames *f)
{
    f->n = 0;
    for (bool more = true; more; f->n++) {
        zmq_msg_t extra, *m = f->n < FRAMES_MAX ? &f->msg[f->n] : &extra;
        zmq_msg_init(m);
        int rc;
        while ((rc = zmq_msg_recv(m, s->zmq, ZMQ_DONTWAIT)) < 0 && errno == EINTR)
            ;
        if (rc < 0) {
            zmq_msg_close(m);
            frames_done(f);
            return false;
        }
        more = zmq_msg_more(m);
        if (m == &extra)
            zmq_msg_close(m);
    }
    return true;
}

struct held {
    zmq_msg_t msg;
};

static void held_release(void *owner)
{
    struct held *h = owner;
    zmq_msg_close(&h->msg);
    mem_free(h);
}

/* A blob over a frame; the frame is left empty. Small frames live inside zmq_msg_t: it must sit still from here on. */
static int blob_of(zmq_msg_t *frame, struct blob **ret)
{
    struct held *h = mem_alloc(sizeof *h);
    if (!h)
        return -E_NOMEM;
    zmq_msg_init(&h->msg);
    zmq_msg_move(&h->msg, frame);
    int rc = blob_wrap(zmq_msg_data(&h->msg), zmq_msg_size(&h->msg), held_release, h, ret);
    if (rc != 0)
        held_release(h);
    return rc;
}

/* Ids are ours and 16 bytes long, save for the rare connection that was answered too fast (zap.c). */
static bool rid_parse(zmq_msg_t *frame, struct net_rid *ret)
{
    size_t n = zmq_msg_size(frame);
    if (n > NET_RID_BYTES)
        return false;
    *ret = (struct net_rid){.n_bytes = (uint8_t)n};
    memcpy(ret->bytes, zmq_msg_data(frame), n);
    return true;
}

/* ENDING: what came before the end still counts, unless the end was that the key is no longer admitted. */
static bool is_listened_to(const struct net_link *l)
{
    if (l->state == NET_LINK_UP)
        return true;
    return l->state == NET_LINK_ENDING &&
           (l->dial_id != 0 || l->channels == 1u << NET_LOBBY || net_admitted(l->net, &l->key));
}

static bool deliver(struct net_sock *s, struct net_conn *conn, zmq_msg_t *frame, size_t n_frames, struct net_event *ret)
{
    size_t head_bytes = zmq_msg_size(&frame[0]), body_bytes = n_frames == 2 ? zmq_msg_size(&frame[1]) : 0;
    if (!conn || !is_listened_to(conn->link) || head_bytes == 0 || head_bytes > HEAD_BYTES_MAX)
        return false;
    *ret = (struct net_event){
        .kind = NET_EVENT_MESSAGE, .key = conn->link->key, .dial_id = conn->link->dial_id, .channel = s->channel};
    if (blob_of(&frame[0], &ret->head) != 0)
        return false;
    if (n_frames == 2 && blob_of(&frame[1], &ret->body) != 0) {
        ret->head = blob_unref(ret->head);
        return false;
    }
    s->net->counters.received_messages++;
    s->net->counters.received_bytes += head_bytes + body_bytes;
    return true;
}

/* One message: 1 it is in ret; 0 it was ours or nobody's; -E_AGAIN there was none. s may be gone after 0. */
static int receive_one(struct net_sock *s, struct net_event *ret)
{
    struct frames f;
    struct net_rid rid = {0};
    if (!frames_receive(s, &f))
        return -E_AGAIN;
    size_t first = s->dialled ? 0 : 1;
    size_t n_frames = f.n - first;
    struct net_conn *conn = s->dialled;
    struct net *n = s->net;
    int rc = 0;
    bool known = s->dialled || rid_parse(&f.msg[0], &rid);
    if (known && !s->dialled)
        conn = net_link_by_rid(n, s->channel, &rid);
    net_flow_taken(s, conn);
    if (!known || f.n > FRAMES_MAX || n_frames < 1 || n_frames > 2) {
        n->counters.dropped_messages++;
    } else if (n_frames == 2 && zmq_msg_size(&f.msg[first]) == 0) {
        net_hello_receive(s, &rid, conn, &f.msg[first + 1]);
    } else if (deliver(s, conn, &f.msg[first], n_frames, ret)) {
        rc = 1;
    } else {
        n->counters.dropped_messages++;
    }
    frames_done(&f);
    return rc;
}

/* The first message of a channel, each hot socket getting its turn. */
static int receive_channel(struct net *n, enum net_channel channel, struct net_event *ret)
{
    struct net_node *list = &n->hot[channel];
    for (int vain = 0; vain < VAIN_MAX && !net_node_empty(list); vain++) {
        struct net_sock *s = NET_OF(list->next, struct net_sock, hot);
        net_node_append(list, &s->hot);
        struct net_conn *conn = s->dialled;
        if (conn && conn->link->state == NET_LINK_OPENING && conn->greeted) {
            net_node_remove(&s->hot); /* read on once the link is up: net_link_up heats it again */
            continue;
        }
        int rc = receive_one(s, ret);
        if (rc == 1)
            return 1;
        if (rc == 0 && n->n_events)
            return 0; /* what that message caused comes first; s may be gone */
        if (rc == -E_AGAIN) {
            s->was_dry = true;
            net_node_remove(&s->hot);
        }
    }
    return 0;
}

int net_receive_next(struct net *n, struct net_event *ret)
{
    static const enum net_channel order[] = {NET_CONTROL, NET_LOBBY, NET_BULK};
    if (n->control_run >= NET_CONTROL_BURST) { /* lobby and bulk come first by turns */
        n->control_run = 0;
        n->lobby_turn = !n->lobby_turn;
        if (receive_channel(n, n->lobby_turn ? NET_LOBBY : NET_BULK, ret) ||
            (n->n_events == 0 && receive_channel(n, n->lobby_turn ? NET_BULK : NET_LOBBY, ret)))
            return 1;
    }
    for (size_t i = 0; i < sizeof order / sizeof *order && n->n_events == 0; i++) {
        if (receive_channel(n, order[i], ret)) {
            n->control_run = order[i] == NET_BULK ? 0 : n->control_run + 1;
            return 1;
        }
    }
    return 0;
}
