/* Files and folders: reading small files whole, writing them so that a crash leaves the old or the new one and never a
 * mixture, and locking. Not for streaming large data (safetensors.h does that). Every failure names the path. Any
 * thread. */
#ifndef SHOAL_RUNTIME_STORE_FILE_H
#define SHOAL_RUNTIME_STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/mem.h"
#include "runtime/base/status.h"

/* dir/name, or name alone when dir is "" or NULL. NULL when out of memory; mem_free. */
/* What helps against errno e, to end a sentence with: "; free some space there", or "". */
const char *file_advice(int e);

char *file_join(const char *dir, const char *name);

/* Reads the whole regular file at path, at most size_max bytes. *ret_data (mem_free) has a NUL behind the last byte,
 * which *ret_size (may be NULL) does not count. -E_NOENT; -E_TOOBIG; -E_INVAL (a folder or device); -E_PERM; -E_IO;
 * -E_NOMEM. */
int file_read(const char *path, size_t size_max, char **ret_data, size_t *ret_size, struct reason *why);

/* Writes size bytes as the file at path with permission bits mode (0600 for secrets): a temporary file beside it,
 * synced, renamed over it, the folder synced. On failure path is as it was. -E_NOENT (no such folder), -E_PERM, -E_IO,
 * -E_NOMEM. */
int file_write(const char *path, const void *data, size_t size, unsigned mode, struct reason *why);

/* Makes the folder path and those above it. A folder that is there already is fine. */
int file_make_dirs(const char *path, struct reason *why);

/* Makes what was renamed, created or removed in the folder path survive a power cut. */
int file_sync_dir(const char *path, struct reason *why);

/* Removes the file or the folder at path with all it holds; symbolic links are removed, not followed. Not being there
 * is fine. */
int file_remove_tree(const char *path, struct reason *why);

bool file_exists(const char *path); /* anything at all, a dangling link too */

/* The names in the folder path without "." and "..", sorted bytewise. *ret is mem_freed with file_names_free. -E_NOENT,
 * -E_IO, -E_NOMEM. */
int file_list(const char *path, char ***ret, size_t *ret_n, struct reason *why);
void file_names_free(char **names, size_t n);

/* An exclusive lock on the file at path (made if missing, left behind afterwards), held until file_unlock or the end of
 * the process. -E_AGAIN: another one holds it. */
struct file_lock;
int file_lock(const char *path, struct file_lock **ret, struct reason *why);
struct file_lock *file_unlock(struct file_lock *l); /* NULL ok; returns NULL */

#endif
