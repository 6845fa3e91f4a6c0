/* A run's folder: an earlier run's checkpoints are never lost by mistake, and an invite is found wherever it is. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/rundir.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"

static char dir[] = "/tmp/shoal-rundir-XXXXXX";

static int setup(void **state)
{
    (void)state;
    memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
    return key_setup(NULL) == 0 && mkdtemp(dir) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return file_remove_tree(dir, NULL);
}

static void put(const char *name, const char *text)
{
    cleanup_mem_ char *path = file_join(dir, name);
    assert_int_equal(file_write(path, text, strlen(text), 0600, NULL), 0);
}

static bool there(const char *name)
{
    cleanup_mem_ char *path = file_join(dir, name);
    return file_exists(path);
}

static void the_folder_is_named_by_the_job(void **state)
{
    (void)state;
    char *path = NULL;
    assert_int_equal(rundir_path(NULL, "gpt-nano", &path, NULL), 0);
    assert_string_equal(path, "runs/gpt-nano");
    mem_free(path);
    assert_int_equal(rundir_path("elsewhere", "gpt-nano", &path, NULL), 0);
    assert_string_equal(path, "elsewhere");
    mem_free(path);
}

static void overwrite_removes_checkpoints_and_nothing_else(void **state)
{
    (void)state;
    const char *const folders[] = {"checkpoints/step-00000010", "checkpoints/step-00000020", "keys"};
    for (size_t i = 0; i < 3; i++) {
        cleanup_mem_ char *path = file_join(dir, folders[i]);
        assert_int_equal(file_make_dirs(path, NULL), 0);
    }
    put("checkpoints/step-00000010/state.json", "{}");
    put("notes.txt", "mine");
    assert_int_equal(rundir_prepare(dir, false, true, NULL), 0);
    assert_false(there("checkpoints"));
    assert_true(there("keys") && there("notes.txt"));
}

static void a_run_that_goes_on_keeps_its_checkpoints(void **state)
{
    (void)state;
    cleanup_mem_ char *checkpoints = file_join(dir, "checkpoints"), *lock_path = file_join(dir, "lock");
    assert_int_equal(file_make_dirs(checkpoints, NULL), 0);
    struct file_lock *lock = NULL;
    struct reason why = {0};
    assert_int_equal(file_lock(lock_path, &lock, NULL), 0);
    assert_int_equal(rundir_prepare(dir, false, true, &why), -E_AGAIN);
    assert_non_null(strstr(why.text, "shoal status"));
    assert_true(there("checkpoints"));
    file_unlock(lock);
    assert_int_equal(rundir_prepare(dir, false, true, NULL), 0);
    assert_false(there("checkpoints"));
}

static void resume_and_empty_folders_are_fine(void **state)
{
    (void)state;
    cleanup_mem_ char *deep = file_join(dir, "a/b");
    assert_int_equal(rundir_prepare(deep, false, false, NULL), 0);
    assert_true(there("a/b"));
    assert_int_equal(rundir_prepare(deep, true, false, NULL), 0);
}

static void keys_are_made_once(void **state)
{
    (void)state;
    struct key_pair a, b, c;
    char *path = NULL;
    assert_int_equal(rundir_key(dir, "peer-0", &a, &path, NULL), 0);
    assert_int_equal(rundir_key(dir, "peer-0", &b, NULL, NULL), 0);
    assert_int_equal(rundir_key(dir, "peer-1", &c, NULL, NULL), 0);
    assert_true(key_equal(&a.pub, &b.pub));
    assert_false(key_equal(&a.pub, &c.pub));
    assert_non_null(strstr(path, "/keys/peer-0.key"));
    mem_free(path);
}

static struct invite some_invite(char *ret_text)
{
    struct invite inv = {.n_addrs = 1, .addrs = {{"127.0.0.1", 7001}}};
    struct key_pair k;
    assert_int_equal(key_generate(&k), 0);
    inv.coordinator = k.pub;
    assert_int_equal(invite_encode(&inv, ret_text), 0);
    return inv;
}

static void an_invite_is_text_or_file_or_folder(void **state)
{
    (void)state;
    char text[INVITE_TEXT_MAX + 1];
    const struct invite inv = some_invite(text);
    char *path = NULL;
    assert_int_equal(rundir_invite_write(dir, text, &path, NULL), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    const char *const words[] = {text, path, dir};
    for (int i = 0; i < 3; i++) {
        struct invite got;
        memset(&got, 0, sizeof(got));
        assert_int_equal(rundir_invite_read(words[i], &got, NULL), 0);
        assert_true(key_equal(&got.coordinator, &inv.coordinator));
        assert_int_equal(got.addrs[0].port, 7001);
    }
    mem_free(path);
}

static void what_is_no_invite_is_named(void **state)
{
    (void)state;
    struct invite got;
    struct reason why = {0};
    assert_int_equal(rundir_invite_read(dir, &got, &why), -E_NOENT);
    assert_non_null(strstr(why.text, "no run goes on in"));
    put("invite", "certainly not");
    assert_int_equal(rundir_invite_read(dir, &got, &why), -E_INVAL);
    assert_non_null(strstr(why.text, dir)); /* which file it was */
    assert_int_equal(rundir_invite_read("runs/nowhere", &got, &why), -E_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_folder_is_named_by_the_job),
        cmocka_unit_test_setup_teardown(overwrite_removes_checkpoints_and_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_that_goes_on_keeps_its_checkpoints, setup, teardown),
        cmocka_unit_test_setup_teardown(resume_and_empty_folders_are_fine, setup, teardown),
        cmocka_unit_test_setup_teardown(keys_are_made_once, setup, teardown),
        cmocka_unit_test_setup_teardown(an_invite_is_text_or_file_or_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_invite_is_named, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
