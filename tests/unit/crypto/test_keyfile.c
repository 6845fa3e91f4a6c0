/* Key files: who may read them, what is left after a failure, and that no damaged one is taken. Each test works in a
 * new folder, which its teardown removes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crypto/key.h"
#include "runtime/base/mem.h"

/* The seed is RFC 8032's first; the checksum is Python's hashlib's. */
static const char seed_hex[] = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
static const char line[] = "shoal-key-1 9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60 6143dc66\n";
#define LINE_BYTES (sizeof(line) - 1)

static char folder[64];
static char path[128];
static struct key_pair pair;

static int make_folder(void **state)
{
    struct key seed;

    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/shoal-test-key-XXXXXX");
    if (key_setup(NULL) != 0 || mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/key", folder);
    return key_parse_hex(seed_hex, &seed) != 0 || key_from_seed(seed.bytes, &pair) != 0 ? -1 : 0;
}

static int remove_entry(const char *name, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(name);
}

static int remove_folder(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void write_file(const char *bytes, size_t n, mode_t mode)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void expect_file(const char *bytes, size_t n)
{
    char text[256];
    FILE *f = fopen(path, "re");

    assert_non_null(f);
    assert_int_equal(fread(text, 1, sizeof(text), f), n);
    fclose(f);
    assert_memory_equal(text, bytes, n);
}

static unsigned n_entries(void)
{
    DIR *d = opendir(folder);
    unsigned n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void a_key_survives_the_round_trip_in_the_known_form(void **state)
{
    struct key_pair back;
    struct stat st;

    (void)state;
    assert_int_equal(key_save(path, &pair, false, NULL), 0);
    expect_file(line, LINE_BYTES);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0600);
    assert_int_equal(n_entries(), 1);
    assert_int_equal(key_load(path, &back, NULL), 0);
    assert_memory_equal(&back, &pair, sizeof(pair));
}

static void missing_folders_are_made_for_the_owner_only(void **state)
{
    char deep[128], *const names[] = {"a", "a/b", "a/b/c"};
    const mode_t umask_before = umask(0);
    struct key_pair back;

    (void)state;
    snprintf(deep, sizeof(deep), "%s/a//b/c/key", folder);
    assert_int_equal(key_save(deep, &pair, false, NULL), 0);
    umask(umask_before);
    assert_int_equal(key_load(deep, &back, NULL), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[128];
        struct stat st;

        snprintf(name, sizeof(name), "%s/%s", folder, names[i]);
        assert_int_equal(stat(name, &st), 0);
        assert_int_equal(st.st_mode, S_IFDIR | 0700);
    }
}

static void a_path_without_a_folder_is_in_the_working_folder(void **state)
{
    const int before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc;

    (void)state;
    assert_int_equal(chdir(folder), 0);
    rc = key_save("key", &pair, false, NULL);
    assert_int_equal(fchdir(before), 0);
    close(before);
    assert_int_equal(rc, 0);
    expect_file(line, LINE_BYTES);
}

static void an_existing_file_stays_unless_forced(void **state)
{
    struct reason why = {0};

    (void)state;
    write_file("precious", 8, 0644);
    assert_int_equal(key_save(path, &pair, false, &why), -E_EXIST);
    assert_non_null(strstr(why.text, path));
    expect_file("precious", 8);
    assert_int_equal(n_entries(), 1);
    assert_int_equal(key_save(path, &pair, true, NULL), 0);
    expect_file(line, LINE_BYTES);
    assert_int_equal(n_entries(), 1);
}

static void a_file_that_others_may_read_or_write_is_refused(void **state)
{
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0601, 0644, 0666};

    (void)state;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        struct reason why = {0};
        struct key_pair k;

        write_file(line, LINE_BYTES, modes[i]);
        assert_int_equal(key_load(path, &k, &why), -E_PERM);
        assert_non_null(strstr(why.text, "chmod 600"));
        assert_int_equal(key_load_or_make(path, &k, NULL, NULL), -E_PERM);
    }
    expect_file(line, LINE_BYTES);
}

