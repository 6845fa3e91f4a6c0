/* What the files of runtime/net share: the net object, its sockets, links and dials. Not for other folders.
 *
 * A link is one conversation with one key over one to three channels; each channel is a struct net_conn. On the
 * dialling side a conn has a DEALER socket of its own; on the accepting side all conns of a channel share one ROUTER
 * and are told apart by the routing id that ROUTER gave to the connection. Everything here belongs to the net's one
 * thread; only the wake descriptor and blob references are touched by others. */
#ifndef SHOAL_RUNTIME_NET_NET_INTERNAL_H
#define SHOAL_RUNTIME_NET_NET_INTERNAL_H

#include <stddef.h>
#include <sys/socket.h>
#include <zmq.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/net/net.h"

#define NET_WATCH_MAX        8
#define NET_HANDSHAKE_MS     3000 /* ZMTP and CURVE, on both sides */
#define NET_CONNECT_MS       5000 /* TCP */
#define NET_GREETING_MS      1000 /* the raw look at a port after a failure */
#define NET_DIAL_MS          (NET_CONNECT_MS + NET_HANDSHAKE_MS + 2000)
#define NET_DRAIN_MS         50   /* a cut link's received messages still come out before its DOWN */
#define NET_GOODBYE_MS       500  /* net_free and net_hangup: for what zmq still holds */
#define NET_RETRY_MS         1    /* a full socket is looked at this often if it says nothing itself */
#define NET_GUESTS_MAX       1024 /* connections to a socket that are not part of a peer's link, see flow.c */
#define NET_LOOK_MS          100  /* how often flow.c looks at what connections cost */
#define NET_GUEST_IDLE_MS    30000
#define NET_ORPHAN_MS        2000  /* a link that has ended: for its BYE to be read */
#define NET_MAXRT_MS         10000 /* unacknowledged bytes for this long: the other side is gone, keepalive or not */
#define NET_DIAL_ADDRS_MAX   8
#define NET_CONTROL_BURST    64  /* control messages in a row before one bulk message gets its turn */
#define NET_MESSAGE_OVERHEAD 256 /* bytes a queued message counts beyond its content */
#define NET_CURVE_OVERHEAD   64  /* bytes CURVE adds to a frame, rounded up */
#define NET_ENDPOINT_MAX     (HOST_MAX_LEN + 32)

/* Doubly linked ring; a node that is in no list points at itself, so removing twice is harmless. */
struct net_node {
    struct net_node *prev, *next;
};

static inline void net_node_init(struct net_node *x)
{
    x->prev = x->next = x;
}

static inline bool net_node_empty(const struct net_node *x)
{
    return x->next == x;
}

static inline void net_node_remove(struct net_node *x)
{
    x->prev->next = x->next;
    x->next->prev = x->prev;
    net_node_init(x);
}

static inline void net_node_append(struct net_node *list, struct net_node *x)
{
    net_node_remove(x);
    x->prev = list->prev;
    x->next = list;
    list->prev->next = x;
    list->prev = x;
}

