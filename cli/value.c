/* Words to values. Not a general number parser: what is accepted is what the help says, nothing locale-dependent. */
#include "cli/value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/mem.h"

int value_count(const char *text, uint64_t *ret, struct reason *why)
{
    size_t n = strspn(text, "0123456789");
    if (n == 0 || text[n] != '\0')
        return reason_set(why, -E_INVAL, "\"%.64s\" is not a whole number", text);
    errno = 0;
    unsigned long long v = strtoull(text, NULL, 10);
    if (errno == ERANGE || v > INT64_MAX)
        return reason_set(why, -E_INVAL, "%.64s is too large", text);
    *ret = v;
    return 0;
}

/* strtod without its extras (hexadecimal, "inf", leading blanks). Returns the end of the number, NULL if there is none.
 */
static const char *number_scan(const char *text, double *ret)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '.' && text[0] != '-')
        return NULL;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return NULL;
    char *end = NULL;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v))
        return NULL;
    *ret = v;
    return end;
}

int value_number(const char *text, double *ret, struct reason *why)
{
    double v = 0;
    const char *end = number_scan(text, &v);
    if (end == NULL || *end != '\0')
        return reason_set(why, -E_INVAL, "\"%.64s\" is not a number", text);
    *ret = v;
    return 0;
}

int value_size(const char *text, uint64_t *ret, struct reason *why)
{
    static const struct {
        const char *name;
        double scale;
    } units[] = {{"", 1},       {"b", 1},        {"k", 0x1p10},   {"kib", 0x1p10}, {"kb", 1e3},
                 {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
                 {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12}};
    double v = 0;
    const char *unit = number_scan(text, &v);
    if (unit != NULL && v >= 0) {
        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
            if (strcasecmp(unit, units[i].name) != 0)
                continue;
            double bytes = v * units[i].scale;
            if (bytes >= 0x1p63)
                return reason_set(why, -E_INVAL, "%.64s is too large", text);
            *ret = (uint64_t)bytes;
            return 0;
        }
    }
    return reason_set(why, -E_INVAL, "\"%.64s\" is not a size; write it as 512MiB or 4GiB", text);
}

int value_split(const char *text, char **ret, size_t cap, size_t *ret_n, struct reason *why)
{
    cleanup_mem_ char *copy = mem_strdup(text);
    if (copy == NULL)
        return -E_NOMEM;
    size_t n = 0;
    for (char *p = copy; p != NULL;) {
        if (n == cap)
            return reason_set(why, -E_INVAL, "more than %zu values", cap);
        char *comma = strchr(p, ',');
        if (comma != NULL)
            *comma++ = '\0';
        if (*p == '\0')
            return reason_set(why, -E_INVAL, "a value is missing in \"%.64s\"; write them as 1,0.5,0.25", text);
        ret[n++] = p;
        p = comma;
    }
    *ret_n = n;
    (void)TAKE_PTR(copy);
    return 0;
}
