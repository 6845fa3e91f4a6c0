/* The ledger: what was acknowledged is there, whatever happened after; what is damaged or foreign is named. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/rng.h"
#include "runtime/store/ledger.h"
#include "tests/unit/store/temp_dir.h"

static struct ledger *open_in(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "ledger.db");
    struct ledger *l = NULL;
    struct reason why = {0};

    if (ledger_open(path, &l, &why) < 0)
        fail_msg("%s", why.text);
    return l;
}

static void put(struct ledger *l, const char *kind, uint64_t key, const char *text)
{
    assert_int_equal(ledger_begin(l, NULL), 0);
    assert_int_equal(ledger_put(l, kind, key, text, strlen(text), NULL), 0);
    assert_int_equal(ledger_commit(l, NULL), 0);
}

static void assert_is(struct ledger *l, const char *kind, uint64_t key, const char *text)
{
    struct blob *b = NULL;

    assert_int_equal(ledger_get(l, kind, key, &b, NULL), 0);
    assert_int_equal(b->size, strlen(text));
    assert_memory_equal(b->data, text, b->size);
    blob_unref(b);
}

static void records_are_there_after_a_reopen(void **state)
{
    struct ledger *l = open_in(state);
    cleanup_mem_ char *path = file_join(*state, "ledger.db");
    struct stat st;

    put(l, "plan", 7, "first");
    put(l, "plan", 7, "second"); /* replaces */
    put(l, "empty", 0, "");
    put(l, "plan", LEDGER_KEY_MAX, "last");
    ledger_close(l);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    l = open_in(state);
    assert_is(l, "plan", 7, "second");
    assert_is(l, "plan", LEDGER_KEY_MAX, "last");
    assert_is(l, "empty", 0, "");
    struct blob *b = NULL;

    assert_int_equal(ledger_get(l, "plan", 8, &b, NULL), -E_NOENT);
    assert_int_equal(ledger_get(l, "other", 7, &b, NULL), -E_NOENT);
    assert_null(b);
    ledger_close(l);
}

static void a_cancelled_transaction_leaves_nothing(void **state)
{
    struct ledger *l = open_in(state);
    struct blob *b = NULL;

    put(l, "a", 1, "kept");
    assert_int_equal(ledger_begin(l, NULL), 0);
    assert_int_equal(ledger_put(l, "a", 1, "x", 1, NULL), 0);
    assert_int_equal(ledger_put(l, "a", 2, "x", 1, NULL), 0);
    ledger_cancel(l);
    ledger_cancel(l); /* fine without one */
    assert_is(l, "a", 1, "kept");
    assert_int_equal(ledger_get(l, "a", 2, &b, NULL), -E_NOENT);
    ledger_close(l);
}

static void history_is_only_added_to(void **state)
{
    struct ledger *l = open_in(state);
    struct reason why = {0};

    assert_int_equal(ledger_begin(l, NULL), 0);
    assert_int_equal(ledger_append(l, "commit", 0, "0", 1, NULL), 0);
    assert_int_equal(ledger_append(l, "commit", 5, "5", 1, NULL), 0);
    assert_int_equal(ledger_append(l, "commit", 5, "6", 1, &why), -E_EXIST);
    assert_non_null(strstr(why.text, "commit 5"));
    assert_int_equal(ledger_append(l, "commit", 4, "4", 1, NULL), -E_EXIST);
    assert_int_equal(ledger_append(l, "other", 4, "4", 1, NULL), 0);
    assert_int_equal(ledger_commit(l, NULL), 0);
    assert_is(l, "commit", 5, "5");
    ledger_close(l);
}

struct seen {
    uint64_t keys[16];
    uint32_t n, stop_after;
};

static int see(void *arg, uint64_t key, const void *data, size_t size)
{
    struct seen *s = arg;

    assert_int_equal(size, 1);
    assert_int_equal(*(const char *)data, 'a' + (char)(key % 26));
    s->keys[s->n++] = key;
    return s->n == s->stop_after ? 7 : 0;
}