#define NET_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
/* Walks a list whose current element may be freed in the body. */
#define NET_EACH(it, list)                                                                                             \
    for (struct net_node *it = (list)->next, *it##_next = it->next; it != (list); it = it##_next, it##_next = it->next)

/* Chained hash table of nodes inside other objects (map.c). */
struct net_map_node {
    struct net_map_node *next;
    uint64_t hash;
    bool in_map;
};

struct net_map {
    struct net_map_node **buckets;
    size_t n_buckets, count; /* n_buckets: a power of two */
};

int net_map_init(struct net_map *m); /* -E_NOMEM */
void net_map_done(struct net_map *m);
void net_map_add(struct net_map *m, struct net_map_node *x, uint64_t hash); /* never fails: growing is optional */
void net_map_remove(struct net_map *m, struct net_map_node *x);             /* a node outside is fine */
struct net_map_node *net_map_first(const struct net_map *m, uint64_t hash);
struct net_map_node *net_map_next(const struct net_map_node *x); /* the next one of the same hash */
uint64_t net_hash(uint64_t seed, const void *bytes, size_t n);

/* One descriptor in the epoll set. */
enum net_source_kind {
    NET_SOURCE_WAKE,
    NET_SOURCE_WATCH,
    NET_SOURCE_ZAP,
    NET_SOURCE_DATA,
    NET_SOURCE_MONITOR,
    NET_SOURCE_RESOLVE,
    NET_SOURCE_PROBE
};

struct net_source {
    enum net_source_kind kind;
    int fd; /* -1: not registered */
    void *owner;
    struct net_node ready; /* in net.ready after epoll named it */
};

int net_source_add(struct net *n, struct net_source *s, enum net_source_kind kind, int fd, uint32_t events,
                   void *owner);
int net_source_change(struct net *n, struct net_source *s, uint32_t events);
void net_source_remove(struct net *n, struct net_source *s);

/* What a connection has sent: bytes as the kernel counts them, messages as we took them (flow.c). */
struct net_flow {
    uint64_t messages, seen_messages; /* ever; at the last look */
    uint64_t bytes, base_bytes;       /* at the last look; at the last look before which a message had come */
};

/* What is known of a descriptor under a ROUTER, from its monitor. */
struct net_fd {
    bool open, linked; /* linked: it was a conn's at some time */
    bool cut;          /* by us; zmq takes a moment to report it gone */
    struct net_conn *conn;
    uint64_t serial;   /* which of the descriptor's connections this is */
    int64_t active_ns; /* accepted, linked, heard or unlinked, whatever came last */
    struct net_flow flow;
};

struct net_sock {
    struct net *net;
    void *zmq, *monitor;
    enum net_channel channel;
    struct net_conn *dialled; /* DEALER: the conn it serves; NULL for a bound ROUTER */
    struct net_source data, monitor_source;
    struct net_node hot; /* in net.hot[channel]: may have something to read */
    struct net_fd *fds;  /* ROUTER */
    size_t n_fds, n_open;
    uint64_t accepted;
    int fd; /* DEALER: its connection, -1 before it stands */
    struct net_flow flow;
    bool was_dry;     /* a receive found nothing since flow.c's last look */
    uint64_t n_taken; /* messages since then */
    uint16_t port;
};

struct net_out {
    struct blob *head, *body;
    size_t bytes; /* with NET_MESSAGE_OVERHEAD */
    int64_t due_ns;
};

struct net_outq {
    struct net_out *items; /* a ring */
    size_t first, count, cap, bytes;
};

/* ROUTER's name for a connection. We choose it (zap.c): random, so that nobody can take or foresee another's. */
#define NET_RID_BYTES 16
struct net_rid {
    uint8_t n_bytes, bytes[NET_RID_BYTES];
};

struct net_conn {
    struct net_link *link;
    struct net_sock *sock; /* NULL: this channel is not there (yet) */
    struct net_rid rid;    /* accepted */
    struct net_map_node by_rid;
    int fd;         /* accepted: its descriptor, the monitor's name for it */
    bool greeted;   /* dialled: the other side acknowledged our HELLO */
    bool connected; /* dialled: TCP connected; says how to read a failure */
    struct net_outq out;
};

enum net_link_state {
    NET_LINK_RESOLVING, /* dial: name look-up under way */
    NET_LINK_OPENING,   /* dial: connecting, shaking hands, waiting for ACK on every channel */
    NET_LINK_PROBING,   /* dial: failed, looking at the port to say why */
    NET_LINK_WAITING,   /* accepted: not every channel has said HELLO */
    NET_LINK_UP,
    NET_LINK_ENDING, /* cut; what was received still comes out, then DOWN */
};

struct net_resolve;
struct net_probe;

struct net_dialling {
    char host[HOST_MAX_LEN + 1];
    uint16_t port[NET_CHANNELS];
    struct sockaddr_storage addrs[NET_DIAL_ADDRS_MAX];
    size_t n_addrs, next_addr;
    struct net_resolve *resolve;
    struct net_source resolve_source;
    struct net_probe *probe;
    int64_t connected_ns; /* when the first TCP connection stood, 0 before */
    bool slow;            /* the handshake ran into its time limit */
};

struct net_link {
    struct net_node all, timed, backlog;
    struct net_map_node by_key;
    struct net *net;
    struct net_key key;
    uint32_t dial_id;  /* 0: accepted */
    uint32_t channels; /* bit set */
    uint8_t nonce[8];  /* drawn by the dialling side: says which conns belong together */
    enum net_link_state state;
    int64_t deadline_ns; /* of the state; links in net.timed have one */
    uint64_t up_seq;
    struct net_conn conn[NET_CHANNELS];
    struct net_dialling *dial;
    enum net_failure failure; /* how a link that was up ended, where the other side said so */
    struct reason why;
};

struct net {
    struct net_config config; /* host points to host_copy */
    char host_copy[HOST_MAX_LEN + 1];
    void *ctx, *zap;
    struct net_source zap_source, wake_source, watch[NET_WATCH_MAX];
    size_t n_watch;
    int epoll_fd, wake_fd;
    struct net_sock *bound[NET_CHANNELS];
    uint64_t monitor_seq, up_seq, hash_seed;
    struct net_node ready, hot[NET_CHANNELS];
    struct net_node links, timed, backlog, zap_questions;
    struct net_map by_key, by_rid;
    struct net_key *admitted; /* sorted */
    size_t n_admitted, guests_max;
    struct net_event *events; /* a ring: what net_poll returns before messages */
    size_t first_event, n_events, cap_events;
    bool wake_pending, last_was_wake, flush_wanted;
    unsigned control_run;
    bool lobby_turn;
    int64_t flushed_ns, look_ns;
    int64_t shaped_free_ns[NET_CHANNELS]; /* when the emulated wire is free for this channel */
    int broken;                           /* a status that makes the net unusable */
    struct net_counters counters;
};

/* socket.c: zmq sockets with our options, registered with epoll. */
int net_sock_bind(struct net *n, enum net_channel channel, struct net_sock **ret, struct reason *why);
int net_sock_connect(struct net *n, struct net_conn *conn, enum net_channel channel, const struct net_key *server_key,
                     const char *endpoint, struct net_sock **ret);
struct net_sock *net_sock_free(struct net_sock *s, int linger_ms); /* NULL ok */
void net_sock_heat(struct net_sock *s); /* something may be readable: look at the next poll */
void net_sock_address(char *ret, size_t size, const char *host, uint16_t port);

/* zap.c */
int net_zap_open(struct net *n, struct reason *why);
void net_zap_serve(struct net *n);                      /* takes in questions */
void net_zap_answer_due(struct net *n, int64_t now_ns); /* answers those whose time has come */
int64_t net_zap_next_ns(const struct net *n);           /* INT64_MAX: no question waits */
void net_zap_close(struct net *n);
bool net_admitted(const struct net *n, const struct net_key *key);
int net_key_from_hex(const char *hex, struct net_key *ret);

/* monitor.c */
void net_monitor_drain(struct net_sock *s);

/* link.c */
struct net_link *net_link_new(struct net *n, const struct net_key *key, uint32_t channels, enum net_link_state state);
void net_link_free(struct net_link *l, int linger_ms);
struct net_link *net_link_find(const struct net *n, const struct net_key *key, enum net_channel channel);
struct net_conn *net_link_by_rid(const struct net *n, enum net_channel channel, const struct net_rid *rid);
enum net_channel net_link_first_channel(uint32_t channels);
void net_link_deadline(struct net_link *l, int64_t deadline_ns); /* 0: none */
void net_link_up(struct net_link *l);
void net_link_end(struct net_link *l, const char *why); /* as net_link_cut, and tells an accepted link's other side */
/* The link is over: UP becomes ENDING, a dial that was not up fails, a half accepted one is forgotten. */
void net_link_cut(struct net_link *l, const char *why);
void net_link_finish_drained(struct net *n, int64_t now_ns); /* DOWN for ENDING links that have nothing left to read */
void net_link_timers(struct net *n, int64_t now_ns);
const char *net_link_name(const struct net_link *l, char *ret, size_t size); /* who is at the other end, for people */

/* flow.c: what connections cost. */
void net_flow_setup(struct net *n);
void net_flow_taken(struct net_sock *s, struct net_conn *conn); /* a message was received; conn may be NULL */
void net_flow_look(struct net *n, int64_t now_ns);              /* every NET_LOOK_MS */

/* hello.c: the three internal messages, [empty frame][payload]. */
enum net_bye { NET_BYE_REPLACED = 1, NET_BYE_NOT_ADMITTED, NET_BYE_VERSION, NET_BYE_CHANNELS, NET_BYE_CUT };
void net_hello_send(struct net_conn *conn);
void net_hello_receive(struct net_sock *s, const struct net_rid *rid, struct net_conn *conn, zmq_msg_t *payload);
void net_hello_bye(struct net_link *l, enum net_bye reason);

/* send.c */
int net_conn_write(struct net_conn *conn, struct blob *head, struct blob *body); /* -E_AGAIN, -E_CLOSED */
int net_sock_write_internal(struct net_sock *s, const struct net_rid *rid, const void *payload, size_t n_bytes);
void net_outq_done(struct net_outq *q);
void net_send_flush(struct net *n, int64_t now_ns);
int64_t net_send_next_ns(const struct net *n, int64_t now_ns); /* when to flush again, INT64_MAX: nothing waits */

/* receive.c */
int net_receive_next(struct net *n, struct net_event *ret); /* 1: ret is filled; 0: nothing there */

/* dial.c */
void net_dial_resolved(struct net_link *l);
void net_dial_step_probe(struct net_link *l, bool timed_out);
void net_dial_broken(struct net_link *l, enum net_channel channel); /* a channel failed before the link was up */
void net_dial_timeout(struct net_link *l);
void net_dial_failed(struct net_link *l, enum net_failure failure, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void net_dial_done(struct net_link *l); /* releases l->dial */

/* resolve.c: name look-up in a thread of its own. */
int net_resolve_start(const char *host, struct net_resolve **ret, int *ret_fd); /* fd readable when done */
int net_resolve_take(struct net_resolve *r, struct sockaddr_storage *ret, size_t cap, size_t *ret_n,
                     struct reason *why); /* -E_NOENT; once, after fd became readable */
struct net_resolve *net_resolve_free(struct net_resolve *r);
bool net_resolve_numeric(const char *host, struct sockaddr_storage *ret);

/* greeting.c: one raw look at a port that failed us. */
enum net_probe_result {
    NET_PROBE_AGAIN, /* not known yet */
    NET_PROBE_REFUSED,
    NET_PROBE_UNREACHABLE,
    NET_PROBE_TIMEOUT, /* TCP did not connect */
    NET_PROBE_SILENT,  /* connected, said nothing */
    NET_PROBE_OTHER,   /* said something else, or hung up at once */
    NET_PROBE_NO_CURVE,
    NET_PROBE_CURVE,
};
int net_probe_start(struct net_link *l, const struct sockaddr_storage *addr, uint16_t port, struct net_probe **ret);
enum net_probe_result net_probe_step(struct net_probe *p, bool timed_out);
const char *net_probe_heard(const struct net_probe *p, char *ret, size_t size); /* printable beginning of the answer */
int net_probe_errno(const struct net_probe *p);
uint16_t net_probe_port(const struct net_probe *p);
struct net_probe *net_probe_free(struct net_probe *p);

/* emulate.c */
int64_t net_emulate_due(struct net *n, enum net_channel channel, size_t bytes, int64_t now_ns);

/* net.c */
struct net_event *net_event_push(struct net *n, enum net_event_kind kind,
                                 const struct net_link *l); /* NULL: no memory */

#endif
