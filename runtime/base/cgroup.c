/* Reading control group limits. Not setting them. Invariant: anything missing or unreadable means "no limit": a wrong
 * guess here may waste a machine, never refuse one.
 *
 * A limit may stand at our group or at any parent, so each is looked at. Inside a container the path in the membership
 * file is often the host's and does not exist below our mount; going up to the mount's root finds the container's own
 * limit then. */
#include "runtime/base/cgroup.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct cgroup_where cgroup_here = {.membership = "/proc/self/cgroup", .mount = "/sys/fs/cgroup"};

#define PATH_TEXT_MAX 4096

/* First line of dir/name. */
static bool read_line(const char *dir, const char *name, char *line, int size)
{
    char path[PATH_TEXT_MAX + 64];
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(line, size, f) != NULL;
    fclose(f);
    return ok;
}

/* A whole number in dir/name; "max" and anything else that is no number is not one. */
static bool read_u64(const char *dir, const char *name, uint64_t *ret)
{
    char line[64];
    return read_line(dir, name, line, sizeof(line)) && sscanf(line, "%" SCNu64, ret) == 1;
}

/* The value of `key` in dir/memory.stat, 0 when absent. */
static uint64_t read_stat(const char *dir, const char *key)
{
    char path[PATH_TEXT_MAX + 64];
    int n = snprintf(path, sizeof(path), "%s/memory.stat", dir);
    if (n < 0 || (size_t)n >= sizeof(path))
        return 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    char word[64];
    uint64_t value;
    uint64_t found = 0;
    while (fscanf(f, "%63s %" SCNu64, word, &value) == 2)
        if (strcmp(word, key) == 0)
            found = value;
    fclose(f);
    return found;
}

/* Whether the comma-separated list has the word. */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',')) {
        if (*p == ',')
            p++;
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    }
    return false;
}

/* Calls look(dir, v2, arg) for each directory that may bound us through `controller`, innermost first. */
static void each_dir(const struct cgroup_where *where, const char *controller,
                     void (*look)(const char *dir, bool v2, void *arg), void *arg)
{
    FILE *f = fopen(where->membership, "re");
    if (!f)
        return;
    char line[PATH_TEXT_MAX];
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        list++;
        bool v2 = *list == '\0';
        if (!v2 && !list_has(list, controller))
            continue;

        char dir[PATH_TEXT_MAX];
        int root = snprintf(dir, sizeof(dir), "%s%s%s", where->mount, v2 ? "" : "/", v2 ? "" : list);
        if (root < 0 || (size_t)root + strlen(path) >= sizeof(dir))
            continue;
        memcpy(dir + root, path, strlen(path) + 1);
        for (;;) {
            look(dir, v2, arg);
            char *slash = strrchr(dir + root, '/');
            if (!slash)
                break;
            *slash = '\0';
        }
    }
    fclose(f);
}

static void look_memory(const char *dir, bool v2, void *arg)
{
    uint64_t *least = arg;
    uint64_t limit;
    uint64_t used;
    if (!read_u64(dir, v2 ? "memory.max" : "memory.limit_in_bytes", &limit))
        return;
    if (!read_u64(dir, v2 ? "memory.current" : "memory.usage_in_bytes", &used))
        return;
    /* v1 writes "no limit" as the largest page multiple below 2^63. */
    if (limit >= UINT64_C(1) << 62)
        return;
    uint64_t cache = read_stat(dir, v2 ? "inactive_file" : "total_inactive_file");
    used -= cache < used ? cache : used;
    uint64_t left = used < limit ? limit - used : 0;
    if (left < *least)
        *least = left;
}

static void look_cpu(const char *dir, bool v2, void *arg)
{
    double *least = arg;
    uint64_t quota;
    uint64_t period;
    if (v2) {
        char line[64];
        if (!read_line(dir, "cpu.max", line, sizeof(line)) ||
            sscanf(line, "%" SCNu64 " %" SCNu64, &quota, &period) != 2)
            return;
    } else {
        /* -1 means no quota. */
        char line[64];
        if (!read_line(dir, "cpu.cfs_quota_us", line, sizeof(line)) || line[0] == '-' ||
            sscanf(line, "%" SCNu64, &quota) != 1 || !read_u64(dir, "cpu.cfs_period_us", &period))
            return;
    }
    if (quota == 0 || period == 0)
        return;
    double cpus = (double)quota / (double)period;
    if (*least == 0 || cpus < *least)
        *least = cpus;
}

uint64_t cgroup_memory_left(const struct cgroup_where *where)
{
    uint64_t least = UINT64_MAX;
    each_dir(where, "memory", look_memory, &least);
    return least;
}

double cgroup_cpu_quota(const struct cgroup_where *where)
{
    double least = 0;
    each_dir(where, "cpu", look_cpu, &least);
    return least;
}
