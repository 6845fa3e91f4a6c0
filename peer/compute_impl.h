/* The compute's insides, shared by its files only: compute.c (thread and queues), compute_plan.c (what a plan needs,
 * the optimizer), compute_run.c (forward and backward), compute_reduce.c (gradient sums), compute_snapshot.c (state in
 * and out), compute_profile.c (timing units).
 *
 * Each task function returns 0 or a negative status and then has written t->why. What it checks is what came from the
 * network: sizes, ranges, spans. */
#ifndef SHOAL_PEER_COMPUTE_IMPL_H
#define SHOAL_PEER_COMPUTE_IMPL_H

#include <pthread.h>

#include "model/params.h"
#include "model/unit.h"
#include "peer/compute.h"

#define COMPUTE_SNAPSHOTS                                                                                              \
    3 /* kept at most; the oldest makes room: a checkpoint's, one of who joins, one on its way out */

/* Device memory that one task gave back and another may take: exactly as many bytes. */
struct compute_spare {
    size_t n_bytes;
    void *mem;
};

/* An array of a task on the device: the blob's own bytes where the device reads host memory, else a copy. */
struct compute_input {
    const void *data; /* device */
    struct blob *blob;
    struct compute_spare copy;
};

/* What one microbatch keeps in a span from forward to backward. */
struct compute_slot {
    bool used;
    uint32_t u0, u1;
    struct compute_input in, tokens, targets;
    struct compute_slot_unit {
        struct compute_spare saved;
        struct compute_spare out; /* the unit's output; not of the span's last unit */
    } * units;                    /* n_units, by unit */
};

struct compute_snapshot {
    bool used;
    uint64_t version, taken; /* taken: counts up, tells which is oldest */
    struct blob **parts;     /* n_tensors * PARAMS_PARTS, NULL = not held */
};

struct compute_tasks {
    struct task *first, *last;
};

struct compute {
    struct compute_config config;
    const struct model *model; /* config.model */
    struct kern kern;
    struct kern_device device;
    char fingerprint[17];

    pthread_t thread;
    pthread_mutex_t lock; /* the five below */
    pthread_cond_t wake;
    struct compute_tasks todo, done;
    int fd; /* eventfd: its counter is 1 while done has tasks, else 0 */
    bool stopping, begun;

    /* From here on: the compute thread only. */
    int64_t rest_ns; /* owed by the throttle; negative: slept more than was owed */

    /* The plan. params NULL: no plan. */
    struct params *params;
    bool *held; /* units that run here */
    struct plan_groups groups;
    bool *joins;   /* per group: this peer is joining it: its state is not one version's, its sums come by REPLAY */
    float **sums;  /* per group, fp32, n_elems, device; NULL = not a member, or joining */
    void *scratch; /* unit_scratch_bytes, device */
    float *boundary[2];  /* the gradient of boundary u is in [u & 1] on its way back through a span, device */
    void *work[2];       /* device memory of a reduce: the sum, one part */
    size_t work_size[2]; /* bytes */

    struct compute_slot *slots;
    uint32_t n_slots;
    struct compute_slot eval; /* of a forward that no backward follows */
    struct compute_spare *spares;
    uint32_t n_spares, cap_spares;

    struct compute_snapshot snapshots[COMPUTE_SNAPSHOTS];
    uint64_t n_taken;
};

/* compute.c */

/* Waits for the device; the first failure of r and that. Host memory given to a copy may go after this only. */
int compute_finish(struct compute *c, int r);
/* Whether kernels may read and write host memory themselves. */
bool compute_on_host(const struct compute *c);
/* n_bytes of device memory in a new blob of host memory. The device is not waited for. */
int compute_to_blob(struct compute *c, const void *mem, size_t n_bytes, struct blob **ret);

/* compute_plan.c */
int compute_setup(struct compute *c, struct task *t);
int compute_apply(struct compute *c, struct task *t);
int compute_replay(struct compute *c, struct task *t);
bool compute_joins(const struct compute *c, uint32_t tensor);
void compute_plan_clear(struct compute *c); /* back to no plan, all its memory freed; snapshots stay */

/* compute_run.c */
int compute_forward(struct compute *c, struct task *t);
int compute_backward(struct compute *c, struct task *t);
void compute_slots_clear(struct compute *c); /* no slot is used any more; memory stays */
void compute_slots_done(struct compute *c);  /* frees slots and spares */

/* compute_reduce.c */
int compute_partial(struct compute *c, struct task *t);
int compute_sum(struct compute *c, struct task *t);
int compute_store(struct compute *c, struct task *t);
int compute_stored(struct compute *c, struct task *t);
int compute_digest(struct compute *c, struct task *t);
/* Device memory of at least n_bytes that lives to the next call with this i, 0 or 1. */
int compute_work(struct compute *c, int i, size_t n_bytes, void **ret);

/* compute_snapshot.c */
int compute_state_write(struct compute *c, struct task *t);
int compute_snapshot(struct compute *c, struct task *t);
int compute_snapshot_read(struct compute *c, struct task *t);
int compute_snapshot_drop(struct compute *c, struct task *t);
void compute_snapshots_done(struct compute *c);

#endif
