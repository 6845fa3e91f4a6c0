/* Getting in: dialling the lobby at the invite's addresses, JOIN, and the answer. A small state machine on the I/O
 * thread; peer.c owns the sockets. */
#ifndef SHOAL_PEER_JOIN_H
#define SHOAL_PEER_JOIN_H

#include "crypto/invite.h"
#include "parallel/wire.h"

#define JOIN_FIRST_DIAL_ID 1u /* one for each of the invite's addresses */

struct join {
    struct wire *wire;
    const struct invite *invite;
    struct msg_join hello;
    struct net_key lobby;
    int64_t began_at, asked_at, retry_at;
    uint32_t up;     /* 1 + the index of the address that answered; 0 = none yet */
    uint32_t failed; /* addresses that failed in this round */
    int failure;     /* the weightiest status so far */
    struct reason why;
    struct msg *welcome; /* the answer, once it came */
};

/* hello: what JOIN says, filled in by the caller but for job id and capability. Dials every address. */
int join_start(struct join *j, struct wire *wire, const struct invite *invite, const struct msg_join *hello,
               int64_t now, struct reason *why);
void join_done(struct join *j);

/* An event of a lobby dial (UP, DOWN, DIAL_FAILED) or a lobby message. 1: welcomed, j->welcome has it; 0: go on;
 * negative: refused or out of reach, with a sentence. */
int join_event(struct join *j, struct net_event *e, int64_t now, struct reason *why);
int join_tick(struct join *j, int64_t now, struct reason *why);

#endif