static void a_missing_file_is_named(void **state)
{
    struct reason why = {0};
    struct key_pair k;

    (void)state;
    assert_int_equal(key_load(path, &k, &why), -E_NOENT);
    assert_non_null(strstr(why.text, path));
}

static void what_is_no_file_is_no_key_file(void **state)
{
    struct key_pair k;

    (void)state;
    assert_int_equal(key_load(folder, &k, NULL), -E_CORRUPT);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(key_load(path, &k, NULL), -E_CORRUPT); /* and does not wait for a writer */
}

static void every_damaged_character_is_noticed(void **state)
{
    struct key_pair k, before;
    char text[sizeof(line)];

    (void)state;
    memset(&k, 0x5a, sizeof(k));
    before = k;
    for (size_t i = 0; i < LINE_BYTES; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            int rc;

            memcpy(text, line, sizeof(line));
            text[i] = (char)(text[i] ^ (char)(1u << bit));
            write_file(text, LINE_BYTES, 0600);
            rc = key_load(path, &k, NULL);
            assert_true(rc == -E_CORRUPT || (rc == -E_VERSION && i < strlen("shoal-key-1 ")));
        }
    }
    assert_memory_equal(&k, &before, sizeof(k));
}

static void every_cut_is_noticed_but_the_line_break(void **state)
{
    struct key_pair k;

    (void)state;
    for (size_t n = 0; n < LINE_BYTES - 1; n++) {
        write_file(line, n, 0600);
        assert_int_equal(key_load(path, &k, NULL), -E_CORRUPT);
    }
    write_file(line, LINE_BYTES - 1, 0600);
    assert_int_equal(key_load(path, &k, NULL), 0);
    assert_true(key_equal(&k.pub, &pair.pub));
}

static void text_after_the_line_is_refused(void **state)
{
    char text[3 * sizeof(line)];
    struct key_pair k;

    (void)state;
    for (size_t extra = 1; extra <= LINE_BYTES; extra++) {
        memcpy(text, line, LINE_BYTES);
        memcpy(text + LINE_BYTES, line, extra);
        write_file(text, LINE_BYTES + extra, 0600);
        assert_int_equal(key_load(path, &k, NULL), -E_CORRUPT);
    }
}

static void a_key_file_of_another_version_is_said_to_be_one(void **state)
{
    char text[sizeof(line)];
    struct reason why = {0};
    struct key_pair k;

    (void)state;
    memcpy(text, line, sizeof(line));
    text[strlen("shoal-key-")] = '2';
    write_file(text, LINE_BYTES, 0600);
    assert_int_equal(key_load(path, &k, &why), -E_VERSION);
    assert_non_null(strstr(why.text, "version"));
}

static void load_or_make_makes_once(void **state)
{
    struct key_pair a, b;
    struct reason why = {0};
    bool made = false;

    (void)state;
    assert_int_equal(key_load_or_make(path, &a, &made, &why), 0);
    assert_true(made);
    assert_string_equal(why.text, "");
    assert_int_equal(key_load_or_make(path, &b, &made, &why), 0);
    assert_false(made);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_int_equal(key_load_or_make(path, &b, NULL, NULL), 0);
}

static void processes_that_make_a_key_at_once_agree_on_one(void **state)
{
    enum { n_processes = 8 };
    struct key keys[n_processes];
    unsigned n_made = 0;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    for (int i = 0; i < n_processes; i++) {
        const pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            struct key_pair k;
            bool made = false;
            const int rc = key_load_or_make(path, &k, &made, NULL);
            const bool told = rc == 0 && write(fds[1], k.pub.bytes, KEY_BYTES) == KEY_BYTES;

            _exit(!told ? 2 : made ? 1 : 0);
        }
    }
    for (int i = 0; i < n_processes; i++) {
        int status = 0;

        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
        n_made += WEXITSTATUS(status) == 1;
        assert_int_equal(read(fds[0], keys[i].bytes, KEY_BYTES), KEY_BYTES);
        assert_true(key_equal(&keys[i], &keys[0]));
    }
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(n_made, 1);
    assert_int_equal(n_entries(), 1);
}

