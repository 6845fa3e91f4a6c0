/* The first scheduler: spans and shares from measured unit times and memory, by a simple, deterministic rule (design
 * 8). Pure: profiles in, plan out.
 *
 * The fleet is sorted by speed and cut into chains, each a pipeline over the whole model with spans in proportion to
 * its peers' speeds, as far as their memory goes; the chains run side by side and share the microbatches so that
 * the last one finishes soonest. Every way to cut the sorted fleet is tried (up to PLANNER_EXHAUSTIVE peers; beyond,
 * chains of equal length) and the one with the shortest predicted step wins. Then units that one peer holds alone
 * get a shadow where that costs little. */
#ifndef SHOAL_SCHEDULER_PLANNER_H
#define SHOAL_SCHEDULER_PLANNER_H

#include "model/model.h"
#include "parallel/plan.h"

#define PLANNER_EXHAUSTIVE     12
#define PLANNER_SHADOW_STRETCH 0.05 /* a shadow may stretch the predicted step by this much */

struct planner_peer {
    const double *forward_s, *backward_s; /* [n_units] seconds of one microbatch */
    uint64_t memory_bytes;                /* for this job */
};

struct planner_input {
    const struct model *model;
    enum job_reduction reduction;
    uint32_t n_peers;
    const struct planner_peer *peers;
};

/* Writes stages, holders, in_flight and predicted_seconds into *ret (peers' keys stay zero: the caller's to fill in;
 * epoch too). A peer that does not help is left out: kept[i] tells the plan peer of fleet peer i or UINT32_MAX.
 * -E_FIT when the fleet cannot hold the model: why names the need and what there is. */
int planner_make(const struct planner_input *in, struct plan *ret, uint32_t *kept, struct reason *why);

/* Whether every holder of a plan made elsewhere has the memory (peer i of the plan is in->peers[i]). 0, or -E_FIT with
 * the peer's place, its need and its offer. */
int planner_check_memory(const struct planner_input *in, const struct plan *plan, const char *const *names,
                         struct reason *why); /* names[i]: what peer i is called */

/* Predicted seconds of one step of any valid plan over these peers (peer i of the plan is in->peers[i]). */
double planner_predict(const struct planner_input *in, const struct plan *plan);

/* Bytes that a holder of units [u0,u1) needs: state, sums, one unit's gradients, a snapshot, in_flight microbatches'
 * activations, and the boundary tensors kept until the step commits. */
uint64_t planner_held_bytes(const struct planner_input *in, const bool *held, uint32_t in_flight); /* held[n_units] */
uint64_t planner_bytes(const struct planner_input *in, uint32_t u0, uint32_t u1, uint32_t in_flight);

#endif
