/* The coordinator engine's insides, shared by its files only: coord.c (events, ticks, the end), coord_members.c
 * (joining, view, links, death), coord_plan.c (plan and set-up), coord_step.c (leases, commits), coord_reduce.c,
 * coord_save.c (checkpoints, state for resuming), coord_next.c and coord_replan.c (from one plan to the next),
 * coord_status.c. */
#ifndef SHOAL_SCHEDULER_COORD_IMPL_H
#define SHOAL_SCHEDULER_COORD_IMPL_H

#include "parallel/fetch.h"
#include "scheduler/coord.h"
#include "scheduler/routes.h"

#define COORD_RESEND_NS (1000 * INT64_C(1000000)) /* an answer that is missing for this long is asked for again */

enum coord_phase {
    COORD_GATHER,  /* waiting for enough measured peers */
    COORD_CONNECT, /* plan made; views acknowledged and links up come next */
    COORD_SETUP,   /* plan sent; holders get their state ready */
    COORD_RUN,
    COORD_STALLED, /* a unit has no holder; a checkpoint is being written that the run will go back to */
    COORD_ENDING,  /* last commit done or run given up: a last checkpoint, then over */
    COORD_OVER,
};

struct coord_peer {
    struct msg_join join;
    bool admitted; /* in the view; false = dead or left */
    bool linked;   /* its control and bulk links to us are up */
    bool seen;     /* it was linked once: from then on it is in the view that others get */
    bool profiled, ready, leaving;
    bool told_of; /* that it stands by */
    uint64_t view_acked, ready_epoch;
    struct msg_heartbeat heartbeat;
    int64_t heard_at, unlinked_at;
    int64_t asked_at, told_at; /* view or plan, commit or leases were last sent */
    uint64_t memory_bytes;
    double *forward_s, *backward_s;
    uint32_t plan_peer;    /* UINT32_MAX = not in the plan */
    uint32_t next_peer;    /* UINT32_MAX = not in the next one */
    uint32_t n_lost;       /* how often it had to begin joining anew */
    int64_t shunned_until; /* no new plan counts on it before */
};

struct coord_group {
    uint32_t attempt; /* 0 = not started in this step */
    bool complete;
    bool restart; /* the attempt is void: another one starts when the redone work is in */
    uint32_t n_reports;
    bool *reported; /* per member */
    uint8_t hash[HASH_BYTES];
    double *sum_squares; /* per tensor of the group */
    int64_t asked_at;
};

/* A checkpoint in the making. */
struct coord_saving {
    enum { SAVING_NONE, SAVING_SNAPSHOT, SAVING_FETCH, SAVING_WRITE } phase;
    struct coord_save what;
    bool *taken;         /* per plan peer */
    uint32_t *digest_of; /* per tensor: plan peer whose digest it is, UINT32_MAX = none yet */
    uint8_t (*digests)[HASH_BYTES];
    struct fetch *fetch;
    int64_t asked_at, progress_at;
};

/* The plan that is to come into force with a commit. */
struct coord_next {
    enum { NEXT_NONE, NEXT_CONNECT, NEXT_TOLD, NEXT_READY } phase;
    struct plan plan; /* the epoch stays: none is used twice */
    struct plan_groups groups;
    struct coord_peer **peers;
    bool *link_up, *link_failed; /* as in struct coord */
    bool *ready;                 /* per plan peer: it knows the plan */
    bool joins;                  /* somebody joins: it prepares the plan proper */
    uint64_t view;
    int64_t began_at, asked_at;
    int64_t waiting_since; /* a commit waits for who joins, so that it can name the plan; 0 = none does */
    int64_t patience_at;   /* no commit waits before */
};

struct coord {
    struct coord_config config;
    enum coord_phase phase;
    struct coord_peer **peers; /* every one that ever joined, by pointer */
    uint32_t n_peers, cap_peers;
    uint64_t view;

