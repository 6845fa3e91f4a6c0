/* The plan: which peer holds which units and takes which share of the microbatches. The scheduler writes it, everyone
 * else reads it. A value: it can be validated, printed, read from a file, sent. Nothing here measures or decides.
 *
 * Written as stages: consecutive spans that cover all units, each with its holders. That is general: a peer whose span
 * is longer than a stage is a holder of several neighbouring stages, and a route merges neighbouring stages of one peer
 * into one lease. */
#ifndef SHOAL_PARALLEL_PLAN_H
#define SHOAL_PARALLEL_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "crypto/key.h"
#include "model/model.h"
#include "runtime/base/status.h"

struct plan_peer {
    struct key key;
    uint64_t incarnation;
};

struct plan_holder {
    uint32_t peer;    /* index into peers */
    uint32_t weight;  /* share of the stage's microbatches in proportion to the stage's sum of weights; 0 = shadow */
    uint32_t joining; /* 1: it gets the stage's state while the plan is in force, and is no holder yet; weight 0 */
};

struct plan_stage {
    uint32_t u0, u1;       /* units [u0, u1) */
    uint32_t first_holder; /* holders[first_holder .. first_holder + n_holders) */
    uint32_t n_holders;
};

struct plan {
    uint64_t epoch;
    uint32_t n_units;
    uint32_t n_peers, n_stages, n_holders;
    struct plan_peer *peers;
    struct plan_stage *stages;
    struct plan_holder *holders;
    uint32_t in_flight;       /* microbatches that one holder of unit 0 may have begun and not finished */
    double predicted_seconds; /* of one step; 0 = not predicted */
};

#define PLAN_WEIGHT_MAX 1000000u

void plan_done(struct plan *p); /* zeroed ok */
int plan_copy(const struct plan *p, struct plan *ret);

/* Every rule a plan must keep: stages cover [0, n_units) in order without gap, each has a holder with weight > 0, peers
 * are distinct and in range, no peer twice in a stage, every peer holds something, in_flight >= 1, sizes within bounds.
 * -E_INVAL with the rule and the place. */
int plan_validate(const struct plan *p, uint32_t n_units, struct reason *why);

/* A table for people, one line a stage; names[i] (may be NULL) is what peer i is called. mem_free. */
int plan_print(const struct plan *p, const char *const *names, char **ret);

/* Reads a forced plan: lines `units A-B: PEER[*WEIGHT] PEER...` with peers numbered from 0 in order of joining (0
 * first), `in-flight N`, # comments. keys of peers are left zero for the caller to fill in (n_peers tells how many
 * there are). -E_CONFIG with line and reason. */
int plan_parse(const char *text, uint32_t n_units, struct plan *ret, struct reason *why);

/* The stage that holds unit u. */
uint32_t plan_stage_of(const struct plan *p, uint32_t u);
/* The index of key among the plan's peers, or -E_NOENT. */
int plan_find(const struct plan *p, const struct key *key);
/* held[u] = whether peer holds unit u, or is getting it; held has n_units entries. */
void plan_held(const struct plan *p, uint32_t peer, bool *held);
/* held[u] = whether peer holds unit u from the plan's first step on. */
void plan_current(const struct plan *p, uint32_t peer, bool *held);
/* Whether peer holds something from the plan's first step on: who does not only listens. */
bool plan_counts(const struct plan *p, uint32_t peer);

/* A group: tensors with the same set of holders, of whom the same ones are joining, reduced together, laid one after
 * another in one flat range of elements. Both sides derive the groups from (plan, model) and get the same. */
struct plan_group {
    uint32_t n_tensors;
    uint32_t *tensors; /* ascending */
    int64_t *offsets;  /* of each tensor in the flat range */
    int64_t n_elems;
    uint32_t n_members;
    uint32_t *members; /* peers, ascending */
    bool *joining;     /* per member: it gets these tensors' state, and what is reduced, and is not waited for */
};

struct plan_groups {
    uint32_t n;
    struct plan_group *groups; /* in order of their first tensor */
};

int plan_groups(const struct plan *p, const struct model *m, struct plan_groups *ret);
void plan_groups_done(struct plan_groups *g);

#endif
