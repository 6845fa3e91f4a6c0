/* The log on standard error. Not the events a run writes for programs (those are jsonw lines on standard output).
 * Invariant: one event is one line written by one write(2), so lines of several threads and processes never mix, and no
 * byte of a message can end a line early or reach a terminal as a control code. */
#include "runtime/base/log.h"

#include "runtime/base/bounds.h"
#include "runtime/base/clock.h"
#include "runtime/base/jsonw.h"
#include "runtime/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum log_level level_max = LOG_INFO;
static bool as_json;

static const char *const level_names[] = {
    [LOG_ERROR] = "error", [LOG_WARN] = "warn", [LOG_INFO] = "info", [LOG_DEBUG] = "debug"};
#define LEVELS (sizeof(level_names) / sizeof(level_names[0]))

void log_setup(enum log_level max, bool json)
{
    level_max = max;
    as_json = json;
}

bool log_enabled(enum log_level level)
{
    return level <= level_max;
}

int log_level_parse(const char *s, enum log_level *ret)
{
    for (size_t i = 0; i < LEVELS; i++) {
        if (strcmp(s, level_names[i]) == 0) {
            *ret = (enum log_level)i;
            return 0;
        }
    }
    return -E_INVAL;
}

static void write_out(const char *text, size_t n)
{
    /* A short write is not continued: the rest could land inside another process's line. */
    ssize_t r;
    do
        r = write(STDERR_FILENO, text, n);
    while (r < 0 && errno == EINTR);
}

static void time_text(char *text, size_t size)
{
    int64_t ns = clock_wall_ns();
    time_t s = (time_t)(ns / NS_PER_S);
    struct tm t;
    gmtime_r(&s, &t);
    size_t n = strftime(text, size, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(text + n, size - n, ".%03dZ", (int)(ns % NS_PER_S / NS_PER_MS));
}

/* false when out of memory: the caller writes plain text instead. */
static bool write_json(const char *when, enum log_level level, const char *component, const char *message)
{
    struct jsonw w;
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "time", when);
    jsonw_str(&w, "level", level_names[level]);
    jsonw_str(&w, "component", component);
    jsonw_str(&w, "message", message);
    jsonw_object_end(&w);
    bool ok = jsonw_text(&w) != NULL;
    if (ok) {
        w.text[w.len] = '\n'; /* in place of the NUL */
        write_out(w.text, w.len + 1);
    }
    jsonw_done(&w);
    return ok;
}

static void write_text(const char *when, enum log_level level, const char *component, const char *message)
{
    char line[LINE_MAX_LEN];
    int n = snprintf(line, sizeof(line), "%s %s %s %s", when, level_names[level], component, message);
    if (n < 0)
        return;
    size_t len = (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
            line[i] = ' ';
    line[len] = '\n';
    write_out(line, len + 1);
}

void log_line(enum log_level level, const char *component, const char *fmt, ...)
{
    if (!log_enabled(level))
        return;
    int saved_errno = errno; /* callers log between a failure and reporting it */
    char message[LINE_MAX_LEN];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(message, sizeof(message), fmt, ap) < 0)
        message[0] = '\0';
    va_end(ap);

    char when[64];
    time_text(when, sizeof(when));
    if (!as_json || !write_json(when, level, component, message))
        write_text(when, level, component, message);
    errno = saved_errno;
}
