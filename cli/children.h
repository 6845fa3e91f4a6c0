/* The local peers of `shoal train`: processes of this same program, started, watched and ended. None outlives its
 * parent: each is ended and reaped by children_free, and killed by the kernel if the parent dies first.
 *
 * children_start, children_free on one thread; `exited` is called on the watching thread. */
#ifndef SHOAL_CLI_CHILDREN_H
#define SHOAL_CLI_CHILDREN_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/status.h"

struct children;

struct children_config {
    const char *program; /* what to exec */
    size_t n;
    char *const *const *argv;    /* [n] NULL-terminated argument lists */
    const char *const *log_path; /* [n] files for output and errors; NULL = those of the parent */
    /* Child i has ended before children_free: text says how ("killed by signal 9 (Killed)"), and after a failure what
     * it last said. Valid during the call. */
    void (*exited)(void *arg, size_t i, const char *text);
    void *arg;
};

/* Everything in config is used during the call only, but for exited and arg. -E_NOMEM, -E_IO; on failure nothing runs.
 */
int children_start(const struct children_config *config, struct children **ret, struct reason *why);

/* No `exited` is called any more once this returns. */
void children_hush(struct children *c);

/* children_hush, then waits up to wait_ms for the children to end by themselves, then SIGTERM and 2 s, then SIGKILL.
 * NULL ok; returns NULL. */
struct children *children_free(struct children *c, int wait_ms);

#endif
