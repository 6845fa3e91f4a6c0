/* The worker's insides, shared by its files only: worker.c (events, plan, commit), worker_lease.c (leases and
 * boundaries), worker_state.c (reduces, snapshots, fetched state), worker_next.c (from one plan to the next),
 * worker_join.c (getting the state of units while the others train). */
#ifndef SHOAL_PEER_WORKER_IMPL_H
#define SHOAL_PEER_WORKER_IMPL_H

#include "model/params.h"
#include "parallel/fetch.h"
#include "parallel/held.h"
#include "parallel/lease.h"
#include "parallel/reduce.h"
#include "peer/worker.h"

#define WORKER_AHEAD_MAX 2 /* steps beyond the present one that messages may speak of */

#define WORKER_READS_MAX      64           /* pieces of snapshots being read for peers: who asks for more asks again */
#define WORKER_PAST_MAX       16           /* steps whose sums are kept for who joins... */
#define WORKER_PAST_BYTES_MAX (256u << 20) /* ...and their bytes */

/* A plan that is announced, or was: in force when a commit names it. */
struct worker_next {
    struct plan plan; /* epoch 0 = none */
    int self;         /* plan peer, < 0 = no place for us */
};

/* Finished reduces of a step that is over: they serve who joins. */
struct worker_past {
    uint64_t step, bytes;
    uint32_t n;
    struct reduce **reduces; /* [n], NULL = nothing to keep */
};

/* A committed step that what is being joined has not taken yet. */
struct worker_join_step {
    struct msg_commit commit; /* groups owned */
    struct reduce **reduces;  /* per group; NULL: not joined. owned */
};

/* What the plan lets this peer join: a snapshot of some version is fetched, and since that version every step's sums
 * are kept, to be replayed in order. */
struct worker_join {
    bool *groups;                 /* per group: joined; NULL = the plan has nothing to join */
    enum msg_joining state, told; /* told: what the last heartbeat said */
    uint32_t attempt;             /* counts how often it began: tasks of an earlier one are void */
    struct fetch *fetch;
    uint32_t writes_pending;
    struct worker_join_step *steps;
    uint32_t n, cap;
    int64_t progress_at;
};

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
    uint32_t writes_pending, reads_pending; /* reads: of snapshots, for peers */
    uint64_t start_version;
    struct msg_commit commit; /* that is being applied; groups owned */

    struct worker_next next;
    struct worker_join join;
    struct worker_past past[WORKER_PAST_MAX];
    struct key *view_keys; /* [n_view_keys] who is admitted, as the newest view said; NULL = no view came */
    uint32_t n_view_keys;

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
/* peer: who asks, MSG_NO_PEER = the coordinator */
void worker_on_state_get(struct worker *w, const struct key *from, uint32_t peer, struct msg **m);
void worker_on_state_chunk(struct worker *w, const struct key *from, struct msg **m);
void worker_start_fetch(struct worker *w);
void worker_on_state_written(struct worker *w, const struct task *t);
void worker_drop_reduces(struct worker *w);
void worker_ready(struct worker *w);
void worker_free_slots(struct worker *w);
void worker_heartbeat(struct worker *w);
void worker_tell_ready(struct worker *w, uint64_t epoch);

/* worker_next.c */
void worker_on_plan(struct worker *w, const struct msg_plan *p);
void worker_on_setup_done(struct worker *w, struct task *t);
void worker_forget_plan(struct worker *w);
bool worker_enters(struct worker *w, const struct msg_commit *c); /* the first commit heard under an announced plan */
void worker_switch(struct worker *w);                             /* to the plan that the applied commit names */
void worker_keep_past(struct worker *w);                          /* before the step's reduces are dropped */
void worker_past_need(struct worker *w, uint32_t peer, const struct msg_chunk_key *key);
void worker_past_done(struct worker *w);

/* worker_join.c */
int worker_join_init(struct worker *w); /* for the plan just taken */
void worker_join_done(struct worker *w);
void worker_join_begin(struct worker *w);  /* at w->version, of which the holders take snapshots */
void worker_join_commit(struct worker *w); /* w->commit is applied; takes its reduces */
void worker_join_lose(struct worker *w, const char *why);
struct reduce *worker_join_reduce(const struct worker *w, uint64_t step, uint32_t group, uint32_t attempt);
void worker_join_advance(struct worker *w);
void worker_join_tick(struct worker *w);
void worker_join_chunk(struct worker *w, const struct key *from, const struct msg *m);
void worker_join_written(struct worker *w, const struct task *t);
void worker_join_view(struct worker *w, const struct msg_view *v);

#endif
