/* The planner's insides, shared by its files only: planner.c (the search), planner_cost.c (bytes and seconds),
 * planner_shadows.c (second holders). */
#ifndef SHOAL_SCHEDULER_PLANNER_IMPL_H
#define SHOAL_SCHEDULER_PLANNER_IMPL_H

#include "scheduler/planner.h"

/* What the search looks up again and again. */
struct planner_tables {
    const struct planner_input *in;
    double *seconds;    /* [peer * (U+1) + u]: of units [0,u) */
    uint64_t *in_one;   /* [u0 * (U+1) + u1]: planner_bytes without microbatches in flight, 0 = not asked yet */
    uint64_t *activity; /* [u]: bytes of one microbatch in flight in units [0,u) */
};

int planner_tables_make(const struct planner_input *in, struct planner_tables *t);
void planner_tables_done(struct planner_tables *t);
double planner_span_seconds(const struct planner_tables *t, uint32_t peer, uint32_t u0, uint32_t u1);
uint64_t planner_span_bytes(const struct planner_tables *t, uint32_t u0, uint32_t u1, uint32_t in_flight);

/* Predicted seconds of a step; fleet_of[i] is plan peer i's place in the fleet. */
double planner_seconds(const struct planner_tables *t, const struct plan *plan, const uint32_t *fleet_of);

/* Gives stages with one holder a shadow, where memory allows and the predicted step stays within
 * PLANNER_SHADOW_STRETCH. Updates predicted_seconds. */
int planner_add_shadows(const struct planner_tables *t, const uint32_t *fleet_of, struct plan *plan);

#endif
