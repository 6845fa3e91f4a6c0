/* The device side of a peer: one thread that owns the device and executes tasks in the order they are given
 * (parallel/task.h says what each is). Memory for a plan is allocated in TASK_SETUP; a step allocates nothing but the
 * blobs that leave. */
#ifndef SHOAL_PEER_COMPUTE_H
#define SHOAL_PEER_COMPUTE_H

#include "kernels/kern.h"
#include "model/job.h"
#include "model/model.h"
#include "parallel/task.h"

struct compute_config {
    const struct model *model; /* outlives the compute */
    enum job_reduction reduction;
    const char *device; /* NULL = the best there is */
    int n_threads;      /* >= 1 */
    double speed; /* (0,1]: after each piece of work the thread rests so that it works this fraction of the time */
};

struct compute;

int compute_new(const struct compute_config *config, struct compute **ret, struct reason *why);
struct compute *
compute_free(struct compute *c); /* waits for the running task; unfinished ones are dropped. NULL ok; returns NULL */

/* Seconds of forward and backward of one microbatch, per unit (n_units entries each; blocks share one measurement): the
 * real units on the real device with the real kernels, speed included, median of several after a warm-up. Blocks for
 * about `budget_ns`. Before the first compute_submit only. */
int compute_profile(struct compute *c, int64_t budget_ns, double *forward_s, double *backward_s, struct reason *why);

void compute_submit(struct compute *c, struct task *t); /* moved in; never blocks. I/O thread. */
struct task *compute_take(struct compute *c);           /* a finished task, NULL if none is. I/O thread. */
int compute_fd(const struct compute *c);                /* readable while finished tasks wait */

const struct kern_device *compute_device(const struct compute *c);
const char *compute_fingerprint(const struct compute *c); /* kern_fingerprint's 16 hex digits */

#endif
