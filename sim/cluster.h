/* A coordinator and its peers in one process on virtual time: the real engines (coord, worker, and all that they are
 * made of), a network that delays, loses, doubles and cuts, and devices that count instead of computing (device.h).
 * Every message goes through the protocol's encoder and decoder. One seed gives one run, event for event.
 *
 * The shells around the engines are played here: joining through the lobby, links, profiles, checkpoints in memory.
 * After every event, outside the engines, this is checked: steps are committed in order and once; a (step, microbatch,
 * unit) is computed backward before its step counts, and once by who is not lost; nobody applies what was not
 * committed; versions never go back; what an engine says can be encoded; devices are asked for nothing absurd. */
#ifndef SHOAL_SIM_CLUSTER_H
#define SHOAL_SIM_CLUSTER_H

#include "model/job.h"
#include "model/model.h"
#include "scheduler/note.h"
#include "sim/device.h"

#define CLUSTER_WORKERS_MAX 16

/* A checkpoint in memory: what a coordinator saved, and another one resumes from. */
struct cluster_checkpoint {
    uint64_t version, updates;
    double loss;
    uint8_t hash[HASH_BYTES];
    uint32_t n_parts; /* n_tensors * PARAMS_PARTS */
    float **parts;
};

void cluster_checkpoint_free(struct cluster_checkpoint *k); /* NULL ok */

/* What is special about a worker; all zero: nothing. */
struct cluster_worker {
    double speed;          /* 0 = 1 */
    uint64_t memory_bytes; /* 0 = plenty */
    int64_t starts_at;     /* virtual ns */
    uint64_t incarnation;  /* 0 = its start */
    uint32_t same_key_as;  /* 1 + the worker whose key it has, 0 = its own */
    bool wrong_capability;
    bool no_port;      /* cannot be dialled */
    bool lies;         /* about its sums */
    double hostile_hz; /* besides working, sends random messages at this rate */
};

struct cluster_config {
    const struct job *job; /* outlives the cluster */
    uint64_t seed;
    uint32_t n_workers;
    struct cluster_worker workers[CLUSTER_WORKERS_MAX];
    const char *plan_text;                   /* forced plan, NULL = the planner's; outlives the cluster */
    uint64_t stop_after;                     /* 0 = the job's steps */
    const struct cluster_checkpoint *resume; /* NULL = a fresh run; outlives the cluster */
    int64_t delay_min_ns, delay_mean_ns;     /* a message takes min + an exponential time of that mean */
    double loss, duplicate;                  /* probability of each message */
    bool lenient; /* a hostile worker has a place in the plan: what is computed and committed is not checked */
    struct device_fault fault;
};

/* Things that happen to a run at a chosen time. Nodes: 0 the coordinator, 1.. the workers. */
enum cluster_deed {
    CLUSTER_KILL,  /* a: the process vanishes; its links break a little later */
    CLUSTER_EXIT,  /* a: the same, and the coordinator is told by who started it */
    CLUSTER_CUT,   /* a, b: nothing passes between them */
    CLUSTER_HEAL,  /* a, b: it does again */
    CLUSTER_LEAVE, /* a: is asked to leave politely */
    CLUSTER_STOP,  /* the coordinator is asked to stop */
};

struct cluster;

int cluster_new(const struct cluster_config *config, struct cluster **ret);
struct cluster *cluster_free(struct cluster *c); /* NULL ok; returns NULL */

void cluster_at(struct cluster *c, int64_t at_ns, enum cluster_deed deed, uint32_t a, uint32_t b);
/* The same when the coordinator commits the step that makes `version`, after_ns later. */
void cluster_when(struct cluster *c, uint64_t version, int64_t after_ns, enum cluster_deed deed, uint32_t a,
                  uint32_t b);

/* Runs until the coordinator and every live worker is over: 0; -E_TIMEOUT: virtual limit_ns have passed before;
 * -E_INTERNAL: a check failed. why has the sentence. */
int cluster_run(struct cluster *c, int64_t limit_ns, struct reason *why);

/* How it ended. */
struct cluster_result {
    bool over;
    int status; /* the coordinator's */
    struct reason why;
    uint64_t version; /* of the last commit */
    double loss, eval_loss;
    uint32_t n_evals, n_skipped, n_saved, n_plans, n_warnings, n_rollbacks;
    uint64_t n_messages, dropped; /* by workers, as contradicting */
    int64_t ended_at, longest_step_ns; /* from one commit to the next, rollbacks apart */
    const struct cluster_checkpoint *saved; /* the newest one; the cluster's */
};

void cluster_result(const struct cluster *c, struct cluster_result *ret);

/* How a worker ended: 1 = it has not. */
int cluster_worker_status(const struct cluster *c, uint32_t worker, const char **ret_text);
/* Leases that the worker's device ran forward for training. */
uint64_t cluster_worker_forwards(const struct cluster *c, uint32_t worker);

/* The last lines of what happened, one a line; the cluster's. */
const char *cluster_trace(struct cluster *c);

#endif
