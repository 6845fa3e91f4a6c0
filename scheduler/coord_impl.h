/* The coordinator engine's insides, shared by its files only: coord.c (events, ticks, the end), coord_members.c
 * (joining, view, links, death), coord_plan.c (plan and set-up), coord_step.c (leases, commits), coord_reduce.c,
 * coord_save.c (checkpoints, state for resuming), coord_status.c. */
#ifndef SHOAL_SCHEDULER_COORD_IMPL_H
#define SHOAL_SCHEDULER_COORD_IMPL_H

#include "parallel/fetch.h"
#include "scheduler/coord.h"
#include "scheduler/routes.h"

#define COORD_RESEND_NS (1000 * INT64_C(1000000)) /* an answer that is missing for this long is asked for again */

enum coord_phase {
    COORD_GATHER,   /* waiting for enough measured peers */
    COORD_CONNECT,  /* plan made; views acknowledged and links up come next */
    COORD_SETUP,    /* plan sent; holders get their state ready */
    COORD_REATTACH, /* started again: the plan is in force, its holders come back and say what they hold */
    COORD_RUN,
    COORD_STALLED, /* a unit has no holder; a checkpoint is being written that the run will go back to */
    COORD_ENDING,  /* last commit done or run given up: a last checkpoint, then over */
    COORD_OVER,
};

struct coord_peer {
    struct msg_join join;
    bool restored;   /* it was admitted by a coordinator before this one, */
    bool back;       /* and was linked to this one */
    bool recorded;   /* the ledger has it as a member, */
    uint64_t number; /* under this key */
    bool admitted;   /* in the view; false = dead or left */
    bool linked;     /* its control and bulk links to us are up */
    bool seen;       /* it was linked once: from then on it is in the view that others get */
    bool profiled, ready, leaving;
    uint64_t view_acked, ready_epoch;
    struct msg_heartbeat heartbeat;
    int64_t heard_at, unlinked_at;
    int64_t asked_at, told_at; /* view or plan, commit or leases were last sent */
    uint64_t memory_bytes;
    double *forward_s, *backward_s;
    uint32_t plan_peer; /* UINT32_MAX = not in the plan */
};

struct coord_group {
    uint32_t attempt; /* 0 = not started in this step */
    bool complete;
    bool restart; /* the attempt is void: another one starts when the redone work is in */
    uint32_t n_reports;
    bool *reported;                    /* per member */
    struct msg_reduce_member *members; /* [n_members] of the attempt: those of the group that are there */
    uint32_t n_members;
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

/* The ledger's record of what is so at present. */
#define COORD_STATE_FORMAT 1
#define COORD_STATE_U64S   9
struct coord_state {
    uint64_t lineage, version, updates, view, epoch;
    bool begun;    /* the plan of that epoch is in force, its holders have their state */
    bool regather; /* the run went back to a checkpoint: it goes on with whoever is there */
    double loss;
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
    int64_t connect_asked_at, connect_began_at;
    int64_t parted_at; /* since when some two holders have no link during the run, 0 = all have */

    uint64_t lineage;          /* how often the run went back */
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
    struct reason exited_why; /* how the last local peer to end did; empty = none has */
    int64_t too_few_said_at;
    int64_t regather_until; /* after a rollback; 0 = there was none */
    int64_t ending_since, waiting_said_at, heartbeat_at, ticked_at;

    struct coord_state recorded;
    bool has_recorded;
    uint64_t n_members; /* the highest key of a member's record */
    uint64_t restart_view;
    bool goes_back; /* the ledger knows of steps that are done again */
    bool awake;     /* an event came */

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
void coord_bye(struct coord *c, const struct coord_peer *p, enum msg_bye_code code, const char *text);
void coord_let_go(struct coord *c, struct coord_peer *p, const char *text); /* it leaves politely */
void coord_oom(struct coord *c);
/* Whoever starts local peers starts no others: waiting for them would be for ever. */
void coord_check_exited(struct coord *c);

/* coord_members.c */
#define COORD_NAME_MAX (KEY_SHORT_LEN + NAME_MAX_LEN + 12)
void coord_name(const struct coord_peer *p, char ret[COORD_NAME_MAX]); /* "peer 1a2b3c4d (box)" */
struct coord_peer *coord_find(const struct coord *c,
                              const struct key *key); /* the newest incarnation, admitted or not; NULL */
struct coord_peer *coord_add_peer(struct coord *c, const struct msg_join *join); /* NULL when out of memory */
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
struct msg *coord_plan_msg(struct coord *c); /* NULL when out of memory */
void coord_forget_plan(struct coord *c);
bool coord_alloc_plan(struct coord *c);                        /* what a plan needs besides; false when out of memory */
bool coord_can_spare(struct coord *c, struct coord_peer *p);   /* the others cover the model without it */
bool coord_covered(const struct coord *c, uint32_t *ret_unit); /* the admitted holders together have every unit */

/* coord_step.c */
void coord_begin_run(struct coord *c);
void coord_start_steps(struct coord *c); /* with the present version's, under the plan in force */
bool coord_alloc_run(struct coord *c);   /* what a run needs besides the plan; false when out of memory */
void coord_on_done(struct coord *c, struct coord_peer *p, const struct msg_done *d);
void coord_resend_step(struct coord *c);
void coord_resend_commit(struct coord *c); /* to who missed it */
void coord_tell_commit(struct coord *c, struct coord_peer *p);
void coord_free_step(struct coord *c);
struct msg *coord_commit_msg(struct coord *c); /* last_commit; NULL when out of memory */

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
void coord_start_again(struct coord *c);      /* at the configuration's version, in a new lineage */
uint32_t coord_wanted(const struct coord *c); /* peers that a plan is waited for */

/* coord_restore.c: from the configuration's records. -E_CORRUPT, -E_NOMEM. */
int coord_restore(struct coord *c);

/* coord_reattach.c */
void coord_first_event(struct coord *c); /* there is a clock now */
void coord_reattach(struct coord *c);
void coord_reattach_heard(struct coord *c, struct coord_peer *p); /* by heartbeat */

/* coord_record.c */
void coord_record_changes(struct coord *c); /* of members, plan and state since it was last called */
void coord_record_commit(struct coord *c);  /* last_commit */
void coord_record_point(struct coord *c, enum coord_record_kind kind, uint64_t key, const struct coord_save *what);
uint64_t coord_history_key(uint64_t lineage, uint64_t step);
void coord_put_u64s(const uint64_t *from, uint32_t n, uint8_t *to);

/* coord_save.c */
void coord_start_saving(struct coord *c); /* of the present version; the snapshot is asked for by message */
void coord_saving_snapshots_due(struct coord *c, uint64_t version); /* by a commit that carries the request */
void coord_on_snapshot_taken(struct coord *c, struct coord_peer *p, const struct msg_snapshot_taken *s);
void coord_on_state_chunk(struct coord *c, const struct key *from, const struct msg *m);
void coord_on_state_get(struct coord *c, const struct key *from, const struct msg *m);
void coord_on_saved(struct coord *c, const struct coord_event *e);
void coord_saving_tick(struct coord *c);
void coord_abort_saving(struct coord *c);

#endif
