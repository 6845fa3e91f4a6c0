/* A peer's links to other peers: the view that the coordinator signed, the dials it ordered, dialling again after a
 * break, and reports of what is up. Called from the I/O thread. */
#ifndef SHOAL_PEER_LINKS_H
#define SHOAL_PEER_LINKS_H

#include "parallel/wire.h"

#define LINKS_FIRST_DIAL_ID 64u /* dial ids below are the owner's */

struct links_peer {
    struct msg_view_peer at;
    bool dialled_up, accepted_up; /* two links may stand for a while, when both sides dialled */
    bool wanted;                  /* the coordinator ordered us to dial it */
    uint32_t dial_id;             /* 0 = none under way */
    uint32_t next_addr;
    int64_t retry_at, backoff_ns;
};

struct links {
    struct wire *wire;
    struct key self, coordinator;
    uint64_t term, view;
    struct links_peer *peers; /* of the present view, self left out */
    uint32_t n;
    uint32_t next_dial_id;
};

void links_init(struct links *l, struct wire *wire, const struct key *self, const struct key *coordinator);
void links_done(struct links *l);

/* Takes over a view if its signature holds and it is newer: admits its keys, acknowledges. */
void links_on_view(struct links *l, const struct msg *m, int64_t now);
void links_on_dial(struct links *l, const struct msg *m, int64_t now);

/* A net event of a link that is not the coordinator's. true if it was one of ours. */
bool links_on_event(struct links *l, const struct net_event *e, int64_t now);

/* Tells the coordinator everything again, after its link came back. */
void links_report_all(struct links *l);
void links_tick(struct links *l, int64_t now);

#endif