static void put_letters(struct ledger *l)
{
    static const uint64_t keys[] = {300, 2, 70000, 10, 1};

    for (int i = 0; i < 5; i++)
        put(l, "letter", keys[i], (char[]){(char)('a' + (char)(keys[i] % 26)), 0});
    put(l, "number", 3, "3");
}

static void a_kind_is_read_in_key_order(void **state)
{
    struct ledger *l = open_in(state);
    struct seen s = {0}, two = {.stop_after = 2};
    static const uint64_t sorted[] = {1, 2, 10, 300, 70000};

    put_letters(l);
    assert_int_equal(ledger_each(l, "letter", see, &s, NULL), 0);
    assert_int_equal(s.n, 5);
    assert_memory_equal(s.keys, sorted, sizeof sorted);
    assert_int_equal(ledger_each(l, "letter", see, &two, NULL), 7);
    assert_int_equal(two.n, 2);
    assert_int_equal(ledger_each(l, "nothing", see, &s, NULL), 0);
    ledger_close(l);
}

static void pruning_keeps_the_newest(void **state)
{
    struct ledger *l = open_in(state);
    struct seen s = {0};

    put_letters(l);
    assert_int_equal(ledger_begin(l, NULL), 0);
    assert_int_equal(ledger_prune(l, "letter", 5, NULL), 0); /* none too many */
    assert_int_equal(ledger_prune(l, "letter", 2, NULL), 0);
    assert_int_equal(ledger_remove(l, "letter", 300, NULL), 0);
    assert_int_equal(ledger_remove(l, "letter", 300, NULL), 0);
    assert_int_equal(ledger_commit(l, NULL), 0);
    assert_int_equal(ledger_each(l, "letter", see, &s, NULL), 0);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.keys[0], 70000);
    assert_is(l, "number", 3, "3");
    ledger_close(l);
}

/* Opens the ledger in another process: the status. */
static int open_elsewhere(const char *path, struct reason *why)
{
    int ends[2], code = 0;

    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();

    if (child == 0) {
        struct ledger *l = NULL;
        int status = ledger_open(path, &l, why);

        if (write(ends[1], why, sizeof *why) != sizeof *why)
            _exit(99);
        _exit(-status);
    }
    assert_int_equal(read(ends[0], why, sizeof *why), sizeof *why);
    assert_int_equal(waitpid(child, &code, 0), child);
    close(ends[0]);
    close(ends[1]);
    return -WEXITSTATUS(code);
}

static void a_second_process_is_refused(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "ledger.db");
    struct ledger *l = open_in(state);
    struct reason why = {0};

    assert_int_equal(open_elsewhere(path, &why), -E_AGAIN); /* nothing was written yet */
    put(l, "a", 1, "x");
    assert_int_equal(open_elsewhere(path, &why), -E_AGAIN);
    assert_non_null(strstr(why.text, "another process"));
    assert_non_null(strstr(why.text, path));
    ledger_close(l);
    assert_int_equal(open_elsewhere(path, &why), 0);
}

/* Writes without end, and says of each record that it is written. */
static void write_for_ever(const char *path, int tell)
{
    struct ledger *l = NULL;
    char text[3000];

    if (ledger_open(path, &l, NULL) < 0)
        _exit(1);
    for (uint64_t i = 0;; i++) {
        memset(text, 'a' + (char)(i % 26), sizeof text);
        if (ledger_begin(l, NULL) < 0 || ledger_append(l, "step", i, text, 1 + i * 37 % sizeof text, NULL) < 0 ||
            ledger_put(l, "newest", 0, &i, sizeof i, NULL) < 0 || ledger_prune(l, "step", 50, NULL) < 0 ||
            ledger_commit(l, NULL) < 0)
            _exit(1);
        if (write(tell, &i, sizeof i) != sizeof i)
            _exit(1);
    }
}

static int check_step(void *arg, uint64_t key, const void *data, size_t size)
{
    uint64_t *next = arg;

    if (*next != UINT64_MAX)
        assert_int_equal(key, *next);
    assert_int_equal(size, 1 + key * 37 % 3000);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(((const char *)data)[i], 'a' + (char)(key % 26));
    *next = key + 1;
    return 0;
}

