/* Messages that no lease, attempt or view explains yet (design 4): kept, bounded per sender, until something new may
 * explain them. */
#ifndef SHOAL_PARALLEL_HELD_H
#define SHOAL_PARALLEL_HELD_H

#include "parallel/proto.h"

struct held_entry {
    struct key from;
    struct msg *msg; /* owned */
};

/* What one sender has waiting. */
struct held_sender {
    struct key key;
    uint32_t count;
    uint64_t bytes;
};

struct held {
    struct held_entry *entries;
    uint32_t n, cap;
    struct held_sender *senders;
    uint32_t n_senders, cap_senders;
    uint64_t dropped; /* refused for the bounds */
};

void held_done(struct held *h);

/* Keeps msg (taken over in any case). -E_TOOBIG when the sender has its bound's worth waiting: dropped and counted;
 * -E_NOMEM. */
int held_add(struct held *h, const struct key *from, struct msg *msg);

/* Takes everything out, for another try: *ret is moved to the caller, who frees the array and owns the messages; h is
 * empty afterwards. */
uint32_t held_take(struct held *h, struct held_entry **ret);

#endif
