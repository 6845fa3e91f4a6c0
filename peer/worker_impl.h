/* The worker's insides, shared by its files only: worker.c (events, plan, commit), worker_lease.c (leases and
 * boundaries), worker_state.c (reduces, snapshots, fetched state), worker_term.c (a new coordinator). */
#ifndef SHOAL_PEER_WORKER_IMPL_H
#define SHOAL_PEER_WORKER_IMPL_H

#include "model/params.h"
#include "parallel/fetch.h"
#include "parallel/held.h"
#include "parallel/lease.h"
#include "parallel/reduce.h"
#include "peer/worker.h"

#define WORKER_AHEAD_MAX 2 /* steps beyond the present one that messages may speak of */

enum worker_phase {
    WORKER_IDLE,     /* no plan has a place for us */
    WORKER_SETUP,    /* allocating */
    WORKER_FETCHING, /* state is on its way */
    WORKER_READY,    /* steps can run */
    WORKER_COMMITTING,
};

struct worker {
    struct worker_config config;
    uint64_t term, view;
    enum worker_phase phase;

    struct plan plan;
    struct plan_groups groups;
    uint32_t self; /* plan peer */
    bool *held_units;
    uint64_t version; /* committed steps applied; also the number of the present step */
    uint64_t step_leases;

    struct lease_queue leases;
    int64_t *bulk_heard_at; /* per plan peer: when a boundary or chunk came last */
    bool device_busy;       /* a FORWARD or BACKWARD is at the device */
    uint8_t *slots;         /* 1 = in use */
    uint32_t n_slots;

    struct reduce **reduces; /* per group, NULL = none in this step yet */
    struct held held;

    struct fetch *fetch;
    uint32_t writes_pending;
    uint64_t start_version;
    bool commit_snapshot;

    int64_t now, heartbeat_at, step_began_at;
    uint64_t busy_ns, dropped;
    struct worker_update *update; /* during worker_step only */
};

/* worker.c */
void worker_fatal(struct worker *w, int status, const struct reason *why);
bool worker_send(struct worker *w, uint32_t peer, struct msg *m);
void worker_tell(struct worker *w, struct msg *m); /* the coordinator */
struct msg *worker_msg(struct worker *w, enum msg_type type);
void worker_hold(struct worker *w, const struct key *from, struct msg **m);
void worker_retry_held(struct worker *w);
bool worker_too_far(const struct worker *w, uint64_t epoch, uint64_t step); /* ahead of what peers can be at */
void worker_drop(struct worker *w, const struct key *from, const struct msg *m, const char *why);

void worker_heartbeat(struct worker *w);

/* worker_term.c */
void worker_new_term(struct worker *w); /* w->term is the new one */

/* worker_lease.c */
void worker_on_leases(struct worker *w, const struct key *from, struct msg **m);
void worker_on_boundary(struct worker *w, const struct key *from, uint32_t peer, struct msg **m);
void worker_on_need_boundary(struct worker *w, uint32_t peer, const struct msg_boundary_key *key);
void worker_on_run(struct worker *w, struct task *t); /* a FORWARD or BACKWARD is done */
void worker_pick(struct worker *w);
void worker_ask_boundaries(struct worker *w);

/* worker_state.c */
void worker_on_reduce(struct worker *w, const struct key *from, struct msg **m);
void worker_on_chunk(struct worker *w, const struct key *from, uint32_t peer, struct msg **m);
void worker_on_reduce_task(struct worker *w, struct task *t);
void worker_on_commit(struct worker *w, const struct key *from, struct msg **m);
void worker_on_applied(struct worker *w);
void worker_on_snapshot(struct worker *w, const struct key *from, struct msg **m);
void worker_on_snapshot_task(struct worker *w, struct task *t);
void worker_on_state_get(struct worker *w, const struct key *from, struct msg **m);
void worker_on_state_chunk(struct worker *w, const struct key *from, struct msg **m);
void worker_start_fetch(struct worker *w);
void worker_on_state_written(struct worker *w, const struct task *t);
void worker_drop_reduces(struct worker *w);
/* The running attempt that a key names, NULL if there is none. */
struct reduce *worker_reduce(const struct worker *w, uint64_t epoch, uint64_t step, uint32_t group, uint32_t attempt);
void worker_ready(struct worker *w);
void worker_free_slots(struct worker *w);

#endif
