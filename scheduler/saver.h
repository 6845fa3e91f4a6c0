/* The coordinator's copy of the state while a checkpoint is made of it, and the thread that writes it, so that syncing
 * a disk never stops the coordinator's heartbeat. One checkpoint at a time. */
#ifndef SHOAL_SCHEDULER_SAVER_H
#define SHOAL_SCHEDULER_SAVER_H

#include "model/checkpoint.h"
#include "parallel/task.h"
#include "scheduler/coord.h"

struct saver;

struct saver_config {
    const struct model *model; /* these outlive the saver */
    const struct job *job;
    const char *job_text;
    const char *dir; /* checkpoints go below it */
    uint64_t data_fingerprint;
    void (*wake)(void *arg); /* called by the writing thread when it is done */
    void *wake_arg;
};

int saver_new(const struct saver_config *config, struct saver **ret);
struct saver *saver_free(struct saver *s); /* waits for a write under way; NULL ok; returns NULL */

/* Puts a fetched piece (STATE_WRITE) in its place. -E_PROTO if it does not fit, -E_NOMEM. Not while a write is under
 * way. */
int saver_store(struct saver *s, const struct task *t);

/* Begins writing what was stored. */
int saver_start(struct saver *s, const struct coord_save *what);

/* Whether a write has ended since the last call: then *ret_status, and *ret_text: the path or why not, valid until the
 * next saver_start. */
bool saver_done(struct saver *s, int *ret_status, const char **ret_text);

#endif