static void what_was_acknowledged_survives_a_kill(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "ledger.db");
    struct rng rng = rng_make(11, "kill");

    for (int round = 0; round < 8; round++) {
        uint64_t told = 0, next = UINT64_MAX, newest;
        uint32_t wanted = 1 + (uint32_t)rng_below(&rng, 60);
        struct blob *b = NULL;
        int ends[2];

        assert_int_equal(file_remove_tree(path, NULL), 0);
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();

        if (child == 0)
            write_for_ever(path, ends[1]);
        close(ends[1]);
        for (uint32_t i = 0; i < wanted; i++) /* it goes on meanwhile: the kill comes anywhere in a later transaction */
            assert_int_equal(read(ends[0], &told, sizeof told), sizeof told);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        while (read(ends[0], &told, sizeof told) == sizeof told)
            ;
        close(ends[0]);
        struct ledger *l = open_in(state);

        assert_int_equal(ledger_get(l, "newest", 0, &b, NULL), 0);
        memcpy(&newest, b->data, sizeof newest);
        blob_unref(b);
        assert_true(newest == told || newest == told + 1); /* the last one may be written and not told */
        assert_int_equal(ledger_each(l, "step", check_step, &next, NULL), 0);
        assert_int_equal(next, newest + 1);
        ledger_close(l);
        for (int i = 0; i < 2; i++) { /* the next round begins anew */
            char beside[512];

            snprintf(beside, sizeof beside, "%s%s", path, i ? "-wal" : "-shm");
            assert_int_equal(file_remove_tree(beside, NULL), 0);
        }
    }
}

static int open_bytes(void **state, const void *bytes, size_t n, struct reason *why)
{
    cleanup_mem_ char *path = file_join(*state, "odd.db");
    struct ledger *l = NULL;

    assert_int_equal(file_write(path, bytes, n, 0600, NULL), 0);
    int status = ledger_open(path, &l, why);

    ledger_close(l);
    return status;
}

static void what_is_no_ledger_is_named_and_left_alone(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "foreign.db"), *none = file_join(*state, "no/such/folder.db");
    cleanup_mem_ char *before = NULL, *after = NULL;
    struct reason why = {0};
    struct ledger *l = NULL;
    sqlite3 *db = NULL;
    size_t n, m;
    char text[4096];

    memset(text, 'x', sizeof text);
    assert_int_equal(open_bytes(state, text, sizeof text, &why), -E_CORRUPT);
    assert_non_null(strstr(why.text, "is not a ledger"));
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE t(x); INSERT INTO t VALUES(1)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(file_read(path, 1 << 20, &before, &n, NULL), 0);
    assert_int_equal(ledger_open(path, &l, &why), -E_CORRUPT);
    assert_non_null(strstr(why.text, "not a ledger"));
    assert_int_equal(file_read(path, 1 << 20, &after, &m, NULL), 0);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    assert_int_equal(ledger_open(none, &l, &why), -E_NOENT);
    assert_non_null(strstr(why.text, none));
    assert_null(l);
}

static void a_newer_format_is_refused(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "ledger.db");
    struct ledger *l = open_in(state);
    struct reason why = {0};
    sqlite3 *db = NULL;

    ledger_close(l);
    l = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 2", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(ledger_open(path, &l, &why), -E_VERSION);
    assert_null(l);
}

/* Any byte of the file changed: either nobody can tell, because it is unused, or it is noticed; never other bytes than
 * were put. */
