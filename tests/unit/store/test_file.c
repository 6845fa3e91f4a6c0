/* Files and folders: what is written is read back, a failed write changes nothing, locks exclude. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/store/temp_dir.h"

static void join_puts_one_slash(void **state)
{
    (void)state;
    const struct {
        const char *dir, *name, *want;
    } cases[] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {NULL, "b", "b"}, {"/", "b", "/b"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cleanup_mem_ char *got = file_join(cases[i].dir, cases[i].name);

        assert_string_equal(got, cases[i].want);
    }
}

static void write_then_read_gives_the_same_bytes(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "f");
    cleanup_mem_ char *first = NULL, *second = NULL;
    size_t n;
    struct stat st;

    assert_int_equal(file_write(path, "a\0b", 3, 0600, NULL), 0);
    assert_int_equal(file_read(path, 3, &first, &n, NULL), 0);
    assert_int_equal(n, 3);
    assert_memory_equal(first, "a\0b", 4); /* and the NUL behind */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);

    assert_int_equal(file_write(path, "", 0, 0644, NULL), 0); /* replaces */
    assert_int_equal(file_read(path, 0, &second, &n, NULL), 0);
    assert_int_equal(n, 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

static void read_refuses_what_is_too_big_or_no_file(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "f"), *none = file_join(*state, "none");
    char *data = NULL;
    struct reason why = {0};

    assert_int_equal(file_write(path, "1234", 4, 0600, NULL), 0);
    assert_int_equal(file_read(path, 3, &data, NULL, &why), -E_TOOBIG);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(file_read(none, 3, &data, NULL, NULL), -E_NOENT);
    assert_int_equal(file_read(*state, 3, &data, NULL, NULL), -E_INVAL);
    assert_null(data);
}

static void failed_write_leaves_nothing_behind(void **state)
{
    cleanup_mem_ char *folder = file_join(*state, "d"), *inside = file_join(folder, "x");
    char **names;
    size_t n;

    /* A folder cannot be replaced by a file. */
    assert_int_equal(file_make_dirs(folder, NULL), 0);
    assert_int_equal(file_write(inside, "x", 1, 0600, NULL), 0);
    assert_true(file_write(folder, "y", 1, 0600, NULL) < 0);
    assert_int_equal(file_list(*state, &names, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "d");
    file_names_free(names, n);
    assert_true(file_exists(inside));
}

static void write_survives_each_failing_allocation(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "f");
    int r;

    for (int64_t i = 0;; i++) {
        mem_fault_set(i);
        r = file_write(path, "x", 1, 0600, NULL);
        if (!mem_fault_hit())
            break;
        assert_int_equal(r, -E_NOMEM);
        assert_false(file_exists(path));
    }
    mem_fault_set(-1);
    assert_int_equal(r, 0);
}

static void make_dirs_makes_all_and_is_idempotent(void **state)
{
    cleanup_mem_ char *deep = file_join(*state, "a/b//c/"), *file = file_join(*state, "f");

    assert_int_equal(file_make_dirs(deep, NULL), 0);
    assert_int_equal(file_make_dirs(deep, NULL), 0);
    assert_true(file_exists(deep));
    assert_int_equal(file_write(file, "", 0, 0600, NULL), 0);
    assert_int_equal(file_make_dirs(file, NULL), -E_EXIST);
    assert_int_equal(file_sync_dir(deep, NULL), 0);
    assert_int_equal(file_sync_dir(file, NULL), -E_NOENT);
}

static void list_is_sorted(void **state)
{
    const char *want[] = {".x", "a", "b"};
    char **names;
    size_t n;

    for (size_t i = 3; i-- > 0;) {
        cleanup_mem_ char *path = file_join(*state, want[i]);

        assert_int_equal(file_write(path, "", 0, 0600, NULL), 0);
    }
    assert_int_equal(file_list(*state, &names, &n, NULL), 0);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(names[i], want[i]);
    file_names_free(names, n);
}

static void remove_tree_does_not_follow_links(void **state)
{
    cleanup_mem_ char *kept = file_join(*state, "kept"), *tree = file_join(*state, "tree/inner");
    cleanup_mem_ char *link = file_join(*state, "tree/inner/link"), *top = file_join(*state, "tree");
    cleanup_mem_ char *inside = file_join(kept, "f");

    assert_int_equal(file_make_dirs(kept, NULL), 0);
    assert_int_equal(file_make_dirs(tree, NULL), 0);
    assert_int_equal(file_write(inside, "x", 1, 0600, NULL), 0);
    assert_int_equal(symlink(kept, link), 0);
    assert_int_equal(file_remove_tree(top, NULL), 0);
    assert_false(file_exists(top));
    assert_true(file_exists(inside));
    assert_int_equal(file_remove_tree(top, NULL), 0);
}

static void second_lock_is_refused_until_the_first_is_gone(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "lock");
    struct file_lock *a = NULL, *b = NULL;
    struct reason why = {0};

    assert_int_equal(file_lock(path, &a, NULL), 0);
    assert_int_equal(file_lock(path, &b, &why), -E_AGAIN);
    assert_null(b);
    assert_non_null(strstr(why.text, path));
    a = file_unlock(a);
    assert_int_equal(file_lock(path, &b, NULL), 0);
    file_unlock(b);
    assert_null(file_unlock(NULL));
}

#define in_folder(f) cmocka_unit_test_setup_teardown(f, temp_dir_make, temp_dir_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(join_puts_one_slash),
        in_folder(write_then_read_gives_the_same_bytes),
        in_folder(read_refuses_what_is_too_big_or_no_file),
        in_folder(failed_write_leaves_nothing_behind),
        in_folder(write_survives_each_failing_allocation),
        in_folder(make_dirs_makes_all_and_is_idempotent),
        in_folder(list_is_sorted),
        in_folder(remove_tree_does_not_follow_links),
        in_folder(second_lock_is_refused_until_the_first_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