static void a_failed_allocation_leaves_no_file(void **state)
{
    int64_t n = 0;

    (void)state;
    for (;; n++) {
        struct reason why = {0};
        struct key_pair k;
        int rc;

        mem_fault_set(n);
        rc = key_load_or_make(path, &k, NULL, &why);
        if (!mem_fault_hit()) {
            assert_int_equal(rc, 0);
            break;
        }
        assert_int_equal(rc, -E_NOMEM);
        assert_string_equal(reason_text(&why, rc), status_text(-E_NOMEM));
        assert_int_equal(n_entries(), 0);
    }
    mem_fault_set(-1);
    assert_true(n > 0);
}

static void a_failed_write_leaves_the_old_file_and_nothing_else(void **state)
{
    struct rlimit before, small;
    struct reason why = {0};
    int rc;

    (void)state;
    write_file("precious", 8, 0600);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 20; /* the line is longer: a short write, then an error */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    rc = key_save(path, &pair, true, &why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, -E_IO);
    assert_non_null(strstr(why.text, path));
    expect_file("precious", 8);
    assert_int_equal(n_entries(), 1);
}

static void a_folder_that_cannot_be_made_is_named(void **state)
{
    struct reason why = {0};
    char below[sizeof(path) + 8];

    (void)state;
    write_file("a file", 6, 0600);
    snprintf(below, sizeof(below), "%s/x/key", path);
    assert_int_equal(key_save(below, &pair, false, &why), -E_IO);
    assert_non_null(strstr(why.text, "folder"));
    expect_file("a file", 6);
}

static void expect_default(const char *want)
{
    char *got = NULL;

    assert_int_equal(key_default_path(&got, NULL), 0);
    assert_string_equal(got, want);
    mem_free(got);
}

static void the_default_path_follows_the_environment(void **state)
{
    struct reason why = {0};
    char *got = NULL;

    (void)state;
    setenv("SHOAL_HOME", "/s", 1);
    setenv("XDG_CONFIG_HOME", "/x", 1);
    setenv("HOME", "/h", 1);
    expect_default("/s/key");
    setenv("SHOAL_HOME", "", 1);
    expect_default("/x/shoal/key");
    unsetenv("XDG_CONFIG_HOME");
    expect_default("/h/.config/shoal/key");
    mem_fault_set(0);
    assert_int_equal(key_default_path(&got, NULL), -E_NOMEM);
    mem_fault_set(-1);
    unsetenv("HOME");
    assert_int_equal(key_default_path(&got, &why), -E_NOENT);
    assert_non_null(strstr(why.text, "SHOAL_HOME"));
    assert_null(got);
}

#define in_folder(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_folder(a_key_survives_the_round_trip_in_the_known_form),
        in_folder(missing_folders_are_made_for_the_owner_only),
        in_folder(a_path_without_a_folder_is_in_the_working_folder),
        in_folder(an_existing_file_stays_unless_forced),
        in_folder(a_file_that_others_may_read_or_write_is_refused),
        in_folder(a_missing_file_is_named),
        in_folder(what_is_no_file_is_no_key_file),
        in_folder(every_damaged_character_is_noticed),
        in_folder(every_cut_is_noticed_but_the_line_break),
        in_folder(text_after_the_line_is_refused),
        in_folder(a_key_file_of_another_version_is_said_to_be_one),
        in_folder(load_or_make_makes_once),
        in_folder(processes_that_make_a_key_at_once_agree_on_one),
        in_folder(a_failed_allocation_leaves_no_file),
        in_folder(a_failed_write_leaves_the_old_file_and_nothing_else),
        in_folder(a_folder_that_cannot_be_made_is_named),
        cmocka_unit_test(the_default_path_follows_the_environment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
