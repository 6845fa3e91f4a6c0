/* Messages over links: what stands between an engine's `send this to that identity` and the net's sockets. An address
 * book of identities and their link keys, encoding, decoding, and which channel a message travels on. One thread, the
 * one that owns the net. */
#ifndef SHOAL_PARALLEL_WIRE_H
#define SHOAL_PARALLEL_WIRE_H

#include "parallel/proto.h"
#include "runtime/net/net.h"

struct wire_entry {
    struct key id;
    struct net_key curve;
};

struct wire {
    struct net *net; /* the owner's */
    struct wire_entry *entries;
    uint32_t n, cap;
    uint64_t refused; /* messages that did not decode or came from nobody known */
};

void wire_done(struct wire *w); /* zeroed ok; does not touch the net */

/* Puts an identity into the book; known ones are fine. *ret_curve (may be NULL) is its link key. -E_INVAL: no valid
 * key, -E_NOMEM. */
int wire_learn(struct wire *w, const struct key *id, struct net_key *ret_curve);

/* Forgets everyone who is not among ids[n]: the book must not grow with those who came and went. */
void wire_keep(struct wire *w, const struct key *ids, uint32_t n);

/* Who a link key is, NULL if not in the book. Valid until the next wire_learn or wire_keep. */
const struct key *wire_who(const struct wire *w, const struct net_key *curve);

/* The channel that messages of this type travel on. */
enum net_channel wire_channel(enum msg_type type);

/* Encodes and queues; m stays the caller's. -E_NOENT: not in the book, which what travels on a lobby need not be; what
 * proto_encode and net_send say. */
int wire_send(struct wire *w, const struct key *to, const struct msg *m);
int wire_send_curve(struct wire *w, const struct net_key *to, const struct msg *m);

/* Decodes a NET_EVENT_MESSAGE, whose blobs are dropped. Refused messages are counted and logged at debug; status as
 * proto_decode's, and -E_PROTO for a message on a channel that is not its own. */
int wire_receive(struct wire *w, struct net_event *e, struct msg **ret, struct reason *why);

#endif
