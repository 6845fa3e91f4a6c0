/* Two growing arrays; see effects.h. */
#include "parallel/effects.h"

#include <assert.h>

#include "runtime/base/mem.h"

void effects_clear(struct effects *fx)
{
    fx->n_sends = 0;
    fx->n_tasks = 0;
}

void effects_done(struct effects *fx)
{
    for (uint32_t i = 0; i < fx->n_sends; i++)
        msg_free(fx->sends[i].msg);
    for (uint32_t i = 0; i < fx->n_tasks; i++)
        task_free(fx->tasks[i]);
    mem_free(fx->sends);
    mem_free(fx->tasks);
    *fx = (struct effects){0};
}

/* Room for one more element; false and oom when there is none. */
static bool grow(struct effects *fx, void **array, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    uint32_t new_cap = *cap ? *cap * 2 : 16;
    void *p = mem_resize(*array, *cap, new_cap, size);

    if (!p) {
        fx->oom = true;
        return false;
    }
    *array = p;
    *cap = new_cap;
    return true;
}

void effects_send(struct effects *fx, const struct key *to, struct msg *msg)
{
    void *array = fx->sends;

    if (!msg || !grow(fx, &array, fx->n_sends, &fx->cap_sends, sizeof *fx->sends)) {
        fx->oom = true;
        msg_free(msg);
        return;
    }
    fx->sends = array;
    fx->sends[fx->n_sends++] = (struct effects_send){*to, msg};
}

void effects_task(struct effects *fx, struct task *task)
{
    void *array = fx->tasks;

    if (!task || !grow(fx, &array, fx->n_tasks, &fx->cap_tasks, sizeof(struct task *))) {
        fx->oom = true;
        task_free(task);
        return;
    }
    fx->tasks = array;
    fx->tasks[fx->n_tasks++] = task;
}
