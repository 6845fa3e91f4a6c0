/* What the control groups (v1 and v2) of this process leave it of memory and CPU time. Not affinity and not the
 * machine's own memory: mem.h and pool.h combine those. Reads files on every call; any thread. */
#ifndef SHOAL_RUNTIME_BASE_CGROUP_H
#define SHOAL_RUNTIME_BASE_CGROUP_H

#include <stdint.h>

/* Where the kernel tells: membership lists our groups ("0::/path", "4:memory:/path"), mount is their file tree. */
struct cgroup_where {
    const char *membership; /* /proc/self/cgroup */
    const char *mount;      /* /sys/fs/cgroup */
};
extern const struct cgroup_where cgroup_here;

/* Bytes left under the tightest memory limit of our groups and their parents; file cache that the kernel would drop
 * first counts as free. UINT64_MAX when there is no limit or nothing could be read. */
uint64_t cgroup_memory_left(const struct cgroup_where *where);

/* CPUs' worth of time under the tightest quota, 1.5 for 150 ms each 100 ms; 0 when there is no quota. */
double cgroup_cpu_quota(const struct cgroup_where *where);

#endif
