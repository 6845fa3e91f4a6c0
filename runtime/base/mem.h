/* Memory: every allocation of Shoal's own code goes through here, so that sizes are checked for overflow and tests can
 * make the n-th allocation fail. Allocations are 64-byte aligned (a cache line, an AVX-512 vector). Any thread. */
#ifndef SHOAL_RUNTIME_BASE_MEM_H
#define SHOAL_RUNTIME_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n bytes, uninitialised; n = 0 gives a valid pointer. NULL when out of memory. Free with mem_free. */
void *mem_alloc(size_t n) __attribute__((warn_unused_result));

/* n * size bytes, zeroed; NULL when out of memory or the product overflows. */
void *mem_calloc(size_t n, size_t size) __attribute__((warn_unused_result));

/* Grows or shrinks p (from these functions or NULL), whose first old_n * size bytes are kept. NULL on failure: p stays
 * valid. */
void *mem_resize(void *p, size_t old_n, size_t new_n, size_t size) __attribute__((warn_unused_result));

/* A copy of the n bytes at p / of the string s. */
void *mem_dup(const void *p, size_t n) __attribute__((warn_unused_result));
char *mem_strdup(const char *s) __attribute__((warn_unused_result));

/* NULL is fine. Always returns NULL: p = mem_free(p). */
void *mem_free(void *p);

/* false if a * b overflows, else *ret = a * b. */
bool size_mul(size_t a, size_t b, size_t *ret);

/* Fault injection for tests: after `after` more successful allocations in this thread, the next one fails (once). -1
 * turns it off. mem_fault_hit tells whether the fault was delivered since it was set. */
void mem_fault_set(int64_t after);
bool mem_fault_hit(void);

/* Physical memory now available to this process in bytes (cgroup limit respected), 0 if unknown. */
uint64_t mem_available_bytes(void);

/* Of that, what a job may have: a fifth stays free. */
uint64_t mem_offer_bytes(void);

static inline void mem_freep(void *pp)
{
    mem_free(*(void **)pp);
}
#define cleanup_(fn) __attribute__((cleanup(fn)))
#define cleanup_mem_ cleanup_(mem_freep)
#define TAKE_PTR(p)                                                                                                    \
    (__extension__({                                                                                                   \
        __typeof__(p) take_ = (p);                                                                                     \
        (p) = NULL;                                                                                                    \
        take_;                                                                                                         \
    }))

#endif
