/* The coordinator process's insides, shared by its files only: coordinator.c (the loop), coordinator_open.c (starting
 * and freeing), coordinator_ledger.c (what is written before it is told), coordinator_notes.c. */
#ifndef SHOAL_SCHEDULER_COORDINATOR_IMPL_H
#define SHOAL_SCHEDULER_COORDINATOR_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "model/checkpoint.h"
#include "model/data.h"
#include "parallel/wire.h"
#include "runtime/store/file.h"
#include "runtime/store/ledger.h"
#include "scheduler/coord.h"
#include "scheduler/coordinator.h"
#include "scheduler/saver.h"

#define COORDINATOR_EXITED_MAX    64
#define COORDINATOR_ROLLBACKS_MAX 1024

struct exited {
    struct key key;
    char text[TEXT_MAX_LEN + 1];
};

/* What a run remembers of its coordinators' lives: the ledger's record of its own. */
struct coordinator_life {
    uint64_t term; /* counts the lives */
    uint8_t job_id[INVITE_JOB_ID_BYTES];
    uint8_t capability[INVITE_CAPABILITY_BYTES];
    struct key key;
    uint8_t job_hash[HASH_BYTES]; /* of the job file's text and the seed */
    uint16_t port[NET_CHANNELS];  /* 0 = none yet */
};

struct coordinator {
    struct coordinator_config config;
    struct coordinator_life run;
    struct ledger *ledger;
    bool reattach; /* the peers of the life before may come back */
    struct note *notes;
    uint32_t n_notes, cap_notes;
    struct file_lock *lock;
    struct model *model;
    struct data *data;
    struct checkpoint *checkpoint; /* resumed from or gone back to, NULL for a fresh run */
    struct checkpoint
        *checkpoints[COORDINATOR_ROLLBACKS_MAX]; /* all that were opened: links may still be sending from them */
    uint32_t n_checkpoints;
    char *checkpoint_path; /* of checkpoint, NULL for a fresh run */
    struct reason damaged; /* a newer one that was passed over; empty if there was none */
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

/* Tells the watchers where the run goes on, and what is not as it was when that checkpoint was written. */
void coordinator_say_resumed(struct coordinator *c);

/* coordinator_ledger.c */
int coordinator_begin_term(struct coordinator *c, struct reason *why); /* opens the ledger; the new term is in it */
int coordinator_note_ports(struct coordinator *c, struct reason *why);
int coordinator_load(struct coordinator *c, struct coord_record **ret, uint32_t *ret_n, struct reason *why);
void coordinator_free_records(struct coord_record *records, uint32_t n);
int coordinator_write(struct coordinator *c, struct reason *why); /* the update's records, all or none */

/* coordinator_notes.c */
void coordinator_keep_note(void *coordinator, const struct note *n);
void coordinator_tell_notes(struct coordinator *c);
void coordinator_free_notes(struct coordinator *c);

#endif
