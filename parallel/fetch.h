/* State transfer: pulls whole tensors of one version from their donors, piece by piece, hashed (design 7). A pure
 * engine. A peer uses it to get the state that a plan gives it, the coordinator to write a checkpoint. */
#ifndef SHOAL_PARALLEL_FETCH_H
#define SHOAL_PARALLEL_FETCH_H

#include "parallel/effects.h"

#define FETCH_PIECE_ELEMS (CHUNK_BYTES / 4u)

struct fetch_item {
    uint32_t tensor;
    uint32_t part;
    uint64_t n_elems;
    struct key donor;
};

struct fetch;

/* items are copied. Nothing is asked before the first fetch_tick. */
int fetch_new(uint64_t term, uint64_t version, const struct fetch_item *items, uint32_t n_items, struct fetch **ret);
struct fetch *fetch_free(struct fetch *f); /* NULL ok; returns NULL */

/* A STATE_CHUNK from somebody. 1: fresh and whole, the caller stores the body; 0: not asked for, or known; -E_CORRUPT:
 * its hash does not fit, it is asked for again. */
int fetch_chunk(struct fetch *f, const struct key *from, const struct msg *m, int64_t now, struct effects *fx);

/* Asks for more, and again for what did not come. */
void fetch_tick(struct fetch *f, int64_t now, struct effects *fx);

/* Lets `pick` choose other donors: it is shown every item, may change the donor alone, and says whether it did. What
 * was asked of the old ones is asked again of the new ones at once; what came from them stays. */
void fetch_redirect(struct fetch *f, bool (*pick)(void *arg, struct fetch_item *item), void *arg, int64_t now,
                    struct effects *fx);

bool fetch_finished(const struct fetch *f);
uint64_t fetch_version(const struct fetch *f);
double fetch_progress(const struct fetch *f); /* 0..1 */

#endif
