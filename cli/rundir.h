/* The folder of a run: checkpoints/, what the coordinator remembers (ledger.db, lock), the run's keys (keys/), the logs
 * of local peers (peer-N.log), and while the run goes on its invite (invite, mode 0600), by which `shoal status RUN`
 * and local peers find the coordinator. */
#ifndef SHOAL_CLI_RUNDIR_H
#define SHOAL_CLI_RUNDIR_H

#include <stdbool.h>

#include "crypto/invite.h"
#include "crypto/key.h"
#include "runtime/base/status.h"

/* option, or runs/NAME. mem_free. -E_NOMEM. */
int rundir_path(const char *option, const char *job_name, char **ret, struct reason *why);

/* Where the checkpoints of the run in dir are. mem_free. NULL when out of memory. */
char *rundir_checkpoints(const char *dir);

/* Makes the folder. One that holds checkpoints is refused (-E_EXIST) unless resume (go on from them) or overwrite
 * (remove them; -E_AGAIN while another run goes on there). */
int rundir_prepare(const char *dir, bool resume, bool overwrite, struct reason *why);

/* The key in dir/keys/NAME.key, made where there is none. */
int rundir_key(const char *dir, const char *name, struct key_pair *ret, char **ret_path, struct reason *why);

/* Writes dir/invite for the time of the run. *ret_path (mem_free) is the file. */
int rundir_invite_write(const char *dir, const char *invite, char **ret_path, struct reason *why);

/* An invite as people give it: the text itself, "-" for standard input, a file, or a run's folder. */
int rundir_invite_read(const char *word, struct invite *ret, struct reason *why);

#endif
