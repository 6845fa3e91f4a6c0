/* A task: one piece of work for a peer's device, made by an engine, executed by the compute thread (or by a fake one in
 * tests), and handed back to the engine with its results. Moves between threads whole: whoever holds the pointer owns
 * it. */
#ifndef SHOAL_PARALLEL_TASK_H
#define SHOAL_PARALLEL_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "crypto/hash.h"
#include "kernels/kern.h"
#include "parallel/plan.h"
#include "runtime/base/blob.h"

enum task_kind {
    TASK_SETUP,       /* plan, peer, fetch, seed: allocate for the plan's units; version 0 from the seed unless fetch.
                         keep: state of units held before stays as it is, that of others is for STATE_WRITE to come */
    TASK_STATE_WRITE, /* tensor, part, offset, n, in: fetched state */
    TASK_FORWARD,     /* slot, train, u0, u1, in or tokens, targets -> out or loss. train: keeps activations in slot */
    TASK_BACKWARD, /* slot, u0, u1, in: gradient of boundary u1 (none at the head) -> out: gradient of boundary u0 (none
                      at unit 0), flagged */
    TASK_PARTIAL,  /* group, offset, n -> out: this peer's sum, int64 (exact) or fp32 */
    TASK_SUM,      /* group, offset, n, parts, contributes -> out: fp32 sum of parts and (contributes) the own one; also
                      stored */
    TASK_STORE,    /* group, offset, n, in: a finished fp32 sum */
    TASK_STORED,   /* group, offset, n -> out: reads a stored sum back, for one who missed it */
    TASK_DIGEST,   /* group -> hash, sum_squares of the stored sums */
    TASK_APPLY,  /* update, skipped: optimizer on every held tensor (none if skipped); clears the local sums, frees all
                    slots */
    TASK_REPLAY, /* group, parts, hash, update: the sums of a group that is joined, which must have that hash, and
                    the optimizer on them. -E_CORRUPT: they have another */
    TASK_SNAPSHOT, /* version -> digests of the held tensors' values, not of joined ones; keeps a copy of the state */
    TASK_SNAPSHOT_READ, /* tensor, part, offset, n -> out, hash: from the snapshot of `version` */
    TASK_SNAPSHOT_DROP, /* version */
    TASK_KINDS
};

#define TASK_NO_SLOT UINT32_MAX

struct task {
    struct task *next; /* whoever holds the task may link it into a list: queueing one cannot fail */
    enum task_kind kind;
    int status; /* result: 0 or a negative status; why then has a sentence */
    struct reason why;
    int64_t busy_ns; /* result: compute time */

    /* who asked: engines' own notes, the compute thread leaves them alone */
    uint64_t epoch, step, version;
    uint32_t microbatch, mode, attempt;
    uint32_t to; /* plan peer that the result is for */

    uint32_t slot, u0, u1;
    bool train, contributes, skipped, fetch, keep;
    uint32_t group, tensor, part;
    uint64_t offset, n;
    float loss_scale;
    uint64_t seed;
    struct kern_adamw update;
    struct plan *plan; /* SETUP: owned */
    uint32_t peer;     /* SETUP: which plan peer this is */

    struct blob *in, *tokens, *targets; /* references owned by the task */
    struct blob **parts; /* SUM: n_parts contributions in member order, own one left out; REPLAY: the sums,
                            one after another; owned */
    uint32_t n_parts;

    struct blob *out; /* result, reference owned by the task */
    bool flagged;
    double loss;
    uint8_t hash[HASH_BYTES];
    double *sum_squares; /* DIGEST: per tensor of the group; owned */
    uint32_t n_digests;  /* SNAPSHOT */
    uint32_t *digest_tensors;
    uint8_t (*digests)[HASH_BYTES];
};

struct task *task_new(enum task_kind kind); /* zeroed, slot = TASK_NO_SLOT; NULL when out of memory */
struct task *task_free(struct task *t);     /* with all it owns; NULL ok; returns NULL */
const char *task_name(enum task_kind kind);

#endif
