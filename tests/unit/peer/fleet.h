/* Computes driven by hand, without a network or engines: what a coordinator and the workers would make them do in a
 * step. Shared by the compute's tests. */
#ifndef SHOAL_TESTS_UNIT_PEER_FLEET_H
#define SHOAL_TESTS_UNIT_PEER_FLEET_H

#include "model/job.h"
#include "model/model.h"
#include "parallel/plan.h"
#include "peer/compute.h"

#define FLEET_PEERS_MAX 4

struct fleet {
    struct job job;
    struct model *model;
    struct plan plan;
    struct plan_groups groups;
    struct compute *computes[FLEET_PEERS_MAX];
    uint64_t version;
};

/* A GPT-2 of 4 units (embedding, two blocks, head), 3 microbatches. */
struct job fleet_job(enum job_reduction reduction);

/* Peers of that plan (plan_parse's text), each with n_threads, not set up yet. */
void fleet_open(struct fleet *f, enum job_reduction reduction, const char *plan, int n_threads);
struct task *fleet_setup_task(const struct fleet *f, uint32_t peer, bool fetch);
void fleet_setup(struct fleet *f, bool fetch);
void fleet_close(struct fleet *f);

/* One step: every microbatch forward, then backward, at the stages' holders in turn; sums reduced in pieces among each
 * group's members; norm; optimizer. Checks that all members have the same bits. Returns the step's mean loss. */
double fleet_step(struct fleet *f);

/* The digests of all tensors' values; checks that all holders have the same. */
void fleet_digests(struct fleet *f, uint8_t (*ret)[HASH_BYTES]);

/* Submits t, waits for it on the descriptor and takes it. */
struct task *fleet_run(struct compute *c, struct task *t);
/* The same; checks that it succeeded. */
struct task *fleet_do(struct compute *c, struct task *t);
/* The same; checks that it failed with this status and a sentence. */
void fleet_refused(struct compute *c, struct task *t, int status);

struct blob *fleet_tokens(const struct fleet *f, uint32_t microbatch);
struct blob *fleet_targets(const struct fleet *f, uint32_t microbatch);
struct blob *fleet_floats(int64_t n, float value);

struct task *fleet_forward(const struct fleet *f, uint32_t microbatch, uint32_t u0, uint32_t u1, struct blob *in);
struct task *fleet_backward(const struct fleet *f, uint32_t microbatch, uint32_t u0, uint32_t u1, struct blob *in);
/* A task on elements [offset, offset + n) of a group. */
struct task *fleet_range(enum task_kind kind, uint32_t group, uint64_t offset, uint64_t n);

#endif
