/* What the simulation's tests share: a tiny job, running one cluster and saying which seed failed. */
#ifndef SHOAL_TESTS_SIM_RIG_H
#define SHOAL_TESTS_SIM_RIG_H

#include "runtime/base/clock.h"
#include "runtime/base/rng.h"
#include "sim/cluster.h"

#define LIMIT_NS (600 * NS_PER_S) /* virtual: no run of these tests may need longer */

/* Two blocks (four units), 8 microbatches, 4 steps, evaluation every 2, a checkpoint at the end. */
struct job rig_job(void);

/* n workers of equal speed that are there from the start, a quiet network. */
struct cluster_config rig_config(const struct job *job, uint32_t n_workers, const char *plan_text);

/* Ways to spread the tiny job. plan NULL: the planner's. */
struct rig_fleet {
    const char *name;
    uint32_t n_workers;
    const char *plan;
    bool replicated; /* whoever dies, the others hold the whole model */
};
#define RIG_FLEETS 12
extern const struct rig_fleet rig_fleets[RIG_FLEETS];

/* Runs a configuration to its end; on a failed check, a time-out or an abort it prints the seed and the last of what
 * happened and fails the test. The caller frees the cluster. before (may be NULL) plans what will happen. */
struct cluster *rig_run(const struct cluster_config *config, void (*before)(struct cluster *c, void *arg), void *arg,
                        struct cluster_result *ret);

/* Runs one quiet worker through the job: the hash every other way must give. */
void rig_expected(const struct job *job, uint8_t ret[HASH_BYTES]);

/* The run must have ended well with this hash. */
void rig_assert_hash(struct cluster *c, const struct cluster_result *r, const uint8_t hash[HASH_BYTES]);

/* Resumes from the checkpoint that r tells of (begins anew if there is none) in the same fleet on a quiet network: the
 * end must be this hash. */
void rig_resume(const struct cluster_config *config, const struct cluster_result *r, const uint8_t hash[HASH_BYTES]);

/* Seeds [0, n), or the one in SHOAL_SIM_SEED; SHOAL_SIM_SEEDS replaces n. */
void rig_seeds(uint64_t n, uint64_t *ret_first, uint64_t *ret_end);

/* What a failed test prints besides: fails. */
void rig_fail(struct cluster *c, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));

#endif
