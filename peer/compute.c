/* The compute thread: tasks in, tasks out, and the rest that a throttled peer takes between them. What a task does is
 * in the other compute files. Tasks run one at a time in the order they were submitted and come out in that order.
 *
 * Queueing never fails and never blocks: a task carries its own link, and the engines bound how many there are. */
#include "peer/compute.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kernels/registry.h"
#include "peer/compute_impl.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

/* A rest shorter than this is saved up: the scheduler could not keep it. */
#define REST_MIN_NS NS_PER_MS

static void tasks_push(struct compute_tasks *list, struct task *t)
{
    t->next = NULL;
    if (list->last)
        list->last->next = t;
    else
        list->first = t;
    list->last = t;
}

static struct task *tasks_pop(struct compute_tasks *list)
{
    struct task *t = list->first;

    if (!t)
        return NULL;
    list->first = t->next;
    if (!list->first)
        list->last = NULL;
    t->next = NULL;
    return t;
}

int compute_finish(struct compute *c, int r)
{
    int synced = c->kern.backend->sync(c->kern.ctx);

    return r < 0 ? r : synced;
}

bool compute_on_host(const struct compute *c)
{
    return c->kern.backend->host_memory != 0;
}

int compute_to_blob(struct compute *c, const void *mem, size_t n_bytes, struct blob **ret)
{
    struct blob *b;
    int r = blob_new(n_bytes, &b);

    if (r < 0)
        return r;
    r = c->kern.backend->copy(c->kern.ctx, b->data, mem, n_bytes, KERN_DEVICE_TO_HOST);
    if (r < 0) {
        blob_unref(b);
        return r;
    }
    *ret = b;
    return 0;
}

static int run_task(struct compute *c, struct task *t)
{
    static int (*const run[TASK_KINDS])(struct compute *, struct task *) = {
        [TASK_SETUP] = compute_setup,
        [TASK_STATE_WRITE] = compute_state_write,
        [TASK_FORWARD] = compute_forward,
        [TASK_BACKWARD] = compute_backward,
        [TASK_PARTIAL] = compute_partial,
        [TASK_SUM] = compute_sum,
        [TASK_STORE] = compute_store,
        [TASK_STORED] = compute_stored,
        [TASK_DIGEST] = compute_digest,
        [TASK_APPLY] = compute_apply,
        [TASK_REPLAY] = compute_replay,
        [TASK_SNAPSHOT] = compute_snapshot,
        [TASK_SNAPSHOT_READ] = compute_snapshot_read,
        [TASK_SNAPSHOT_DROP] = compute_snapshot_drop,
    };

    assert((unsigned)t->kind < TASK_KINDS && run[t->kind]);
    if (!c->params && t->kind != TASK_SETUP && t->kind != TASK_SNAPSHOT_READ && t->kind != TASK_SNAPSHOT_DROP)
        return reason_set(&t->why, -E_INVAL, "no plan is set up");
    int r = compute_finish(c, run[t->kind](c, t));

    if (r < 0 && t->why.text[0] == '\0')
        reason_set(&t->why, r, "device %s: %s", c->kern.backend->name, status_text(r));
    return r;
}

/* Sleeps off what is owed for busy_ns of work, unless the compute is being freed. */
static void rest(struct compute *c, int64_t busy_ns)
{
    if (c->config.speed >= 1)
        return;
    c->rest_ns += (int64_t)((double)busy_ns * (1 / c->config.speed - 1));
    if (c->rest_ns < REST_MIN_NS)
        return;
    const int64_t begin = clock_now_ns(), until = begin + c->rest_ns;
    const struct timespec at = {.tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S};

    pthread_mutex_lock(&c->lock);
    while (!c->stopping && clock_now_ns() < until) /* a submitted task wakes us too */
        pthread_cond_timedwait(&c->wake, &c->lock, &at);
    pthread_mutex_unlock(&c->lock);
    c->rest_ns -= clock_now_ns() - begin;
}

/* The next task, waited for; NULL when the compute is being freed. */
static struct task *next_task(struct compute *c)
{
    struct task *t = NULL;

    pthread_mutex_lock(&c->lock);
    while (!c->stopping && !c->todo.first)
        pthread_cond_wait(&c->wake, &c->lock);
    if (!c->stopping)
        t = tasks_pop(&c->todo);
    pthread_mutex_unlock(&c->lock);
    return t;
}