static void a_changed_byte_is_noticed(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "ledger.db"), *good = NULL;
    struct ledger *l = open_in(state);
    char text[300];
    size_t n, n_noticed = 0;

    for (uint64_t i = 0; i < 30; i++) {
        memset(text, 'a' + (char)(i % 26), sizeof text);
        text[sizeof text - 1] = 0;
        put(l, "letter", i, text);
    }
    ledger_close(l);
    assert_int_equal(file_read(path, 1 << 20, &good, &n, NULL), 0);
    for (size_t at = 0; at < n; at += 1 + at % 97) {
        struct reason why = {0};

        good[at] = (char)(good[at] ^ 0x40);
        assert_int_equal(file_write(path, good, n, 0600, NULL), 0);
        good[at] = (char)(good[at] ^ 0x40);
        l = NULL;
        int status = ledger_open(path, &l, &why);

        for (uint64_t i = 0; status == 0 && i < 30; i++) {
            struct blob *b = NULL;

            memset(text, 'a' + (char)(i % 26), sizeof text - 1);
            status = ledger_get(l, "letter", i, &b, &why);
            if (status == 0) {
                assert_int_equal(b->size, sizeof text - 1);
                assert_memory_equal(b->data, text, b->size);
            }
            blob_unref(b);
        }
        if (status < 0) {
            n_noticed++;
            assert_true(status == -E_CORRUPT || status == -E_VERSION || status == -E_NOENT || status == -E_IO);
            assert_true(why.text[0] != '\0');
        }
        ledger_close(l);
    }
    assert_true(n_noticed > 10);
}

/* ---- allocation failures ---- */

static sqlite3_mem_methods real;
static int64_t sqlite_left = -1; /* allocations of SQLite's until one fails; -1: none does */

static bool sqlite_fails(void)
{
    return sqlite_left >= 0 && sqlite_left-- == 0;
}

static void *failing_malloc(int n)
{
    return sqlite_fails() ? NULL : real.xMalloc(n);
}

static void *failing_realloc(void *p, int n)
{
    return sqlite_fails() ? NULL : real.xRealloc(p, n);
}

/* Everything once; the first failure. */
static int do_everything(const char *path)
{
    struct ledger *l = NULL;
    struct blob *b = NULL;
    struct seen s = {0};
    struct reason why = {0};
    int status = ledger_open(path, &l, &why);

    if (status == 0)
        status = ledger_begin(l, &why);
    if (status == 0)
        status = ledger_put(l, "a", 1, "b", 1, &why);
    if (status == 0)
        status = ledger_append(l, "letter", 26, "a", 1, &why);
    if (status == 0)
        status = ledger_prune(l, "letter", 3, &why);
    if (status == 0)
        status = ledger_remove(l, "letter", 26, &why);
    if (status == 0)
        status = ledger_commit(l, &why);
    if (status == 0)
        status = ledger_get(l, "a", 1, &b, &why);
    if (status == 0)
        status = ledger_each(l, "letter", see, &s, &why);
    if (status < 0 && l)
        ledger_cancel(l);
    blob_unref(b);
    ledger_close(l);
    return status;
}

static void a_failed_allocation_is_reported_and_harms_nothing(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "ledger.db");
    uint32_t n_failed = 0;
    int status;

    for (int64_t n = 0;; n++) { /* of ours */
        mem_fault_set(n);
        status = do_everything(path);
        bool hit = mem_fault_hit();

        mem_fault_set(-1);
        if (!hit)
            break;
        assert_int_equal(status, -E_NOMEM);
        n_failed++;
    }
    assert_int_equal(status, 0);
    for (int64_t n = 0;; n++) { /* of SQLite's, which gets along without some */
        sqlite_left = n;
        status = do_everything(path);
        if (sqlite_left >= 0)
            break;
        assert_true(status == 0 || status == -E_NOMEM);
        n_failed += status < 0;
    }
    sqlite_left = -1;
    assert_int_equal(do_everything(path), 0);
    assert_true(n_failed > 20);
}

int main(void)
{
    static sqlite3_mem_methods failing;

    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real);
    failing = real;
    failing.xMalloc = failing_malloc;
    failing.xRealloc = failing_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &failing);
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(records_are_there_after_a_reopen, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(a_cancelled_transaction_leaves_nothing, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(history_is_only_added_to, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(a_kind_is_read_in_key_order, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(pruning_keeps_the_newest, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(a_second_process_is_refused, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(what_was_acknowledged_survives_a_kill, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(what_is_no_ledger_is_named_and_left_alone, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(a_newer_format_is_refused, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(a_changed_byte_is_noticed, temp_dir_make, temp_dir_remove),
        cmocka_unit_test_setup_teardown(a_failed_allocation_is_reported_and_harms_nothing, temp_dir_make,
                                        temp_dir_remove),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
