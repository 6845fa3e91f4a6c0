/* Writing JSON. Not reading it. Invariant: text[len] is NUL whenever text is there, and everything written before a
 * failed allocation stays in place; after it nothing more is written. */
#include "runtime/base/jsonw.h"

#include "runtime/base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void jsonw_init(struct jsonw *w)
{
    *w = (struct jsonw){0};
}

void jsonw_done(struct jsonw *w)
{
    mem_free(w->text);
    jsonw_init(w);
}

static void put(struct jsonw *w, const char *s, size_t n)
{
    if (w->oom)
        return;
    if (w->cap - w->len <= n) {
        size_t cap = w->cap ? w->cap : 128;
        while (cap - w->len <= n && cap <= SIZE_MAX / 2)
            cap *= 2;
        char *text = cap - w->len > n ? mem_resize(w->text, w->cap, cap, 1) : NULL;
        if (!text) {
            w->oom = true;
            return;
        }
        w->text = text;
        w->cap = cap;
    }
    memcpy(w->text + w->len, s, n);
    w->len += n;
    w->text[w->len] = '\0';
}

/* Length of the valid UTF-8 sequence at s (Unicode 15, table 3-7), 0 if there is none. Stops at a NUL by itself,
 * because NUL is no continuation byte. */
static size_t utf8_len(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    unsigned char low = 0x80;
    unsigned char high = 0xBF;
    size_t n;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        n = 2;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        n = 3;
        if (s[0] == 0xE0)
            low = 0xA0; /* overlong below */
        if (s[0] == 0xED)
            high = 0x9F; /* surrogates above */
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        n = 4;
        if (s[0] == 0xF0)
            low = 0x90; /* overlong below */
        if (s[0] == 0xF4)
            high = 0x8F; /* past U+10FFFF above */
    } else {
        return 0;
    }
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if (s[i] < 0x80 || s[i] > 0xBF)
            return 0;
    return n;
}

static void put_escape(struct jsonw *w, unsigned char c)
{
    static const char from[] = "\"\\\n\r\t\b\f";
    static const char to[] = "\"\\nrtbf";
    char text[8];
    const char *at = strchr(from, c);
    int n = at ? snprintf(text, sizeof(text), "\\%c", to[at - from]) : snprintf(text, sizeof(text), "\\u%04x", c);
    put(w, text, (size_t)n);
}

static void put_string(struct jsonw *w, const char *value)
{
    put(w, "\"", 1);
    const unsigned char *s = (const unsigned char *)value;
    while (*s) {
        size_t n = utf8_len(s);
        if (n == 0) {
            put(w, "\xEF\xBF\xBD", 3);
            n = 1;
        } else if (*s < 0x20 || *s == '"' || *s == '\\') {
            put_escape(w, *s);
        } else {
            put(w, (const char *)s, n);
        }
        s += n;
    }
    put(w, "\"", 1);
}

/* The comma and the key before a value. */
static void put_start(struct jsonw *w, const char *key)
{
    if (w->comma)
        put(w, ",", 1);
    w->comma = true;
    if (key) {
        put_string(w, key);
        put(w, ":", 1);
    }
}

void jsonw_object(struct jsonw *w, const char *key)
{
    put_start(w, key);
    put(w, "{", 1);
    w->comma = false;
}

void jsonw_object_end(struct jsonw *w)
{
    put(w, "}", 1);
    w->comma = true;
}

void jsonw_array(struct jsonw *w, const char *key)
{
    put_start(w, key);
    put(w, "[", 1);
    w->comma = false;
}

void jsonw_array_end(struct jsonw *w)
{
    put(w, "]", 1);
    w->comma = true;
}

void jsonw_str(struct jsonw *w, const char *key, const char *value)
{
    put_start(w, key);
    if (value)
        put_string(w, value);
    else
        put(w, "null", 4);
}

void jsonw_int(struct jsonw *w, const char *key, int64_t value)
{
    char text[32];
    put_start(w, key);
    put(w, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, value));
}

void jsonw_num(struct jsonw *w, const char *key, double value)
{
    put_start(w, key);
    if (!isfinite(value)) {
        put(w, "null", 4);
        return;
    }
    /* 15 digits read back equal for most numbers, 17 for all. */
    char text[32];
    int n = 0;
    for (int digits = 15; digits <= 17; digits++) {
        n = snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    put(w, text, (size_t)n);
}

void jsonw_bool(struct jsonw *w, const char *key, bool value)
{
    put_start(w, key);
    put(w, value ? "true" : "false", value ? 4 : 5);
}

const char *jsonw_text(const struct jsonw *w)
{
    if (w->oom)
        return NULL;
    return w->text ? w->text : "";
}