static void hand_back(struct compute *c, struct task *t)
{
    pthread_mutex_lock(&c->lock);
    if (!c->done.first) {
        int r = eventfd_write(c->fd, 1);

        assert(r == 0);
        (void)r;
    }
    tasks_push(&c->done, t);
    pthread_mutex_unlock(&c->lock);
}

static void *compute_main(void *arg)
{
    struct compute *c = arg;
    struct task *t;

    while ((t = next_task(c))) {
        const int64_t begin = clock_now_ns();

        t->status = run_task(c, t);
        t->busy_ns = clock_now_ns() - begin;
        /* The result comes after the rest: a throttled device looks like a slower one, not like one with pauses. */
        rest(c, t->busy_ns);
        hand_back(c, t);
    }
    return NULL;
}

/* Opens the device and asks what it is. */
static int open_device(struct compute *c, struct reason *why)
{
    int r = kern_open(c->config.device, c->config.n_threads, &c->kern, why);

    if (r < 0)
        return r;
    const char *colon = c->config.device ? strchr(c->config.device, ':') : NULL;
    const size_t index = colon ? (size_t)strtoul(colon + 1, NULL, 10) : 0;
    struct kern_device *all = mem_calloc(index + 1, sizeof *all);

    if (!all)
        return reason_set(why, -E_NOMEM, "out of memory for the list of devices");
    r = c->kern.backend->devices(all, index + 1);
    if (r >= 0)
        c->device = all[index];
    mem_free(all);
    if (r >= 0)
        r = kern_fingerprint(&c->kern, c->fingerprint);
    return r < 0 ? reason_set(why, r, "device %s: %s", c->kern.backend->name, status_text(r)) : 0;
}

static int start_thread(struct compute *c, struct reason *why)
{
    pthread_condattr_t attr;

    c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->fd < 0)
        return reason_set(why, -E_IO, "no file descriptor for the compute thread");
    /* None of these fails on Linux with default attributes and a known clock. */
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&c->thread, NULL, compute_main, c) != 0) {
        pthread_cond_destroy(&c->wake);
        pthread_mutex_destroy(&c->lock);
        close(c->fd);
        return reason_set(why, -E_AGAIN, "no thread for the device");
    }
    pthread_setname_np(c->thread, "compute");
    return 0;
}

int compute_new(const struct compute_config *config, struct compute **ret, struct reason *why)
{
    assert(config->model && config->n_threads >= 1 && config->speed > 0 && config->speed <= 1);
    struct compute *c = mem_calloc(1, sizeof *c);

    if (!c)
        return reason_set(why, -E_NOMEM, "out of memory for the device's thread");
    c->config = *config;
    c->model = config->model;
    int r = open_device(c, why);

    c->config.device = NULL; /* the caller's text may go */
    if (r == 0)
        r = start_thread(c, why);
    if (r < 0) {
        kern_close(&c->kern);
        mem_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

struct compute *compute_free(struct compute *c)
{
    struct task *t;

    if (!c)
        return NULL;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    while ((t = tasks_pop(&c->todo)))
        task_free(t);
    while ((t = tasks_pop(&c->done)))
        task_free(t);
    compute_plan_clear(c);
    compute_snapshots_done(c);
    kern_close(&c->kern);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    close(c->fd);
    return mem_free(c);
}

void compute_submit(struct compute *c, struct task *t)
{
    assert(t && !t->out);
    pthread_mutex_lock(&c->lock);
    c->begun = true;
    tasks_push(&c->todo, t);
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

struct task *compute_take(struct compute *c)
{
    pthread_mutex_lock(&c->lock);
    struct task *t = tasks_pop(&c->done);

    if (t && !c->done.first) {
        eventfd_t value;
        int r = eventfd_read(c->fd, &value);

        assert(r == 0 && value == 1); /* else somebody read the descriptor */
        (void)r;
    }
    pthread_mutex_unlock(&c->lock);
    return t;
}

int compute_fd(const struct compute *c)
{
    return c->fd;
}

const struct kern_device *compute_device(const struct compute *c)
{
    return &c->device;
}

const char *compute_fingerprint(const struct compute *c)
{
    return c->fingerprint;
}
