/* Control group limits, read from a made-up tree of files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct tree {
    char root[64];
    char membership[128];
    char mount[128];
    struct cgroup_where where;
};

static void write_file(const char *path, const char *text)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s", path);
    for (char *p = strchr(dir + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        mkdir(dir, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void put(struct tree *t, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", t->mount, name);
    write_file(path, text);
}

static int make_tree(void **state)
{
    static struct tree t;
    strcpy(t.root, "/tmp/shoal-cgroup-XXXXXX");
    if (!mkdtemp(t.root))
        return -1;
    snprintf(t.membership, sizeof(t.membership), "%s/cgroup", t.root);
    snprintf(t.mount, sizeof(t.mount), "%s/fs", t.root);
    t.where = (struct cgroup_where){.membership = t.membership, .mount = t.mount};
    *state = &t;
    return 0;
}

static int remove_tree(void **state)
{
    struct tree *t = *state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", t->root);
    return system(command);
}

static void no_files_mean_no_limits(void **state)
{
    struct tree *t = *state;
    assert_true(cgroup_memory_left(&t->where) == UINT64_MAX);
    assert_true(cgroup_cpu_quota(&t->where) == 0);
    write_file(t->membership, "0::/a/b\n");
    assert_true(cgroup_memory_left(&t->where) == UINT64_MAX);
    assert_true(cgroup_cpu_quota(&t->where) == 0);
}

static void v2_takes_the_tightest_of_group_and_parents(void **state)
{
    struct tree *t = *state;
    write_file(t->membership, "0::/a/b\n");
    put(t, "a/b/memory.max", "max\n");
    put(t, "a/b/memory.current", "1000\n");
    put(t, "a/b/cpu.max", "max 100000\n");
    assert_true(cgroup_memory_left(&t->where) == UINT64_MAX);
    assert_true(cgroup_cpu_quota(&t->where) == 0);

    put(t, "a/memory.max", "10000\n");
    put(t, "a/memory.current", "4000\n");
    put(t, "a/memory.stat", "anon 3500\ninactive_file 500\nactive_file 7\n");
    put(t, "a/cpu.max", "250000 100000\n");
    assert_true(cgroup_memory_left(&t->where) == 6500);
    assert_true(cgroup_cpu_quota(&t->where) == 2.5);

    put(t, "a/b/memory.max", "2000\n");
    put(t, "a/b/cpu.max", "50000 100000\n");
    assert_true(cgroup_memory_left(&t->where) == 1000);
    assert_true(cgroup_cpu_quota(&t->where) == 0.5);
}

static void usage_over_the_limit_leaves_nothing(void **state)
{
    struct tree *t = *state;
    write_file(t->membership, "0::/\n");
    put(t, "memory.max", "1000\n");
    put(t, "memory.current", "1200\n");
    assert_true(cgroup_memory_left(&t->where) == 0);
    put(t, "memory.stat", "inactive_file 5000\n");
    assert_true(cgroup_memory_left(&t->where) == 1000);
}

static void v1_reads_its_controller_of_a_list(void **state)
{
    struct tree *t = *state;
    write_file(t->membership, "9:cpu,cpuacct:/g\n8:cpuset:/other\n4:memory:/g\n1:name=systemd:/g\n");
    put(t, "cpuset/other/cpu.cfs_quota_us", "1\n");
    put(t, "memory/g/memory.limit_in_bytes", "8192\n");
    put(t, "memory/g/memory.usage_in_bytes", "4096\n");
    put(t, "memory/g/memory.stat", "inactive_file 1\ntotal_inactive_file 96\n");
    put(t, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(t, "memory/memory.usage_in_bytes", "9000\n");
    put(t, "cpu,cpuacct/g/cpu.cfs_quota_us", "300000\n");
    put(t, "cpu,cpuacct/g/cpu.cfs_period_us", "100000\n");
    put(t, "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put(t, "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_true(cgroup_memory_left(&t->where) == 4192);
    assert_true(cgroup_cpu_quota(&t->where) == 3);
}

static void host_path_in_a_container_falls_back_to_the_mount(void **state)
{
    struct tree *t = *state;
    write_file(t->membership, "0::/docker/0123456789abcdef\n");
    put(t, "memory.max", "5000\n");
    put(t, "memory.current", "1000\n");
    put(t, "cpu.max", "100000 100000\n");
    assert_true(cgroup_memory_left(&t->where) == 4000);
    assert_true(cgroup_cpu_quota(&t->where) == 1);
}

static void nonsense_is_no_limit(void **state)
{
    struct tree *t = *state;
    write_file(t->membership, "\n::\n0\n0::/x\n");
    put(t, "x/memory.max", "lots\n");
    put(t, "x/memory.current", "");
    put(t, "x/cpu.max", "100000\n");
    assert_true(cgroup_memory_left(&t->where) == UINT64_MAX);
    assert_true(cgroup_cpu_quota(&t->where) == 0);
    put(t, "x/cpu.max", "100000 0\n");
    assert_true(cgroup_cpu_quota(&t->where) == 0);
}

#define IN_TREE(test) cmocka_unit_test_setup_teardown(test, make_tree, remove_tree)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TREE(no_files_mean_no_limits),
        IN_TREE(v2_takes_the_tightest_of_group_and_parents),
        IN_TREE(usage_over_the_limit_leaves_nothing),
        IN_TREE(v1_reads_its_controller_of_a_list),
        IN_TREE(host_path_in_a_container_falls_back_to_the_mount),
        IN_TREE(nonsense_is_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
