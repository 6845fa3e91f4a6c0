/* run.json: what a run's folder remembers between the coordinator's lives: its term, and what its invites hold. Until
 * the ledger, this is where a new term is written before anything else happens. */
#ifndef SHOAL_SCHEDULER_RUNFILE_H
#define SHOAL_SCHEDULER_RUNFILE_H

#include "crypto/invite.h"
#include "runtime/base/status.h"

struct runfile {
    uint64_t term;
    uint8_t job_id[INVITE_JOB_ID_BYTES];
    uint8_t capability[INVITE_CAPABILITY_BYTES];
};

/* Reads dir/run.json or begins a new one, counts the term up by one, and writes it back (mode 0600) before returning.
 */
int runfile_begin_term(const char *dir, struct runfile *ret, struct reason *why);

#endif
