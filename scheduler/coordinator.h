/* The coordinator's process: sockets, data, checkpoints around the pure engine coord. Owns its thread until the run
 * ends. */
#ifndef SHOAL_SCHEDULER_COORDINATOR_H
#define SHOAL_SCHEDULER_COORDINATOR_H

#include "crypto/invite.h"
#include "crypto/key.h"
#include "model/job.h"
#include "runtime/base/status.h"
#include "scheduler/note.h"

struct coordinator_config {
    const struct job *job; /* steps, peers already overridden by flags */
    const char
        *job_text; /* the file's text, sent to the peers (with the overrides of `job` in force through these fields) */
    const char *run_dir;     /* checkpoints and the ledger live here; made if missing */
    const char *plan_text;   /* a forced plan (plan_parse), NULL = the scheduler decides */
    const struct key *order; /* [n_order] a plan numbers these peers first, in this order, and others as they join;
                                outlives the coordinator */
    uint32_t n_order;
    uint64_t stop_after; /* the run is done after that many committed steps, its schedule still that of the whole job:
                            20 steps, then a resume to 40, equal 40 at once. 0 = job->train.steps; at most that */
    bool resume;         /* with the peers of before, if the coordinator died and they are still there; else from the
                            newest checkpoint in run_dir; without one the run starts at step 0 and says so */
    const struct key_pair *key;
    const char *host; /* address to listen on: "127.0.0.1", "*" */
    uint16_t port;    /* lobby; control and bulk are port + 1 and port + 2; 0 = the kernel's choice for all three */
    bool same_port;   /* a resumed run listens where it did before, whatever port says: its peers look for it there */
    const char *const
        *advertise; /* addresses to put in the invite; n_advertise = 0: those of this machine that fit host */
    uint32_t n_advertise;
    int64_t dead_ns; /* a peer silent for this long is dead, one whose link broke after half of it, whose links all
                        broke after a tenth; 0 = 2 s */
    note_fn note;
    void *note_arg;
};

struct coordinator;

int coordinator_new(const struct coordinator_config *config, struct coordinator **ret, struct reason *why);
struct coordinator *coordinator_free(struct coordinator *c); /* NULL ok */

/* The invite of this run, valid until coordinator_free. */
const char *coordinator_invite(const struct coordinator *c);

/* Runs until the job is done (0), a peer failed (-E_PEER), it was told to stop (-E_CANCELED), or it cannot go on. The
 * last note says which. */
int coordinator_run(struct coordinator *c, struct reason *why);

/* Asks the run to end after a checkpoint of the last committed step; called again: at once, without one. Any thread, or
 * a signal handler's. */
void coordinator_stop(struct coordinator *c);

/* A local peer's process is known to have ended: dead at once, no waiting for heartbeats. Any thread. */
void coordinator_peer_exited(struct coordinator *c, const struct key *key, const char *text);

#endif
