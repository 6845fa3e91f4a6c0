/* Memory: aligned allocation with overflow checks and fault injection. Not an arena and not accounting. Invariant:
 * every pointer handed out is 64-byte aligned and may be passed to mem_free; a failed call changes nothing. */
#include "runtime/base/mem.h"

#include "runtime/base/cgroup.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

static _Thread_local int64_t fault_after = -1;
static _Thread_local bool fault_hit;

void mem_fault_set(int64_t after)
{
    assert(after >= -1);
    fault_after = after;
    fault_hit = false;
}

bool mem_fault_hit(void)
{
    return fault_hit;
}

static bool fault_due(void)
{
    if (fault_after < 0)
        return false;
    if (fault_after-- > 0)
        return false;
    fault_hit = true;
    return true;
}

bool size_mul(size_t a, size_t b, size_t *ret)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret = product;
    return true;
}

void *mem_alloc(size_t n)
{
    if (fault_due())
        return NULL;
    /* More than PTRDIFF_MAX is no object in C, and sanitizers abort on it instead of returning NULL. */
    if (n > PTRDIFF_MAX - ALIGN)
        return NULL;
    void *p;
    if (posix_memalign(&p, ALIGN, n ? n : 1) != 0)
        return NULL;
    return p;
}

void *mem_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (!size_mul(n, size, &bytes))
        return NULL;
    void *p = mem_alloc(bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void *mem_resize(void *p, size_t old_n, size_t new_n, size_t size)
{
    assert(p || old_n == 0);
    size_t old_bytes;
    size_t new_bytes;
    if (!size_mul(new_n, size, &new_bytes))
        return NULL;
    bool ok = size_mul(old_n, size, &old_bytes);
    assert(ok); /* p was allocated with this size */

    /* realloc keeps no alignment beyond max_align_t, so this copies. */
    void *fresh = mem_alloc(new_bytes);
    if (!fresh)
        return NULL;
    if (p) {
        memcpy(fresh, p, old_bytes < new_bytes ? old_bytes : new_bytes);
        mem_free(p);
    }
    return fresh;
}

void *mem_dup(const void *p, size_t n)
{
    assert(p || n == 0);
    void *copy = mem_alloc(n);
    if (copy && n > 0)
        memcpy(copy, p, n);
    return copy;
}

char *mem_strdup(const char *s)
{
    assert(s);
    return mem_dup(s, strlen(s) + 1);
}

void *mem_free(void *p)
{
    free(p);
    return NULL;
}

uint64_t mem_available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return 0;
    char line[256];
    uint64_t kib = 0;
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    fclose(f);

    uint64_t machine = kib * 1024;
    uint64_t group = cgroup_memory_left(&cgroup_here);
    return group < machine ? group : machine;
}

uint64_t mem_offer_bytes(void)
{
    return mem_available_bytes() / 10 * 8;
}
