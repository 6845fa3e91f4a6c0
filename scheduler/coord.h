/* The coordinator as a pure engine (design 3, 5, 7): members, view, plan, leases, reduces, commits, checkpoints. Joins,
 * messages, link changes and the time come in as events; messages, notes for people and requests to its shell go out.
 * It moves no activations and no gradients.
 *
 * It keeps these: a (microbatch, unit) of a step is leased to one peer; a step commits when every group's members
 * report the same sums, and once; what was told is never contradicted. When a peer is lost its work goes to others who
 * hold its units, or the run goes back to the last checkpoint; when one comes, it joins while the others train. */
#ifndef SHOAL_SCHEDULER_COORD_H
#define SHOAL_SCHEDULER_COORD_H

#include "crypto/invite.h"
#include "model/model.h"
#include "parallel/effects.h"
#include "runtime/base/jsonw.h"
#include "scheduler/note.h"

struct coord;

struct coord_config {
    const struct job *job;      /* outlives the engine */
    const struct model *model;  /* outlives the engine */
    const struct key_pair *key; /* outlives the engine; signs views */
    struct blob *job_text;      /* body of WELCOME; referenced */
    const char *plan_text;      /* forced plan or NULL; outlives the engine */
    const struct key *order;    /* [n_order] these peers are numbered first, in this order; outlives the engine */
    uint32_t n_order;
    uint8_t job_id[INVITE_JOB_ID_BYTES];
    uint8_t capability[INVITE_CAPABILITY_BYTES];
    uint64_t term;
    uint64_t stop_after;                   /* steps to run to, <= job->train.steps */
    uint64_t start_version, start_updates; /* of the checkpoint resumed from; 0, 0 for a fresh run */
    double start_loss;
    bool resumed; /* peers fetch their state from the coordinator's checkpoint */
    uint16_t control_port, bulk_port;
    int64_t dead_ns; /* silence or a lost link for this long is death; 0 = default */
};

enum coord_event_kind {
    COORD_JOIN,      /* key (curve-checked by the shell), msg: on the lobby */
    COORD_MESSAGE,   /* key, msg */
    COORD_LINK,      /* key, up, text */
    COORD_EXITED,    /* key, text: a local peer's process ended */
    COORD_TASK_DONE, /* task: a SNAPSHOT_READ or STATE_WRITE that the shell has done */
    COORD_SAVED,     /* status, text: path, or why not; hash */
    COORD_STOP,      /* the user wants to stop */
    COORD_TICK,      /* at least every 50 ms */
};

struct coord_event {
    enum coord_event_kind kind;
    int64_t now;
    struct key key;
    struct msg *msg;   /* moved in */
    struct task *task; /* moved in */
    bool up;
    int status;
    const char *text;
};

/* A checkpoint that is complete in the shell's memory and wants writing. */
struct coord_save {
    uint64_t version, updates;
    double loss;
    uint8_t hash[HASH_BYTES]; /* model hash (design 6) */
};

struct coord_update {
    struct effects fx; /* sends; tasks: STATE_WRITE (store a fetched piece), SNAPSHOT_READ (from the checkpoint resumed
                          from), both for the shell */
    note_fn note;      /* called during coord_step; strings valid during the call */
    void *note_arg;
    bool view_changed; /* admit coord_view_keys from now on */
    bool save;         /* write what was stored: answer with COORD_SAVED */
    struct coord_save save_what;
    bool rollback; /* SNAPSHOT_READs are from the saved checkpoint of rollback_version from now on */
    uint64_t rollback_version;
    bool over; /* the run has ended with this status */
    int status;
    struct reason why;
};

int coord_new(const struct coord_config *config, struct coord **ret);
struct coord *coord_free(struct coord *c); /* NULL ok; returns NULL */

void coord_step(struct coord *c, const struct coord_event *event, struct coord_update *update);

/* Identity keys of the admitted peers. Returns the number; ret has room for PEERS_MAX. */
uint32_t coord_view_keys(const struct coord *c, struct key *ret);

/* Adds the run's state to an open JSON object: step, loss, speed, plan, and per peer what it is and does. */
void coord_status(const struct coord *c, struct jsonw *w);

/* Whether a message of this type goes out on the lobby socket. */
bool coord_on_lobby(enum msg_type type);

#endif
