/* A device that computes nothing and counts everything: it executes a worker's tasks in integers, in no time. A
 * boundary tensor carries a hash of all that went into it (tokens, units passed, their state), a gradient sum adds up
 * values determined by (tensor, element, what came in), an update mixes the sums into the state. So the state after a
 * step tells whether every microbatch passed every unit exactly once, with the right state, forward and backward; and
 * it depends on nothing else, whatever the plan.
 *
 * It checks what the real device may take for granted (slots, versions, sizes) and keeps the first thing that was
 * wrong. How long a task takes on the virtual clock is device_cost's business. */
#ifndef SHOAL_SIM_DEVICE_H
#define SHOAL_SIM_DEVICE_H

#include "model/model.h"
#include "model/params.h"
#include "parallel/task.h"

/* Microbatches whose gradients are marred, for tests of skipped steps. */
struct device_fault {
    bool flag; /* backward of (step, microbatch) reports a flag at the unit */
    bool lie;  /* digests of sums are wrong, each time otherwise */
    bool nan;  /* the loss of (step, microbatch) is not a number */
    uint64_t step, more_steps; /* also in so many steps after it */
    uint32_t microbatch, unit;
};

struct device;

int device_new(const struct model *model, const struct device_fault *fault, double speed, struct device **ret);
struct device *device_free(struct device *d); /* NULL ok; returns NULL */

/* Virtual time that the task takes. */
int64_t device_cost(const struct device *d, const struct task *t);

/* Executes the task and writes its results. */
void device_run(struct device *d, struct task *t);

/* The first thing that was wrong with a task, NULL if none was. */
const char *device_complaint(const struct device *d);

uint64_t device_version(const struct device *d); /* steps applied since set-up, plus the version set up at */

#endif
