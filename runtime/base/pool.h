/* A pool of worker threads for data-parallel loops. How the work is cut into parts is the caller's choice and must
 * depend on shapes only, never on the number of threads: results then do not depend on it either. */
#ifndef SHOAL_RUNTIME_BASE_POOL_H
#define SHOAL_RUNTIME_BASE_POOL_H

#include <stddef.h>

struct pool;

/* n_threads >= 1 counts the caller: n_threads - 1 threads are started. -E_NOMEM, -E_AGAIN (no more threads). */
int pool_new(int n_threads, struct pool **ret);
struct pool *pool_free(struct pool *p); /* NULL ok; returns NULL; no pool_run may be under way */
int pool_threads(const struct pool *p); /* NULL counts as 1 */

/* Runs fn(arg, part) for part = 0..n_parts-1, in any order on any thread, the caller's included; returns when all are
 * done. p may be NULL (all on the caller). One pool_run at a time per pool; fn must not call pool_run on the same pool.
 */
void pool_run(struct pool *p, size_t n_parts, void (*fn)(void *arg, size_t part), void *arg);

/* Number of CPUs this process may use (affinity and cgroup quota respected), at least 1. */
int pool_cpus(void);

#endif
