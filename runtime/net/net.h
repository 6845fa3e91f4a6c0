/* Links between processes: ZeroMQ over TCP with CURVE, two sockets per link (control, bulk) and a lobby (design 4). All
 * of zmq.h is behind this header.
 *
 * One struct net belongs to one thread, its I/O thread; only net_wake may be called from others. A link is known by the
 * other side's Curve25519 public key: who sent a message is what the handshake proved, never what a message says. Keys
 * are 32 raw bytes here; identities are the crypto layer's business.
 *
 * Accepting: net_open binds up to three sockets: lobby (anyone may come), control and bulk (only admitted keys, checked
 * by ZAP at the handshake, and again for every message against the present set). Dialling: net_dial opens control and
 * bulk to an address with the server key expected there. A dial is not retried by itself after a refusal: the owner is
 * told why and may dial anew. Delivery is at most once; order holds within one channel only. Of accepted links of one
 * key the newest wins: the older one's DOWN comes before the newer one's UP. */
#ifndef SHOAL_RUNTIME_NET_NET_H
#define SHOAL_RUNTIME_NET_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/blob.h"
#include "runtime/base/bounds.h"
#include "runtime/base/status.h"

#define NET_KEY_BYTES 32

struct net;

struct net_key {
    uint8_t bytes[NET_KEY_BYTES]; /* Curve25519 public key */
};

enum net_channel { NET_CONTROL, NET_BULK, NET_LOBBY, NET_CHANNELS };

struct net_config {
    uint8_t curve_pub[NET_KEY_BYTES], curve_secret[NET_KEY_BYTES];
    const char *host;            /* address to bind, "*" = all, "127.0.0.1" = loopback */
    bool listen[NET_CHANNELS];   /* which sockets to bind */
    uint16_t port[NET_CHANNELS]; /* 0 = the kernel's choice */
    /* A shaped link for trying things out (--emulate): 0 = off. Applied to what this process sends. */
    uint64_t emulate_rate_bytes_s;
    int64_t emulate_delay_ns;
    int io_threads; /* zmq's, which encrypt; 0 = default (1) */
};

/* Reads "rate=20mbit,delay=40ms" into config. -E_INVAL with a sentence. */
int net_emulate_parse(const char *text, struct net_config *config, struct reason *why);

int net_open(const struct net_config *config, struct net **ret,
             struct reason *why);    /* -E_IO "cannot listen on ...: ..." */
struct net *net_free(struct net *n); /* NULL ok; returns NULL; unsent messages get up to 500 ms */
uint16_t net_port(const struct net *n, enum net_channel channel); /* bound port, 0 if not listening */

/* The keys that may use control and bulk, replacing the previous set; removed keys' messages are dropped from now on.
 * Keys of dialled links need not be in it. */
int net_admit(struct net *n, const struct net_key *keys, size_t n_keys);

/* Opens a link. channels: bit set of (1 << NET_CONTROL | ...), each with its port. Several addresses of one host are
 * tried by separate dials: dial_id, chosen by the caller, names this one in events. -E_EXIST if that dial_id is open.
 * Never blocks. */
int net_dial(struct net *n, uint32_t dial_id, const struct net_key *server_key, const char *host,
             const uint16_t port[NET_CHANNELS], uint32_t channels);
void net_hangup(struct net *n, uint32_t dial_id); /* closes a dial; unknown ids are fine */

/* Sends head and body (body may be NULL) to the link of key. References to the blobs are taken, the caller keeps its
 * own. Queues without blocking: -E_AGAIN when SEND_QUEUE_BYTES_MAX are waiting, -E_CLOSED when there is no such link,
 * -E_TOOBIG. A lobby takes GUEST_MESSAGE_BYTES_MAX, and cuts a guest that leaves GUEST_QUEUE_BYTES_MAX of answers
 * unread.
 */
int net_send(struct net *n, const struct net_key *key, enum net_channel channel, struct blob *head, struct blob *body);

/* Ends the accepted link of key that has channel: its DOWN follows. What zmq has of earlier messages still goes out. */
void net_expel(struct net *n, const struct net_key *key, enum net_channel channel, const char *why);

enum net_event_kind {
    NET_EVENT_NONE,    /* time-out */
    NET_EVENT_MESSAGE, /* key, channel, head, body */
    /* key, dial_id (0 for accepted): the handshake is done on every channel of the link. channel is the link's first:
     * NET_LOBBY says that it is a lobby link, in DOWN and DIAL_FAILED too. */
    NET_EVENT_UP,
    NET_EVENT_DOWN,        /* key, dial_id: a link that was up is gone; why says how it ended */
    NET_EVENT_DIAL_FAILED, /* key, dial_id, failure, why: the dial is closed */
    NET_EVENT_WAKE,        /* net_wake or a watched descriptor became readable */
};

enum net_failure {
    NET_FAILURE_NONE,
    NET_FAILURE_REFUSED,      /* nothing listens there */
    NET_FAILURE_UNREACHABLE,  /* no route, no such host */
    NET_FAILURE_TIMEOUT,      /* no answer */
    NET_FAILURE_NOT_SHOAL,    /* something else listens: it does not speak ZMTP */
    NET_FAILURE_WRONG_KEY,    /* ZMTP, but not the key we expected */
    NET_FAILURE_NOT_ADMITTED, /* our key was refused (ZAP 400) */
    NET_FAILURE_REPLACED,     /* of a link that was up: the same key opened a newer one from elsewhere */
};

struct net_event {
    enum net_event_kind kind;
    struct net_key key;
    uint32_t dial_id;
    enum net_channel channel;
    struct blob *head, *body; /* references now owned by the caller; body may be NULL */
    enum net_failure failure;
    struct reason why; /* a sentence for people: "nothing listens at 10.0.0.5:7001" */
};

/* Waits up to timeout_ms (0: look only) for the next event. 0 or a negative status (the net is unusable). Malformed
 * messages (no head, too many frames, over the limits) never come out: counted and dropped. */
int net_poll(struct net *n, int timeout_ms, struct net_event *ret);

/* Makes net_poll return NET_EVENT_WAKE. Any thread. */
void net_wake(struct net *n);
/* Also wake when fd becomes readable (a queue's, a signalfd). -E_TOOBIG past 8. */
int net_watch(struct net *n, int fd);

struct net_counters {
    uint64_t sent_bytes, received_bytes, sent_messages, received_messages;
    uint64_t dropped_messages;   /* malformed, or from keys no longer admitted */
    uint64_t refused_handshakes; /* accepted connections that ended without becoming part of a link */
    uint64_t cut_connections;    /* closed by us: messages without end, silent guests, guests that do not read */
};
void net_counters(const struct net *n, struct net_counters *ret);

/* This machine's addresses that others could dial (numeric, no loopback unless nothing else), most likely first.
 * Returns the number. */
int net_local_addrs(char (*ret)[HOST_MAX_LEN + 1], int cap);

#endif