    struct plan plan; /* epoch 0 = none */
    struct plan_groups groups;
    struct coord_peer **plan_peers;
    bool *link_up;      /* [i * n_plan_peers + j]: i reports its link to j */
    uint64_t plan_view; /* the view that the plan was made in */
    bool *link_failed;  /* [i * n_plan_peers + j]: i could not reach j while connecting */
    struct coord_next next_plan;
    struct coord_peer **forced; /* [n_forced] who the forced plan's peers are; NULL = the planner plans */
    uint32_t n_forced;
    int64_t replan_at;     /* look whether another plan is better, 0 = nothing changed */
    uint64_t join_version; /* whose snapshot the holders keep for who joins, 0 = none */
    bool join_snapshot_due;
    int64_t connect_asked_at, connect_began_at;
    int64_t parted_at; /* since when some two holders have no link during the run, 0 = all have */

    uint64_t version, updates; /* committed */
    uint64_t first_version;    /* that this plan began at */
    double loss;
    struct routes_credit credit;
    struct routes now, next; /* leases of step `version` and of the one after */
    bool next_valid;
    double *losses, *eval_losses;
    bool *eval_in;       /* per evaluation microbatch */
    bool *gone;          /* per plan peer */
    uint32_t *unit_done; /* per unit: train microbatches through backward */
    uint32_t n_train_done, n_eval_done;
    bool flagged;
    struct coord_group *group;
    uint32_t *group_of, *place_in_group; /* per tensor */
    struct msg_commit last_commit;       /* of version - 1, kept for peers that missed it */
    bool has_commit;
    int64_t committed_at, leases_sent_at, progress_at;
    uint32_t n_quiet; /* how often leases were sent again since there was progress */
    double seconds, tokens_per_s, eval_loss;

    struct coord_saving saving;
    bool save_due;
    uint64_t saved_version, saved_updates;
    double saved_loss;
    bool has_saved;
    uint8_t saved_hash[HASH_BYTES];
    char saved_path[1024];

    bool stop_asked;
    int ending_status;
    struct reason ending_why;
    int64_t too_few_said_at;
    int64_t regather_until; /* after a rollback; 0 = there was none */
    int64_t ending_since, waiting_said_at, heartbeat_at, ticked_at;

    int64_t now_ns;
    struct coord_update *update; /* during coord_step only */
};

