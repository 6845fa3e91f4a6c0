/* Worker threads for data-parallel loops. Not a task queue. Kernels call pool_run thousands of times a second for tens
 * of microseconds each, so a run costs its caller a few atomic operations, and a worker that is not awake in time is
 * not waited for.
 *
 * All hand-over goes through one word, the door: (run number, open?, workers inside). The caller writes the job, then
 * opens the door; a worker enters by counting itself in while the door is open, takes parts until none is left, and
 * counts itself out. The caller, when no part is left, shuts the door and waits until nobody is inside. Invariant: the
 * job's fields change only while the door is shut and nobody is inside. */
#include "runtime/base/pool.h"

#include "runtime/base/cgroup.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/status.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define DOOR_INSIDE UINT64_C(0x7FFFFFFF) /* number of workers inside */
#define DOOR_OPEN   UINT64_C(0x80000000)
#define DOOR_RUN    32 /* shift of the run number */

/* How long a thread that waits stays awake before it sleeps: about what a futex sleep and wake-up cost. */
#define SPIN_NS (30 * NS_PER_US)

struct pool {
    /* The job: written by the caller while the door is shut and nobody is inside. */
    void (*fn)(void *arg, size_t part);
    void *arg;
    size_t n_parts;
    bool spin; /* false when there are more threads than CPUs: then a spinning one only delays a working one */
    int n_threads;

    _Alignas(64) _Atomic uint64_t door;
    _Alignas(64) _Atomic size_t next; /* first part that nobody has taken */

    _Alignas(64) pthread_mutex_t lock; /* only for sleeping and waking */
    pthread_cond_t wake;               /* workers: the door opened, or stop */
    pthread_cond_t quiet;              /* the caller: nobody is inside */
    _Atomic int sleepers;
    _Atomic bool caller_sleeps;
    _Atomic bool stop;

    pthread_t threads[];
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until ready(p, arg) or, false, until spinning no longer pays. The second half gives the CPU away between looks,
 * so that whoever we wait for can run where we spin. */
static bool spin_until(struct pool *p, bool (*ready)(struct pool *p, uint32_t arg), uint32_t arg)
{
    if (ready(p, arg))
        return true;
    if (!p->spin)
        return false;
    int64_t start = clock_now_ns();
    int64_t waited;
    while ((waited = clock_now_ns() - start) < SPIN_NS) {
        for (int i = 0; i < 16; i++) {
            if (ready(p, arg))
                return true;
            cpu_relax();
        }
        if (waited > SPIN_NS / 2)
            sched_yield();
    }
    return false;
}

static bool door_opened(struct pool *p, uint32_t last_run)
{
    uint64_t door = atomic_load(&p->door);
    return ((door & DOOR_OPEN) && (uint32_t)(door >> DOOR_RUN) != last_run) || atomic_load(&p->stop);
}

static bool nobody_inside(struct pool *p, uint32_t unused)
{
    (void)unused;
    return (atomic_load(&p->door) & DOOR_INSIDE) == 0;
}

static void take_parts(struct pool *p)
{
    size_t part;
    while ((part = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n_parts)
        p->fn(p->arg, part);
}

/* Enters if the door is open; ret_run is set to the run entered. */
static bool enter(struct pool *p, uint32_t *ret_run)
{
    uint64_t door = atomic_load(&p->door);
    while (door & DOOR_OPEN) {
        if (atomic_compare_exchange_weak(&p->door, &door, door + 1)) {
            *ret_run = (uint32_t)(door >> DOOR_RUN);
            return true;
        }
    }
    return false;
}

static void leave(struct pool *p)
{
    uint64_t door = atomic_fetch_sub(&p->door, 1) - 1;
    /* Sequentially consistent on both sides: either we see that the caller sleeps, or it sees that nobody is inside. */
    if ((door & (DOOR_INSIDE | DOOR_OPEN)) == 0 && atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->quiet);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *worker_main(void *arg)
{
    struct pool *p = arg;
    uint32_t last_run = 0;
    while (!atomic_load(&p->stop)) {
        if (!spin_until(p, door_opened, last_run)) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->sleepers, 1);
            while (!door_opened(p, last_run))
                pthread_cond_wait(&p->wake, &p->lock);
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->lock);
        }
        if (enter(p, &last_run)) {
            take_parts(p);
            leave(p);
        }
    }
    return NULL;
}

/* Starts thread i with every signal blocked: signals are the main thread's business. */
static int start_worker(struct pool *p, int i)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&p->threads[i], NULL, worker_main, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

int pool_new(int n_threads, struct pool **ret)
{
    assert(n_threads >= 1);
    struct pool *p = mem_calloc(1, sizeof(*p) + (size_t)(n_threads - 1) * sizeof(p->threads[0]));
    if (!p)
        return -E_NOMEM;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->quiet, NULL);
    p->spin = n_threads <= pool_cpus();
    p->n_threads = 1;
    for (int i = 0; i < n_threads - 1; i++) {
        int r = start_worker(p, i);
        if (r != 0) {
            pool_free(p);
            return r == ENOMEM ? -E_NOMEM : -E_AGAIN;
        }
        p->n_threads++;
    }
    *ret = p;
    return 0;
}

struct pool *pool_free(struct pool *p)
{
    if (!p)
        return NULL;
    assert(!(atomic_load(&p->door) & DOOR_OPEN));
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads - 1; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->quiet);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    return mem_free(p);
}

int pool_threads(const struct pool *p)
{
    return p ? p->n_threads : 1;
}

/* Wakes as many sleeping workers as there are parts for them. */
static void wake_workers(struct pool *p)
{
    int sleepers = atomic_load(&p->sleepers);
    if (sleepers == 0)
        return;
    size_t wanted = p->n_parts - 1;
    pthread_mutex_lock(&p->lock);
    if (wanted < (size_t)sleepers)
        while (wanted-- > 0)
            pthread_cond_signal(&p->wake);
    else
        pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void wait_quiet(struct pool *p)
{
    if (spin_until(p, nobody_inside, 0))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, true);
    while (!nobody_inside(p, 0))
        pthread_cond_wait(&p->quiet, &p->lock);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, size_t n_parts, void (*fn)(void *arg, size_t part), void *arg)
{
    if (!p || p->n_threads == 1 || n_parts <= 1) {
        for (size_t part = 0; part < n_parts; part++)
            fn(arg, part);
        return;
    }
    uint64_t door = atomic_load(&p->door);
    assert((door & (DOOR_OPEN | DOOR_INSIDE)) == 0); /* one run at a time, none from within a part */

    p->fn = fn;
    p->arg = arg;
    p->n_parts = n_parts;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    uint32_t run = (uint32_t)(door >> DOOR_RUN) + 1;
    atomic_store(&p->door, (uint64_t)run << DOOR_RUN | DOOR_OPEN);
    wake_workers(p);

    take_parts(p);
    atomic_fetch_and(&p->door, ~DOOR_OPEN);
    wait_quiet(p);
}

int pool_cpus(void)
{
    int cpus = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cpus = CPU_COUNT(&set);
    if (cpus < 1) {
        /* More CPUs than a cpu_set_t holds. */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        cpus = online < 1 ? 1 : (int)online;
    }
    double quota = cgroup_cpu_quota(&cgroup_here);
    if (quota > 0 && quota < cpus)
        cpus = quota < 1 ? 1 : (int)floor(quota);
    return cpus;
}
