/* Status codes and reasons. Not logging: nothing here prints. Invariant: a reason is always NUL-terminated, and holds
 * the sentence of whoever first decided which failure it is, with the wrappers' prefixes in front. */
#include "runtime/base/status.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const texts[] = {[E_OK] = "success",
#define X(name, text) [E_##name] = text,
                                    STATUS_MAP(X)
#undef X
};

static const char *const names[] = {[E_OK] = "OK",
#define X(name, text) [E_##name] = #name,
                                    STATUS_MAP(X)
#undef X
};

_Static_assert(sizeof(texts) / sizeof(texts[0]) == E_STATUS_END, "one text per code");
_Static_assert(E_NOMEM == 1, "codes start at 1 and go over the wire");

/* The table's index for either sign of a code, -1 for a number that is no code. */
static int index_of(int status)
{
    if (status <= -E_STATUS_END || status >= E_STATUS_END)
        return -1;
    return status < 0 ? -status : status;
}

const char *status_text(int status)
{
    int i = index_of(status);
    return i < 0 ? "unknown status" : texts[i];
}

const char *status_name(int status)
{
    int i = index_of(status);
    return i < 0 ? "UNKNOWN" : names[i];
}

int reason_set(struct reason *why, int status, const char *fmt, ...)
{
    assert(status < 0);
    if (why) {
        va_list ap;
        va_start(ap, fmt);
        /* Through a second buffer, because an argument may be the old sentence itself. */
        struct reason fresh;
        if (vsnprintf(fresh.text, sizeof(fresh.text), fmt, ap) < 0)
            fresh.text[0] = '\0';
        va_end(ap);
        *why = fresh;
    }
    return status;
}

int reason_wrap(struct reason *why, int status, const char *fmt, ...)
{
    assert(status < 0);
    if (!why)
        return status;

    char prefix[REASON_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(prefix, sizeof(prefix), fmt, ap) < 0)
        prefix[0] = '\0';
    va_end(ap);

    /* When both do not fit, the end of the old sentence is what goes. */
    const char *old = reason_text(why, status);
    size_t n_prefix = strlen(prefix);
    size_t n_old = strlen(old);
    struct reason fresh = {0};
    size_t room = sizeof(fresh.text) - 1;
    memcpy(fresh.text, prefix, n_prefix);
    room -= n_prefix;
    if (room < 2) {
        *why = fresh;
        return status;
    }
    memcpy(fresh.text + n_prefix, ": ", 2);
    room -= 2;
    memcpy(fresh.text + n_prefix + 2, old, n_old < room ? n_old : room);
    *why = fresh;
    return status;
}

const char *reason_text(const struct reason *why, int status)
{
    return why && why->text[0] ? why->text : status_text(status);
}
