/* Between two plans: the plan in force without who is gone, and with those who are to hold more as joining holders, so
 * that they get the state they lack while the others go on as before (design 7). Pure. */
#ifndef SHOAL_SCHEDULER_TRANSITION_H
#define SHOAL_SCHEDULER_TRANSITION_H

#include "parallel/plan.h"

/* The plan `now` less the peers with alive[peer] false, plus, as joining, everybody whom `target` (NULL: nobody) gives
 * units that they do not hold. Joining holders of `now` count as holders if current[peer], else as not there. A stage
 * of which only shadows are left is worked on by them. Epoch and prediction are now's. *ret_n_joining: how many (stage,
 * peer) are joining; 0: every unit that the target gives to somebody is there already. Every unit must have a holder
 * that is alive. -E_TOOBIG when the cuts of both plans make too many holders. */
int transition_make(const struct plan *now, const bool *alive, const bool *current, const struct plan *target,
                    struct plan *ret, uint32_t *ret_n_joining);

/* Units that a single peer holds, joining ones not counted. */
uint32_t transition_alone(const struct plan *p);

#endif
