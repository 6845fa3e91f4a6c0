/* What the socket monitors tell. On a dialled socket an event concerns its one connection. On a bound socket it names a
 * descriptor, which the kernel hands out again as soon as it is closed: events are taken strictly in order, and a
 * conn is tied to its descriptor only while that is open (hello.c).
 *
 * Why that is safe: zmq reports DISCONNECTED before it closes the descriptor, and ACCEPTED after the kernel gave it. */
#include "runtime/net/net_internal.h"

#include <errno.h>
#include <string.h>

#define FDS_START 64

static struct net_fd *fd_slot(struct net_sock *s, int fd)
{
    if (fd < 0)
        return NULL;
    if ((size_t)fd >= s->n_fds) {
        size_t n = s->n_fds ? s->n_fds : FDS_START;
        while (n <= (size_t)fd)
            n *= 2;
        struct net_fd *wider = mem_resize(s->fds, s->n_fds, n, sizeof *wider);
        if (!wider) {
            s->net->broken = -E_NOMEM; /* links whose end we could not see would stay for ever */
            return NULL;
        }
        memset(wider + s->n_fds, 0, (n - s->n_fds) * sizeof *wider);
        s->fds = wider;
        s->n_fds = n;
    }
    return &s->fds[fd];
}

static void on_bound(struct net_sock *s, uint16_t event, uint32_t value)
{
    if (event != ZMQ_EVENT_ACCEPTED && event != ZMQ_EVENT_DISCONNECTED)
        return;
    struct net_fd *slot = fd_slot(s, (int)value);
    if (!slot)
        return;
    struct net_conn *conn = slot->conn;
    if (event == ZMQ_EVENT_DISCONNECTED && slot->open && !slot->linked)
        s->net->counters.refused_handshakes++;
    s->n_open -= slot->open;
    *slot = (struct net_fd){.open = event == ZMQ_EVENT_ACCEPTED, .serial = ++s->accepted, .active_ns = clock_now_ns()};
    s->n_open += slot->open;
    if (conn) {
        conn->fd = -1;
        net_link_end(conn->link, "the connection was closed by the other side");
    }
}

/* True while the socket is still there: a failed dial frees its sockets. */
static bool on_dialled(struct net_sock *s, uint16_t event, uint32_t value)
{
    struct net_conn *conn = s->dialled;
    struct net_link *l = conn->link;
    char who[NET_ENDPOINT_MAX];
    if (event == ZMQ_EVENT_CONNECTED) {
        conn->connected = true;
        s->fd = (int)value;
        if (l->dial->connected_ns == 0)
            l->dial->connected_ns = clock_now_ns();
        return true;
    }
    if (event == ZMQ_EVENT_ACCEPTED)
        return true;
    s->fd = -1;
    if (l->state == NET_LINK_UP) {
        net_link_cut(l, "the connection was closed");
        return true;
    }
    if (l->state != NET_LINK_OPENING)
        return true;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && value == 500)
        net_dial_failed(l, NET_FAILURE_REFUSED, "%s is full at the moment", net_link_name(l, who, sizeof who));
    else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        net_dial_failed(l, NET_FAILURE_NOT_ADMITTED, "%s does not admit this key", net_link_name(l, who, sizeof who));
    else
        net_dial_broken(l, s->channel);
    return false;
}

/* One event: 1, 0 when there is none. Frame 1: u16 event, u32 value; frame 2: the endpoint. */
static int monitor_next(void *monitor, uint16_t *ret_event, uint32_t *ret_value)
{
    zmq_msg_t first, second;
    zmq_msg_init(&first);
    if (zmq_msg_recv(&first, monitor, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&first);
        return 0;
    }
    if (zmq_msg_more(&first)) {
        zmq_msg_init(&second);
        zmq_msg_recv(&second, monitor, ZMQ_DONTWAIT);
        zmq_msg_close(&second);
    }
    *ret_event = 0;
    *ret_value = 0;
    if (zmq_msg_size(&first) == sizeof *ret_event + sizeof *ret_value) {
        memcpy(ret_event, zmq_msg_data(&first), sizeof *ret_event);
        memcpy(ret_value, (char *)zmq_msg_data(&first) + sizeof *ret_event, sizeof *ret_value);
    }
    zmq_msg_close(&first);
    return 1;
}

/* Takes every event that waits. s may be gone afterwards if it is a dialled one. */
void net_monitor_drain(struct net_sock *s)
{
    uint16_t event;
    uint32_t value;
    while (monitor_next(s->monitor, &event, &value)) {
        if (!s->dialled)
            on_bound(s, event, value);
        else if (!on_dialled(s, event, value))
            return;
    }
}
