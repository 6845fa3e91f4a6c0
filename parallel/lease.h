/* A worker's leases: what each one waits for, what it keeps, and which task is best to run now (design 5.2). A pure
 * engine.
 *
 * The order is 1F1B without a global schedule: a backward that is ready goes before any forward, a low microbatch
 * before a high one. How many microbatches are in flight is limited where they start, at unit 0; a forward under way is
 * never refused. Whoever sends a boundary tensor keeps it until the step commits: a lease keeps what it sent (out,
 * grad_out). */
#ifndef SHOAL_PARALLEL_LEASE_H
#define SHOAL_PARALLEL_LEASE_H

#include "parallel/proto.h"

/* Boundary tensors travel in pieces of this many fp32 elements. */
#define LEASE_PIECE_ELEMS (CHUNK_BYTES / 4u)

enum lease_state {
    LEASE_WAIT_INPUT, /* for tokens' owner: never; else the activation of boundary u0 */
    LEASE_READY_FORWARD,
    LEASE_RUN_FORWARD,
    LEASE_WAIT_GRADIENT, /* of boundary u1; the head's lease passes through */
    LEASE_READY_BACKWARD,
    LEASE_RUN_BACKWARD,
    LEASE_DONE,
};

/* A boundary tensor being put together from its pieces. */
struct lease_inbox {
    struct blob *whole; /* NULL until the first piece */
    uint64_t got;       /* elements */
    bool complete;
    uint8_t *have; /* one byte a piece; NULL when it came as one */
};

struct lease {
    struct msg_lease info;
    uint64_t step;
    float loss_scale;
    enum lease_state state;
    struct blob *tokens, *targets;  /* (B,T) int32 each, where the lease has them */
    struct lease_inbox in, grad_in; /* activation of boundary u0, gradient of boundary u1 */
    struct blob *out, *grad_out;    /* activation of boundary u1, gradient of boundary u0: kept until commit */
    uint32_t slot;                  /* device memory for activations, TASK_NO_SLOT */
    bool flagged;
    double loss;
    int64_t waiting_since; /* for what its state says, or since it last asked for it */
    uint32_t n_asked;
};

struct lease_queue {
    struct lease **leases; /* by pointer: tasks refer to them across growth */
    uint32_t n, cap;
};

void lease_queue_done(struct lease_queue *q);
void lease_queue_clear(struct lease_queue *q);                      /* forgets all */
void lease_queue_drop_before(struct lease_queue *q, uint64_t step); /* forgets steps < step, with what they kept */

/* The lease (step, microbatch, mode, u0), NULL if there is none. */
struct lease *lease_find(const struct lease_queue *q, uint64_t step, uint32_t microbatch, uint32_t mode, uint32_t u0);
/* The lease that takes this boundary tensor in: forward into u0 == unit, backward into u1 == unit. */
struct lease *lease_receiver(const struct lease_queue *q, const struct msg_boundary_key *key);
/* The lease that made it. */
struct lease *lease_sender(const struct lease_queue *q, const struct msg_boundary_key *key);

/* Adds a lease; references to tokens and targets are taken. -E_EXIST when it is known, -E_NOMEM. */
int lease_add(struct lease_queue *q, uint64_t step, const struct msg_lease *info, float loss_scale, struct blob *tokens,
              struct blob *targets, int64_t now);

/* One piece for a lease. 1: the tensor is whole, and the lease ready if it waited for it (a gradient may come early);
 * 0: not yet, or known already; -E_PROTO: pieces do not fit; -E_NOMEM. */
int lease_piece(struct lease *l, const struct msg_boundary *piece, struct blob *body, uint64_t total_elems);

/* The forward is done; last: the span ends with the head. */
void lease_forward_done(struct lease *l, bool last);

/* Forgets pieces of tensors that are not whole yet. */
void lease_forget_pieces(struct lease *l);

/* The best task of this step: a lease in READY_BACKWARD or READY_FORWARD, or NULL. in_flight limits train microbatches
 * begun at unit 0. */
struct lease *lease_pick(const struct lease_queue *q, uint64_t step, uint32_t in_flight);

#endif
