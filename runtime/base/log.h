/* The log: one line per event on standard error, `2026-01-31T12:00:00.000Z level component message`, or one JSON object
 * a line. Library code logs at debug only; what people must know travels up as a struct reason. Secrets are never
 * logged; keys are shortened to 8 hex digits. A failure that was survived ends with ", ignoring". Any thread. */
#ifndef SHOAL_RUNTIME_BASE_LOG_H
#define SHOAL_RUNTIME_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_setup(enum log_level max, bool json); /* before other threads start */
bool log_enabled(enum log_level level);
int log_level_parse(const char *s, enum log_level *ret); /* -E_INVAL */
void log_line(enum log_level level, const char *component, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define log_error(component, ...) log_line(LOG_ERROR, component, __VA_ARGS__)
#define log_warn(component, ...)  log_line(LOG_WARN, component, __VA_ARGS__)
#define log_info(component, ...)  log_line(LOG_INFO, component, __VA_ARGS__)
#define log_debug(component, ...)                                                                                      \
    do {                                                                                                               \
        if (log_enabled(LOG_DEBUG))                                                                                    \
            log_line(LOG_DEBUG, component, __VA_ARGS__);                                                               \
    } while (0)

#endif
