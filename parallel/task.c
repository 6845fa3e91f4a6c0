/* Making and freeing tasks. What a task means to a device is peer/compute.c's business. */
#include "parallel/task.h"

#include "runtime/base/mem.h"

static const char *const names[TASK_KINDS] = {
    [TASK_SETUP] = "SETUP",
    [TASK_STATE_WRITE] = "STATE_WRITE",
    [TASK_FORWARD] = "FORWARD",
    [TASK_BACKWARD] = "BACKWARD",
    [TASK_PARTIAL] = "PARTIAL",
    [TASK_SUM] = "SUM",
    [TASK_STORE] = "STORE",
    [TASK_STORED] = "STORED",
    [TASK_DIGEST] = "DIGEST",
    [TASK_APPLY] = "APPLY",
    [TASK_REPLAY] = "REPLAY",
    [TASK_SNAPSHOT] = "SNAPSHOT",
    [TASK_SNAPSHOT_READ] = "SNAPSHOT_READ",
    [TASK_SNAPSHOT_DROP] = "SNAPSHOT_DROP",
};

const char *task_name(enum task_kind kind)
{
    return (unsigned)kind < TASK_KINDS ? names[kind] : "?";
}

struct task *task_new(enum task_kind kind)
{
    struct task *t = mem_calloc(1, sizeof *t);

    if (t) {
        t->kind = kind;
        t->slot = TASK_NO_SLOT;
    }
    return t;
}

struct task *task_free(struct task *t)
{
    if (!t)
        return NULL;
    blob_unref(t->in);
    blob_unref(t->tokens);
    blob_unref(t->targets);
    blob_unref(t->out);
    for (uint32_t i = 0; i < t->n_parts; i++)
        blob_unref(t->parts[i]);
    mem_free(t->parts);
    mem_free(t->sum_squares);
    mem_free(t->digest_tensors);
    mem_free(t->digests);
    if (t->plan)
        plan_done(t->plan);
    mem_free(t->plan);
    return mem_free(t);
}
