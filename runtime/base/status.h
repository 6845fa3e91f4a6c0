/* Status codes and reasons: how every function of Shoal says that it failed.
 *
 * A function that can fail returns int: 0 is success, a negative -E_* is a failure that the caller forwards unchanged,
 * and a positive value is a named outcome documented at the prototype. Whoever first decides which failure it is writes
 * the sentence for people into a struct reason; passers-by may wrap it ("reading x: ...") but never replace it. */
#ifndef SHOAL_RUNTIME_BASE_STATUS_H
#define SHOAL_RUNTIME_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

/* X(name, text): one table, so that code and text never drift apart. Codes start at 1 in this order; append only. */
#define STATUS_MAP(X)                                                                                                  \
    X(NOMEM, "out of memory")                                                                                          \
    X(INVAL, "invalid argument")                                                                                       \
    X(PROTO, "protocol violation")                                                                                     \
    X(VERSION, "incompatible version")                                                                                 \
    X(IO, "input/output error")                                                                                        \
    X(NOENT, "not found")                                                                                              \
    X(EXIST, "already exists")                                                                                         \
    X(PERM, "not permitted")                                                                                           \
    X(AUTH, "not admitted")                                                                                            \
    X(AGAIN, "try again")                                                                                              \
    X(CLOSED, "closed")                                                                                                \
    X(TIMEOUT, "timed out")                                                                                            \
    X(TOOBIG, "limit exceeded")                                                                                        \
    X(NODEV, "no such device")                                                                                         \
    X(UNSUPPORTED, "not supported")                                                                                    \
    X(CORRUPT, "corrupt data")                                                                                         \
    X(NUMERIC, "numerical failure")                                                                                    \
    X(CANCELED, "canceled")                                                                                            \
    X(UNREACHABLE, "unreachable")                                                                                      \
    X(CONFIG, "bad configuration")                                                                                     \
    X(PEER, "a peer failed")                                                                                           \
    X(INTERNAL, "internal error")                                                                                      \
    X(FIT, "does not fit")

enum status {
    E_OK = 0,
#define X(name, text) E_##name,
    STATUS_MAP(X)
#undef X
        E_STATUS_END
};

/* Text of a status code; accepts the code with either sign. Never NULL. Any thread. */
const char *status_text(int status);

/* Short upper-case name ("NOMEM"); accepts either sign. Never NULL. Any thread. */
const char *status_name(int status);

#define REASON_TEXT_MAX 512

/* One failure's sentence for people. Zero-initialise: struct reason why = {0}. */
struct reason {
    char text[REASON_TEXT_MAX];
};

/* Writes the sentence and returns status, so that an error is born in one line:
 *     return reason_set(why, -E_IO, "cannot open %s: %s", path, strerror(errno));
 * why may be NULL (the caller does not care). status must be negative. */
int reason_set(struct reason *why, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of what is there and returns status. why may be NULL. */
int reason_wrap(struct reason *why, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The sentence, or status_text(status) when none was written. */
const char *reason_text(const struct reason *why, int status);

#endif
