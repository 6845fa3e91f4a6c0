/* From shares to routes: which holder takes each microbatch through each stage in one step (design 5.1). Pure.
 *
 * Shares need not divide M: what a holder is owed is carried from step to step, so that shares dither around their
 * exact value. Within a step holders take turns in proportion, and where there is a choice a microbatch stays with the
 * peer that has it. */
#ifndef SHOAL_SCHEDULER_ROUTES_H
#define SHOAL_SCHEDULER_ROUTES_H

#include "parallel/plan.h"
#include "parallel/proto.h"

struct route_lease {
    struct msg_lease info;
    uint32_t peer; /* plan peer that gets it */
    bool done;
    bool changed; /* its peer has not been told of it as it is now */
};

/* The leases of one step: train microbatches first, then the evaluation's, each in order of unit along its route. */
struct routes {
    uint64_t step;
    uint32_t n, n_train; /* leases; of them training */
    struct route_lease *leases;
};

/* What each holder (plan->holders index) is owed, in microbatches times the stage's sum of weights. n_holders entries,
 * zero at first. */
struct routes_credit {
    int64_t *owed;
    uint32_t n;
};

int routes_credit_init(struct routes_credit *c, const struct plan *plan);
void routes_credit_done(struct routes_credit *c);

/* n_train microbatches in train mode and n_eval in eval mode. gone[plan peer] (NULL: none is): gets nothing; where only
 * shadows are left they share equally. Every stage needs a holder that is there. -E_NOMEM. */
int routes_build(const struct plan *plan, const bool *gone, struct routes_credit *credit, uint64_t step,
                 uint32_t n_train, uint32_t n_eval, struct routes *ret);
void routes_done(struct routes *r); /* zeroed ok */

/* The lease (microbatch, mode, u0) held by peer, NULL if there is none. */
struct route_lease *routes_find(const struct routes *r, uint32_t peer, uint32_t microbatch, uint32_t mode, uint32_t u0);

#endif
