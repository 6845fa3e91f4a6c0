/* What an engine wants done after an event: messages to send and tasks to run, in order. Filled by engines, emptied by
 * the shell around them (a process, or a test). Running out of memory is remembered here and ends the shell's loop, so
 * that engines need not unwind. */
#ifndef SHOAL_PARALLEL_EFFECTS_H
#define SHOAL_PARALLEL_EFFECTS_H

#include <stdbool.h>
#include <stdint.h>

#include "crypto/key.h"
#include "parallel/proto.h"
#include "parallel/task.h"

struct effects_send {
    struct key to;
    struct msg *msg; /* owned */
};

struct effects {
    struct effects_send *sends;
    uint32_t n_sends, cap_sends;
    struct task **tasks; /* owned */
    uint32_t n_tasks, cap_tasks;
    bool oom;
};

void effects_done(struct effects *fx); /* frees all, also what was not taken */
void effects_clear(
    struct effects *fx); /* forgets what the shell has taken over: the shell owns every msg and task by then */

/* Both take over the pointer, NULL (out of memory) included. */
void effects_send(struct effects *fx, const struct key *to, struct msg *msg);
void effects_task(struct effects *fx, struct task *task);

#endif
