/* The worker: a peer's side of the protocol as a pure engine (design 3, 5). Messages, finished tasks and the time come
 * in as events; messages to send and tasks for the device go out. It calls no clock, no socket, no thread.
 *
 * It keeps these: a train lease is run forward once and backward once; nothing of a step is applied before its commit;
 * what belongs to no lease, attempt or version yet is held, what contradicts them is dropped and counted. */
#ifndef SHOAL_PEER_WORKER_H
#define SHOAL_PEER_WORKER_H

#include "model/model.h"
#include "parallel/effects.h"

struct worker;

struct worker_config {
    const struct model *model; /* outlives the worker */
    bool exact;                /* the job's reduction */
    struct key self, coordinator;
};

enum worker_event_kind {
    WORKER_MESSAGE,   /* from, msg */
    WORKER_TASK_DONE, /* task */
    WORKER_TICK,      /* at least every 50 ms */
};

struct worker_event {
    enum worker_event_kind kind;
    int64_t now; /* monotonic, ns */
    struct key from;
    struct msg *msg;   /* moved in */
    struct task *task; /* moved in, with results */
};

struct worker_update {
    struct effects fx; /* the shell empties it after every step */
    bool over;         /* nothing more to do: leave with this status and sentence */
    int status;        /* 0: the job is done */
    struct reason why;
};

struct worker_stats {
    uint64_t version, epoch;
    bool ready;
    const bool *held_units; /* [n_units], the worker's */
    uint32_t leases_open;
    uint64_t dropped;      /* messages that contradicted what is known */
    double fetch_progress; /* < 0: not fetching */
};

int worker_new(const struct worker_config *config, struct worker **ret);
struct worker *worker_free(struct worker *w); /* NULL ok; returns NULL */

/* Takes one event; appends to update->fx. Never fails: what goes wrong ends in update->over. */
void worker_step(struct worker *w, const struct worker_event *event, struct worker_update *update);

void worker_stats(const struct worker *w, struct worker_stats *ret);

/* The messages that travel on the bulk channel; all others go on control. */
bool worker_bulk(enum msg_type type);

#endif
