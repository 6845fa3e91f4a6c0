/* The log. Standard error is a datagram socket here: one write is one datagram, so a line that was written in pieces or
 * two lines in one write would be seen. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/bounds.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int saved_stderr;
static int reader;

static int catch_stderr(void **state)
{
    (void)state;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
        return -1;
    saved_stderr = dup(STDERR_FILENO);
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    reader = pair[0];
    return 0;
}

static int restore_stderr(void **state)
{
    (void)state;
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    close(reader);
    log_setup(LOG_INFO, false);
    return 0;
}

/* The next line without its newline, "" when nothing was written. */
static const char *next_line(void)
{
    static char line[2 * LINE_MAX_LEN];
    ssize_t n = recv(reader, line, sizeof(line) - 1, MSG_DONTWAIT);
    if (n <= 0)
        return "";
    line[n] = '\0';
    char *end = strchr(line, '\n');
    assert_non_null(end);
    assert_ptr_equal(end, line + n - 1);
    *end = '\0';
    return line;
}

static void line_has_time_level_component_message(void **state)
{
    (void)state;
    log_setup(LOG_INFO, false);
    log_warn("net", "peer %s left, ignoring", "0a1b2c3d");
    const char *line = next_line();
    int year, month, day, hour, minute, second, ms, end = 0;
    assert_int_equal(
        sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day, &hour, &minute, &second, &ms, &end), 7);
    assert_int_equal(end, 24);
    assert_true(year >= 2024);
    assert_string_equal(line + end, " warn net peer 0a1b2c3d left, ignoring");
    assert_string_equal(next_line(), "");
}

static void levels_above_the_maximum_are_silent(void **state)
{
    (void)state;
    log_setup(LOG_WARN, false);
    assert_true(log_enabled(LOG_ERROR));
    assert_true(log_enabled(LOG_WARN));
    assert_false(log_enabled(LOG_INFO));
    log_info("a", "no");
    log_debug("a", "no");
    assert_string_equal(next_line(), "");
    log_error("a", "yes");
    assert_non_null(strstr(next_line(), " error a yes"));
    log_setup(LOG_DEBUG, false);
    log_debug("a", "yes");
    assert_non_null(strstr(next_line(), " debug a yes"));
}

static void control_bytes_cannot_break_a_line(void **state)
{
    (void)state;
    log_setup(LOG_INFO, false);
    log_info("a", "%s", "one\ntwo\r\x1b[31mthree\x7f");
    assert_non_null(strstr(next_line(), " info a one two  [31mthree "));
    assert_string_equal(next_line(), "");
}

static void long_lines_are_cut_at_the_bound(void **state)
{
    (void)state;
    char big[2 * LINE_MAX_LEN];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    log_setup(LOG_INFO, false);
    log_info("a", "%s", big);
    assert_int_equal(strlen(next_line()), LINE_MAX_LEN - 1);
    log_info("a", "%.*s", LINE_MAX_LEN - 1 - (int)strlen("2026-01-31T12:00:00.000Z info a "), big);
    assert_int_equal(strlen(next_line()), LINE_MAX_LEN - 1);
}

static void json_lines_are_objects(void **state)
{
    (void)state;
    log_setup(LOG_INFO, true);
    log_info("store", "say \"%s\"\n", "hi");
    const char *line = next_line();
    assert_memory_equal(line, "{\"time\":\"", 9);
    assert_non_null(strstr(line, "Z\",\"level\":\"info\",\"component\":\"store\",\"message\":\"say \\\"hi\\\"\\n\"}"));
}

static void out_of_memory_still_logs(void **state)
{
    (void)state;
    log_setup(LOG_INFO, true);
    mem_fault_set(0);
    log_error("a", "out of memory");
    assert_true(mem_fault_hit());
    mem_fault_set(-1);
    assert_non_null(strstr(next_line(), "Z error a out of memory"));
}

static void logging_keeps_errno(void **state)
{
    (void)state;
    log_setup(LOG_INFO, false);
    close(STDERR_FILENO);
    errno = ENOENT;
    log_info("a", "to nobody");
    assert_int_equal(errno, ENOENT);
}

static void levels_parse_by_name(void **state)
{
    (void)state;
    enum log_level level = LOG_WARN;
    assert_int_equal(log_level_parse("debug", &level), 0);
    assert_int_equal(level, LOG_DEBUG);
    assert_int_equal(log_level_parse("error", &level), 0);
    assert_int_equal(level, LOG_ERROR);
    assert_int_equal(log_level_parse("loud", &level), -E_INVAL);
    assert_int_equal(log_level_parse("", &level), -E_INVAL);
    assert_int_equal(level, LOG_ERROR);
}

static void *log_some(void *arg)
{
    for (int i = 0; i < 50; i++)
        log_info("thread", "%s", (const char *)arg);
    return NULL;
}

static void lines_of_several_threads_never_mix(void **state)
{
    (void)state;
    static char texts[3][200];
    pthread_t threads[3];
    int counts[3] = {0};
    log_setup(LOG_INFO, false);
    for (int t = 0; t < 3; t++) {
        memset(texts[t], 'a' + t, sizeof(texts[t]) - 1);
        assert_int_equal(pthread_create(&threads[t], NULL, log_some, texts[t]), 0);
    }
    for (int n = 0; n < 150; n++) {
        char line[512];
        ssize_t got = recv(reader, line, sizeof(line) - 1, 0);
        assert_true(got > 0);
        line[got - 1] = '\0';
        const char *text = strstr(line, " info thread ");
        assert_non_null(text);
        text += strlen(" info thread ");
        assert_true(text[0] >= 'a' && text[0] <= 'c');
        assert_string_equal(text, texts[text[0] - 'a']);
        counts[text[0] - 'a']++;
    }
    for (int t = 0; t < 3; t++) {
        pthread_join(threads[t], NULL);
        assert_int_equal(counts[t], 50);
    }
}

#define CAUGHT(test) cmocka_unit_test_setup_teardown(test, catch_stderr, restore_stderr)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CAUGHT(line_has_time_level_component_message),
        CAUGHT(levels_above_the_maximum_are_silent),
        CAUGHT(control_bytes_cannot_break_a_line),
        CAUGHT(long_lines_are_cut_at_the_bound),
        CAUGHT(json_lines_are_objects),
        CAUGHT(out_of_memory_still_logs),
        CAUGHT(logging_keeps_errno),
        CAUGHT(levels_parse_by_name),
        CAUGHT(lines_of_several_threads_never_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
