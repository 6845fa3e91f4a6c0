/* A ledger: small records that survive the death of the process and of the machine, in one SQLite file. A record is a
 * kind (a short word), a key and opaque bytes; who owns a record encodes it. All of sqlite3.h is behind this header.
 *
 * It keeps these: when ledger_commit has returned 0 the transaction is on the disk (WAL, synchronous=FULL); before that
 * nothing of it is; one process at a time has the file open; bytes are given back as they were put or not at all (each
 * record carries its hash). One thread at a time. */
#ifndef SHOAL_RUNTIME_STORE_LEDGER_H
#define SHOAL_RUNTIME_STORE_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/blob.h"
#include "runtime/base/status.h"

#define LEDGER_KIND_MAX_LEN 15                    /* bytes of a kind */
#define LEDGER_KEY_MAX      ((uint64_t)INT64_MAX) /* SQLite's integers are signed */
#define LEDGER_RECORD_MAX   ((size_t)64 << 20)    /* bytes of a record */

struct ledger;

/* Opens the file at path, made (mode 0600) if it is missing. -E_AGAIN: another process has it open; -E_CORRUPT:
 * damaged, or no ledger; -E_VERSION: of a newer Shoal; -E_PERM, -E_NOENT (no such folder), -E_IO, -E_NOMEM. */
int ledger_open(const char *path, struct ledger **ret, struct reason *why);
struct ledger *ledger_close(struct ledger *l); /* an open transaction is forgotten; NULL ok; returns NULL */

/* A transaction: every change is part of one. After a failure of anything in between, ledger_cancel forgets all of it.
 */
int ledger_begin(struct ledger *l, struct reason *why);
int ledger_commit(struct ledger *l, struct reason *why); /* on failure nothing was written */
void ledger_cancel(struct ledger *l);                    /* fine without one */

/* Writes a record, in the place of one with the same kind and key. -E_IO (a full disk), -E_TOOBIG, -E_NOMEM. */
int ledger_put(struct ledger *l, const char *kind, uint64_t key, const void *data, size_t size, struct reason *why);
/* The same for history: -E_EXIST unless the key is above all of that kind. */
int ledger_append(struct ledger *l, const char *kind, uint64_t key, const void *data, size_t size, struct reason *why);
int ledger_remove(struct ledger *l, const char *kind, uint64_t key, struct reason *why); /* none is fine */
/* Removes all records of the kind but the `keep` ones with the highest keys. */
int ledger_prune(struct ledger *l, const char *kind, uint64_t keep, struct reason *why);

/* The record, a new blob. -E_NOENT, -E_CORRUPT, -E_NOMEM. */
int ledger_get(struct ledger *l, const char *kind, uint64_t key, struct blob **ret, struct reason *why);

/* Calls fn for every record of the kind in key order, until it returns other than 0, which is then returned. data is
 * valid during the call; fn changes nothing in the ledger. */
typedef int (*ledger_fn)(void *arg, uint64_t key, const void *data, size_t size);
int ledger_each(struct ledger *l, const char *kind, ledger_fn fn, void *arg, struct reason *why);

#endif