/* coord.c */
struct msg *coord_msg(struct coord *c, enum msg_type type);
void coord_send(struct coord *c, const struct coord_peer *p, struct msg *m);
void coord_note(struct coord *c, const struct note *n);
void coord_warn(struct coord *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void coord_end(struct coord *c, int status, const struct reason *why); /* status 0: done */
void coord_finish(struct coord *c);                                    /* what is left to do before the end */
void coord_over(struct coord *c);
void coord_oom(struct coord *c);

/* coord_members.c */
struct coord_peer *coord_find(const struct coord *c,
                              const struct key *key); /* the newest incarnation, admitted or not; NULL */
void coord_on_join(struct coord *c, const struct key *key, const struct msg *m);
void coord_on_link(struct coord *c, const struct key *key, bool up, const char *text);
void coord_on_profile(struct coord *c, struct coord_peer *p, struct msg *m);
void coord_send_view(struct coord *c, struct coord_peer *p);
void coord_lost(struct coord *c, struct coord_peer *p, enum note_peer_state state, const char *text);
void coord_check_silence(struct coord *c);
uint32_t coord_admitted(const struct coord *c);
void coord_peer_free(struct coord_peer *p);

/* coord_plan.c */
void coord_try_plan(struct coord *c);
void coord_connect(struct coord *c); /* what is still missing before the plan can be sent */
void coord_on_link_report(struct coord *c, struct coord_peer *p, const struct msg_link *l);
void coord_check_parted(struct coord *c);
void coord_on_ready(struct coord *c, struct coord_peer *p, const struct msg_ready *r);
void coord_send_plan(struct coord *c, struct coord_peer *p);
void coord_forget_plan(struct coord *c);
void coord_say_plan(struct coord *c);
bool coord_can_spare(struct coord *c, struct coord_peer *p); /* the others cover the model without it */
/* A set of peers that need links between them, and what they report of those. */
struct coord_mesh {
    uint32_t n;
    struct coord_peer **peers;
    bool *up, *failed; /* [i * n + j] */
};
bool coord_mesh_linked(const struct coord_mesh *m);
void coord_order_dials(struct coord *c, const struct coord_mesh *m);
uint32_t coord_fleet(struct coord *c, struct coord_peer **ret); /* who a plan can count on, in the plan's order */

/* coord_next.c */
int coord_next_announce(struct coord *c, struct plan *plan, bool joins, struct reason *why); /* takes the plan */
void coord_next_cancel(struct coord *c);
void coord_next_tick(struct coord *c);
void coord_next_link(struct coord *c, const struct coord_peer *p, const struct msg_link *l);
void coord_next_ready(struct coord *c, struct coord_peer *p, const struct msg_ready *r);
bool coord_next_wait(struct coord *c);    /* the commit waits a moment for who joins */
bool coord_next_due(struct coord *c);     /* the commit of the present step names the next plan */
void coord_next_send(struct coord *c);    /* that commit, to who is new in it */
void coord_next_install(struct coord *c); /* it is in force */
bool coord_is_joining(const struct coord *c, const struct coord_peer *p);

/* coord_replan.c */
void coord_replan_due(struct coord *c);
void coord_replan(struct coord *c); /* if it is time to */
int coord_remember_forced(struct coord *c);
void coord_on_joining(struct coord *c, struct coord_peer *p);     /* its heartbeat is new */
void coord_take_join_snapshot(struct coord *c, uint64_t version); /* the commit that is about to be told asks for it */
void coord_drop_join_snapshot(struct coord *c);
void coord_shun(struct coord *c, struct coord_peer *p, const char *why);

bool coord_covered(const struct coord *c, uint32_t *ret_unit); /* the admitted holders together have every unit */

/* coord_step.c */
void coord_begin_run(struct coord *c);
bool coord_alloc_run(struct coord *c); /* what steps need besides the plan; false: out of memory */
void coord_send_commit(struct coord *c, struct coord_peer *p);
void coord_on_done(struct coord *c, struct coord_peer *p, const struct msg_done *d);
void coord_resend_step(struct coord *c);
void coord_resend_commit(struct coord *c); /* to who missed it */
void coord_free_step(struct coord *c);

void coord_try_finish(struct coord *c); /* commits the step if nothing is missing */
void coord_progress(struct coord *c);   /* something of the step got done */

void coord_send_changed(struct coord *c); /* leases that are not as their peers were told */

/* coord_release.c */
bool coord_alive(const struct coord *c, uint32_t plan_peer);
uint32_t coord_release(struct coord *c, uint32_t gone); /* of plan peer gone; how many leases went to others */

/* coord_reduce.c */
void coord_start_reduces(struct coord *c); /* of groups that became ready */
void coord_resend_reduces(struct coord *c);
void coord_on_reduced(struct coord *c, struct coord_peer *p, const struct msg_reduced *r);

/* coord_rollback.c */
void coord_rollback(struct coord *c);
uint32_t coord_wanted(const struct coord *c); /* peers that a plan is waited for */

/* coord_save.c */
void coord_send_snapshot(struct coord *c, struct coord_peer *p, uint64_t version, bool drop);
void coord_start_saving(struct coord *c); /* of the present version; the snapshot is asked for by message */
void coord_saving_snapshots_due(struct coord *c, uint64_t version); /* by a commit that carries the request */
void coord_on_snapshot_taken(struct coord *c, struct coord_peer *p, const struct msg_snapshot_taken *s);
void coord_on_state_chunk(struct coord *c, const struct key *from, const struct msg *m);
void coord_on_state_get(struct coord *c, const struct key *from, const struct msg *m);
void coord_on_saved(struct coord *c, const struct coord_event *e);
void coord_saving_tick(struct coord *c);
void coord_abort_saving(struct coord *c);

#endif
