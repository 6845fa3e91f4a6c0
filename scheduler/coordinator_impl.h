/* The coordinator process's insides, shared by its files only: coordinator.c (the loop), coordinator_open.c (starting
 * and freeing). */
#ifndef SHOAL_SCHEDULER_COORDINATOR_IMPL_H
#define SHOAL_SCHEDULER_COORDINATOR_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "model/checkpoint.h"
#include "model/data.h"
#include "parallel/wire.h"
#include "runtime/store/file.h"
#include "scheduler/coord.h"
#include "scheduler/coordinator.h"
#include "scheduler/runfile.h"
#include "scheduler/saver.h"

#define COORDINATOR_EXITED_MAX    64
#define COORDINATOR_ROLLBACKS_MAX 1024

struct exited {
    struct key key;
    char text[TEXT_MAX_LEN + 1];
};

struct coordinator {
    struct coordinator_config config;
    struct runfile run;
    struct file_lock *lock;
    struct model *model;
    struct data *data;
    struct checkpoint *checkpoint; /* resumed from or gone back to, NULL for a fresh run */
    struct checkpoint
        *checkpoints[COORDINATOR_ROLLBACKS_MAX]; /* all that were opened: links may still be sending from them */
    uint32_t n_checkpoints;
    struct blob *job_text;
    char *checkpoints_dir;
    struct wire wire;
    struct coord *engine;
    struct coord_update update;
    struct saver *saver;
    char invite[INVITE_TEXT_MAX + 1];

    _Atomic int stops;
    int stops_seen;
    uint32_t n_links; /* of peers, the lobby's not counted */
    pthread_mutex_t exited_lock;
    struct exited exited[COORDINATOR_EXITED_MAX];
    uint32_t n_exited;
};

/* Opens the newest checkpoint of the run; none is fine. */
int coordinator_open_checkpoint(struct coordinator *c, struct reason *why);

#endif
