/* The cluster's insides, shared by its files: cluster.c (time, events, deeds), wire.c (the network), shell_coord.c and
 * shell_worker.c (the processes around the engines), check.c (what is checked and told), hostile.c (random messages).
 */
#ifndef SHOAL_SIM_CLUSTER_IMPL_H
#define SHOAL_SIM_CLUSTER_IMPL_H

#include "peer/worker.h"
#include "runtime/base/rng.h"
#include "scheduler/coord.h"
#include "sim/cluster.h"

#define NODES_MAX (CLUSTER_WORKERS_MAX + 1)

#define TRACE_LINES    50
#define TRACE_LINE_LEN 160

enum lane { LANE_LOBBY, LANE_CONTROL, LANE_BULK, LANES };

enum event_kind {
    EVENT_TICK,    /* to */
    EVENT_MESSAGE, /* from, to, lane, head, body */
    EVENT_LINK,    /* to sees its link to from up or down (flag) */
    EVENT_TASK,    /* to: its device's first task is done */
    EVENT_SAVED,   /* the checkpoint in memory is complete */
    EVENT_HOSTILE, /* to: says something random */
    EVENT_DEED,    /* deed, from, to */
};

struct event {
    int64_t at;
    uint64_t sequence; /* breaks ties: events of one time in the order in which they were planned */
    enum event_kind kind;
    enum cluster_deed deed;
    uint32_t from, to;
    enum lane lane;
    bool flag;
    struct blob *head, *body;
};

/* A worker's process; node 0 uses key, alive and over only. */
struct node {
    struct key_pair key;
    uint64_t incarnation;
    bool started, alive, over;
    bool removed; /* the coordinator said that it is dead or left: what it computed is lost, or redone */
    int status;
    struct reason why;

    struct worker *worker;
    struct device *device;
    struct worker_update update;
    struct task **tasks; /* at the device, in order */
    uint32_t n_tasks, cap_tasks;
    uint64_t term, version, epoch, n_forwards;
    bool welcomed, leaving;
    int64_t asked_at;    /* JOIN or LEAVE was last sent */
    int64_t orphaned_at; /* the coordinator was lost, 0 = it is there */
};

struct pending_deed { /* cluster_when */
    uint64_t version;
    int64_t after;
    enum cluster_deed deed;
    uint32_t a, b;
};

struct cluster {
    struct cluster_config config;
    struct model *model;
    struct rng rng, hostile_rng;
    int64_t now;
    uint64_t n_events, n_messages;

    struct event *heap;
    uint32_t n_heap, cap_heap;
    struct pending_deed pending[16];
    uint32_t n_pending;

    uint32_t n_nodes;
    struct node nodes[NODES_MAX];
    bool linked[NODES_MAX][NODES_MAX], cut[NODES_MAX][NODES_MAX];
    int64_t last_delivery[NODES_MAX][NODES_MAX][LANES];

    struct coord *coord;
    struct coord_update update;
    struct key admitted[NODES_MAX];
    uint32_t n_admitted, joiner; /* joiner: the node whose JOIN is being answered */
    uint64_t term;
    struct cluster_checkpoint *storing, *saved;
    struct coord_save saving;

    /* check.c */
    uint64_t most_committed; /* before any rollback */
    uint64_t epoch;          /* of the newest plan; work for older ones counts no more */
    bool rolled_back;        /* the checkpoint to read from is the saved one */
    uint8_t *computed;       /* [M * n_units] of the step being trained: the node whose backward counts, 0 = none yet */
    uint64_t committed;
    int64_t committed_at; /* the newest step; 0 = none of this lineage */
    struct cluster_result result;
    struct reason broken; /* the first check that failed */
    char trace[TRACE_LINES][TRACE_LINE_LEN];
    uint64_t n_trace;
    char trace_text[TRACE_LINES * TRACE_LINE_LEN];
};

/* cluster.c */
struct event *cluster_plan_event(struct cluster *c, int64_t at, enum event_kind kind, uint32_t from, uint32_t to);
void cluster_deed(struct cluster *c, enum cluster_deed deed, uint32_t a, uint32_t b);

/* wire.c */
uint32_t wire_find(const struct cluster *c, uint32_t from, const struct key *key); /* NODES_MAX = nobody */
void wire_send(struct cluster *c, uint32_t from, uint32_t to, struct msg *m);
void wire_link(struct cluster *c, uint32_t a, uint32_t b, bool up, int64_t delay); /* both will see it */

/* shell_coord.c */
int shell_coord_start(struct cluster *c);
void shell_coord_message(struct cluster *c, uint32_t from, struct msg *m, enum lane lane);
void shell_coord_link(struct cluster *c, uint32_t from, bool up);
void shell_coord_event(struct cluster *c, struct coord_event *e);
void shell_coord_saved(struct cluster *c);

/* shell_worker.c */
int shell_worker_start(struct cluster *c, uint32_t i);
void shell_worker_tick(struct cluster *c, uint32_t i);
void shell_worker_message(struct cluster *c, uint32_t from, uint32_t i, struct msg *m);
void shell_worker_link(struct cluster *c, uint32_t i, uint32_t from, bool up);
void shell_worker_task(struct cluster *c, uint32_t i);
void shell_worker_leave(struct cluster *c, uint32_t i);

/* check.c */
void check_fail(struct cluster *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void check_backward(struct cluster *c, uint32_t i, const struct task *t);
void check_commit(struct cluster *c, const struct msg_commit *k);
void check_apply(struct cluster *c, uint32_t i, const struct task *t);
void check_worker(struct cluster *c, uint32_t i);
void check_note(void *cluster, const struct note *n);
void trace_line(struct cluster *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* hostile.c */
void hostile_say(struct cluster *c, uint32_t i);

#endif
