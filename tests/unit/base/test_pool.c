/* The worker pool: every part once, on any number of threads, at any rate; idle workers sleep. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/pool.h"
#include "runtime/base/status.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PARTS 1000

struct job {
    uint32_t times[PARTS]; /* each written by the one thread that has the part: a race here is a bug TSan names */
    _Atomic uint64_t sum;
};

static void count_part(void *arg, size_t part)
{
    struct job *j = arg;
    j->times[part]++;
    atomic_fetch_add(&j->sum, part);
}

static void every_part_runs_once(void **state)
{
    (void)state;
    const size_t n_parts[] = {0, 1, 2, 3, 17, PARTS};
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *p = NULL;
        assert_int_equal(pool_new(threads, &p), 0);
        assert_int_equal(pool_threads(p), threads);
        for (size_t k = 0; k < sizeof(n_parts) / sizeof(n_parts[0]); k++) {
            struct job j = {0};
            pool_run(p, n_parts[k], count_part, &j);
            for (size_t i = 0; i < PARTS; i++)
                assert_int_equal(j.times[i], i < n_parts[k]);
        }
        assert_null(pool_free(p));
    }
}

static void no_pool_runs_on_the_caller(void **state)
{
    (void)state;
    struct job j = {0};
    pool_run(NULL, PARTS, count_part, &j);
    assert_true(j.sum == (uint64_t)PARTS * (PARTS - 1) / 2);
    assert_int_equal(pool_threads(NULL), 1);
    assert_null(pool_free(NULL));
}

static void short_runs_back_to_back_never_mix(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 4; threads++) {
        struct pool *p = NULL;
        assert_int_equal(pool_new(threads, &p), 0);
        for (size_t run = 0; run < 5000; run++) {
            struct job j = {0};
            size_t n = 1 + run % 9;
            pool_run(p, n, count_part, &j);
            assert_true(j.sum == n * (n - 1) / 2);
        }
        pool_free(p);
    }
}

/* The other threads of this process that are not asleep, from the kernel's own word. */
static int threads_awake(void)
{
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    int awake = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char path[sizeof(e->d_name) + 32];
        char line[512];
        snprintf(path, sizeof(path), "/proc/self/task/%s/stat", e->d_name);
        FILE *f = e->d_name[0] == '.' || atol(e->d_name) == syscall(SYS_gettid) ? NULL : fopen(path, "r");
        if (!f)
            continue;
        const char *name_end = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
        awake += !name_end || name_end[2] != 'S';
        fclose(f);
    }
    closedir(d);
    return awake;
}

static void wait_until_all_sleep(void)
{
    int64_t deadline = clock_now_ns() + 10 * NS_PER_S;
    while (threads_awake() > 0) {
        assert_true(clock_now_ns() < deadline);
        sched_yield();
    }
}

struct meeting {
    _Atomic int there;
    int wanted;
    _Atomic int missed;
};

/* Holds the part until as many threads are inside as wanted. */
static void meet(void *arg, size_t part)
{
    (void)part;
    struct meeting *m = arg;
    int64_t deadline = clock_now_ns() + 10 * NS_PER_S;
    atomic_fetch_add(&m->there, 1);
    while (atomic_load(&m->there) < m->wanted) {
        if (clock_now_ns() > deadline) {
            atomic_fetch_add(&m->missed, 1);
            return;
        }
        sched_yield();
    }
}

static void idle_workers_sleep_and_all_wake_for_the_next_run(void **state)
{
    (void)state;
    struct pool *p = NULL;
    assert_int_equal(pool_new(4, &p), 0);
    for (int round = 0; round < 20; round++) {
        wait_until_all_sleep();
        struct meeting m = {.wanted = 4};
        pool_run(p, 4, meet, &m);
        assert_int_equal(m.missed, 0);
    }
    pool_free(p);
}

static void fewer_parts_than_sleepers_wake_enough_workers(void **state)
{
    (void)state;
    struct pool *p = NULL;
    assert_int_equal(pool_new(4, &p), 0);
    for (int round = 0; round < 20; round++) {
        wait_until_all_sleep();
        struct meeting m = {.wanted = 2};
        pool_run(p, 2, meet, &m);
        assert_int_equal(m.missed, 0);
    }
    pool_free(p);
}

struct uneven {
    pthread_t caller;
    _Atomic int worker_has_one, worker_done;
};

/* A worker's part lasts far longer than the caller spins. */
static void keep_the_worker_long(void *arg, size_t part)
{
    (void)part;
    struct uneven *u = arg;
    int64_t deadline = clock_now_ns() + 10 * NS_PER_S;
    if (pthread_equal(pthread_self(), u->caller)) {
        while (!atomic_load(&u->worker_has_one) && clock_now_ns() < deadline)
            sched_yield();
        return;
    }
    atomic_store(&u->worker_has_one, 1);
    while (clock_now_ns() < deadline - 10 * NS_PER_S + 3 * NS_PER_MS)
        sched_yield();
    atomic_fetch_add(&u->worker_done, 1);
}

static void run_returns_only_when_the_slowest_part_is_done(void **state)
{
    (void)state;
    struct pool *p = NULL;
    assert_int_equal(pool_new(2, &p), 0);
    for (int round = 0; round < 10; round++) {
        struct uneven u = {.caller = pthread_self()};
        pool_run(p, 2, keep_the_worker_long, &u);
        assert_int_equal(u.worker_done, 1);
    }
    pool_free(p);
}

static void out_of_memory_starts_nothing(void **state)
{
    (void)state;
    struct pool *p = NULL;
    mem_fault_set(0);
    assert_int_equal(pool_new(2, &p), -E_NOMEM);
    assert_null(p);
    mem_fault_set(-1);
}

static void cpus_respect_affinity(void **state)
{
    (void)state;
    cpu_set_t old, one;
    assert_true(pool_cpus() >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof(old), &old), 0);
    assert_true(pool_cpus() <= CPU_COUNT(&old));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &old)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    int cpus = pool_cpus();
    assert_int_equal(sched_setaffinity(0, sizeof(old), &old), 0);
    assert_int_equal(cpus, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_once),
        cmocka_unit_test(no_pool_runs_on_the_caller),
        cmocka_unit_test(short_runs_back_to_back_never_mix),
        cmocka_unit_test(idle_workers_sleep_and_all_wake_for_the_next_run),
        cmocka_unit_test(fewer_parts_than_sleepers_wake_enough_workers),
        cmocka_unit_test(run_returns_only_when_the_slowest_part_is_done),
        cmocka_unit_test(out_of_memory_starts_nothing),
        cmocka_unit_test(cpus_respect_affinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
