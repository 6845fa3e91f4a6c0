/* One attempt at reducing one group, seen from one member: direct reduce-scatter and all-gather (design 5.3). A pure
 * engine: chunks and finished tasks come in, chunks to send and tasks to run go out.
 *
 * Every member owns a range. Contributors send each owner their partial sums of its range, piece by piece; when all
 * partials of a piece are there the owner adds them in member order, rounds once, keeps the result and sends it to all
 * others. When every piece of every range is stored, the group's digest is taken. Adding in member order makes `fast`
 * repeatable for one plan; `exact` does not care.
 *
 * A member that is joining the group's tensors only receives: it has no state yet that the sums could go to, so it
 * keeps the chunks as they came, for reduce_sums, and asks its device for nothing. Owners keep the finished sums of
 * such a group, too: they answer who missed one without a look at the device, also after the step.
 *
 * Ranges by bandwidth: papers that balance a direct all-reduce over unequal links (hivemind's LP split; OptCC, arXiv
 * 2606.01680) reduce to a water-filling closed form when every peer contributes and receives; reduce_ranges has it. */
#ifndef SHOAL_PARALLEL_REDUCE_H
#define SHOAL_PARALLEL_REDUCE_H

#include "parallel/effects.h"
#include "parallel/plan.h"
#include "parallel/proto.h"

/* Elements of one piece: its int64 partials fill CHUNK_BYTES. */
#define REDUCE_PIECE_ELEMS (CHUNK_BYTES / 8u)

/* Splits n_elems among members: bw_bytes_s[i] is what member i's link carries each way (<= 0: unknown, all equal). Peer
 * i's traffic is S (1 + (n-2) w_i) each way, so T = max(S/U_min, S (n-2+|A|) / sum_A U), w_i = (T U_i / S - 1) / (n-2),
 * the slowest dropped from A while negative; equal halves for n = 2. Boundaries fall on whole pieces where the group is
 * large enough. Writes lo, hi of each member, in order, covering [0, n_elems). */
void reduce_ranges(uint64_t n_elems, const double *bw_bytes_s, uint32_t n_members, struct msg_reduce_member *members);

struct reduce;

struct reduce_config {
    uint64_t term, epoch, step;
    const struct plan *plan;        /* outlives the reduce */
    const struct plan_group *group; /* outlives the reduce */
    uint32_t group_index;
    uint32_t self; /* plan peer */
    bool exact;
    int64_t now;
};

/* Checks the order against the plan (-E_PROTO with the rule that it breaks) and starts. */
int reduce_new(const struct reduce_config *config, const struct msg_reduce *order, struct effects *fx,
               struct reduce **ret, struct reason *why);
struct reduce *reduce_free(struct reduce *r); /* NULL ok; returns NULL */

uint32_t reduce_attempt(const struct reduce *r);

/* A chunk of this (step, group, attempt) from plan peer `from`. -E_PROTO: it contradicts the order; duplicates are
 * fine. */
int reduce_chunk(struct reduce *r, uint32_t from, const struct msg *m, int64_t now, struct effects *fx);

/* A finished task of this attempt (PARTIAL, SUM, STORE, STORED, DIGEST). The caller frees it. */
void reduce_task_done(struct reduce *r, struct task *t, int64_t now, struct effects *fx);

/* Somebody misses a chunk: sent again if we have it by now. */
void reduce_need(struct reduce *r, uint32_t from, const struct msg_chunk_key *key, struct effects *fx);

/* Asks for what is missing when nothing arrived for a while. */
void reduce_tick(struct reduce *r, int64_t now, struct effects *fx);

/* Whether the digest is taken, and what it is: REDUCED to send to the coordinator (again, if asked again). NULL when
 * out of memory or not finished. */
bool reduce_joins(const struct reduce *r); /* this member is joining: finished means that every chunk is here */
bool reduce_keeps(const struct reduce *r, uint64_t *ret_bytes); /* a finished reduce can still serve who joins */
/* Joining and finished: the group's sums, n pieces one after another. References and the array are the caller's. */
int reduce_sums(const struct reduce *r, struct blob ***ret, uint32_t *ret_n);
bool reduce_finished(const struct reduce *r);
const uint8_t *reduce_hash(const struct reduce *r);
struct msg *reduce_report(const struct reduce *r);

#endif
