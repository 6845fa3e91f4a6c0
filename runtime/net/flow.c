/* What connections cost, and what ends those that cost too much. libzmq bounds a frame but not a message: it keeps the
 * parts of an unfinished one for ever, uncounted by any high-water mark. So we look, ten times a second, at how many
 * bytes the kernel has received on each connection (TCP_INFO) while no message of it came out. A guest is any
 * connection that is not part of a peer's link: one that has not said HELLO, one whose link has ended, and everyone in
 * the lobby. Guests must speak, and the longest idle ones make room when there are too many.
 *
 * Invariant: a connection that delivers nothing holds at most one message's largest size, the kernel's buffers, and
 * what arrives in two looks. Guests: NET_GUESTS_MAX a socket, give or take what arrives in one look. */
#include "runtime/net/net_internal.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#define KERNEL_BYTES (8u << 20) /* what zmq may not have read yet; tcp_rmem's usual limit is 6 MiB */
#define SHED_MAX     256        /* guests cut for want of room in one look */

/* Guests get an eighth of the descriptors each: there are three sockets, and links and files need the rest. */
void net_flow_setup(struct net *n)
{
    struct rlimit limit;
    n->guests_max = NET_GUESTS_MAX;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 8 < n->guests_max)
        n->guests_max = limit.rlim_cur / 8;
}

void net_flow_taken(struct net_sock *s, struct net_conn *conn)
{
    s->n_taken++;
    if (s->dialled) {
        s->flow.messages++;
    } else if (conn && conn->fd >= 0) {
        s->fds[conn->fd].flow.messages++;
        s->fds[conn->fd].active_ns = clock_now_ns();
    }
}

/* Bytes received on the connection, 0 if the descriptor is none or the kernel does not tell. */
static uint64_t received_bytes(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    return fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_bytes_received : 0;
}

/* True when more than limit came in before the last look, and no message of it came out until this one: all that was
 * whole by then has been read. */
static bool is_endless(struct net_flow *f, int fd, uint64_t limit)
{
    uint64_t bytes = received_bytes(fd);
    bool quiet = f->messages == f->seen_messages;
    bool endless = quiet && f->bytes > f->base_bytes && f->bytes - f->base_bytes > limit;
    f->seen_messages = f->messages;
    f->bytes = bytes;
    if (!quiet)
        f->base_bytes = bytes;
    return endless;
}

/* Ends an accepted connection whose descriptor is zmq's: not by closing, but by a shutdown that zmq then finds. The
 * descriptor may be another's by the time we call, so we act on a duplicate, after making sure of what it is: zmq
 * reports DISCONNECTED before it closes, hence a connection not reported gone was still there when we duplicated. */
static void shut(struct net_sock *s, int fd)
{
    uint64_t serial = s->fds[fd].serial;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return; /* out of descriptors: the next look tries again */
    net_monitor_drain(s);
    if (s->fds[fd].open && s->fds[fd].serial == serial) {
        shutdown(copy, SHUT_RDWR);
        s->fds[fd].cut = true;
        s->net->counters.cut_connections++;
    }
    close(copy);
}

static bool is_guest(const struct net_sock *s, const struct net_fd *slot)
{
    return slot->open && !slot->cut && (s->channel == NET_LOBBY || !slot->conn);
}

static void cut(struct net_sock *s, int fd, const char *why)
{
    struct net_conn *conn = s->fds[fd].conn;
    if (conn)
        net_link_end(conn->link, why);
    shut(s, fd);
}

static void shed(struct net_sock *s)
{
    size_t n_guests = 0;
    for (size_t i = 0; i < s->n_fds; i++)
        n_guests += is_guest(s, &s->fds[i]);
    for (size_t k = 0; k < SHED_MAX && n_guests > s->net->guests_max; k++, n_guests--) {
        int oldest = -1;
        for (size_t i = 0; i < s->n_fds; i++)
            if (is_guest(s, &s->fds[i]) && (oldest < 0 || s->fds[i].active_ns < s->fds[oldest].active_ns))
                oldest = (int)i;
        cut(s, oldest, "the lobby was full and it the longest idle");
    }
}

static int64_t patience_ns(const struct net_fd *slot)
{
    int64_t ms = slot->conn ? NET_GUEST_IDLE_MS : slot->linked ? NET_ORPHAN_MS : NET_DIAL_MS;
    return ms * NS_PER_MS;
}

/* Whether every connection's whole messages were read since the last look at which this was true: the socket has or
 * had nothing more, or ROUTER, which takes from its connections in turn, has been round. */
static bool had_turns(struct net_sock *s)
{
    bool yes = s->was_dry || net_node_empty(&s->hot) || s->n_taken > 2 * s->n_open;
    if (yes) {
        s->was_dry = false;
        s->n_taken = 0;
    }
    return yes;
}

static void look_bound(struct net_sock *s, int64_t now_ns)
{
    bool all_had_a_turn = had_turns(s);
    for (size_t i = 0; i < s->n_fds; i++) {
        struct net_fd *slot = &s->fds[i];
        if (!slot->open || slot->cut)
            continue;
        bool guest = is_guest(s, slot);
        uint64_t limit =
            guest ? 2 * GUEST_MESSAGE_BYTES_MAX + NET_CURVE_OVERHEAD : HEAD_BYTES_MAX + BODY_BYTES_MAX + KERNEL_BYTES;
        if (all_had_a_turn && is_endless(&slot->flow, (int)i, limit))
            cut(s, (int)i, "it sent more than a message may hold");
        else if (guest && now_ns - slot->active_ns > patience_ns(slot))
            cut(s, (int)i, "it said nothing for too long");
    }
    shed(s);
}

/* Our own connection, closed with its socket. Before UP it is left unread on purpose (receive.c). */
static void look_dialled(struct net_link *l)
{
    for (int c = 0; c < NET_CHANNELS; c++) {
        struct net_sock *s = l->conn[c].sock;
        if (!s || (l->state != NET_LINK_OPENING && l->state != NET_LINK_UP))
            continue;
        if ((had_turns(s) || l->state == NET_LINK_OPENING) &&
            is_endless(&s->flow, s->fd, HEAD_BYTES_MAX + BODY_BYTES_MAX + KERNEL_BYTES)) {
            l->net->counters.cut_connections++;
            net_link_cut(l, "it sent more than a message may hold");
            return; /* a dial that was not up is gone */
        }
    }
}

void net_flow_look(struct net *n, int64_t now_ns)
{
    n->look_ns = now_ns + NET_LOOK_MS * NS_PER_MS;
    for (int c = 0; c < NET_CHANNELS; c++)
        if (n->bound[c])
            look_bound(n->bound[c], now_ns);
    NET_EACH(it, &n->links)
    {
        struct net_link *l = NET_OF(it, struct net_link, all);
        if (l->dial_id != 0)
            look_dialled(l);
    }
}
