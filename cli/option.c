/* Parsing and describing options from one table. Not getopt: that one cannot say "did you mean", and its help text
 * would be a second list to keep in step. */
#include "cli/option.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "cli/value.h"

#define NAMES_MAX  64 /* options of one command */
#define COLUMNS    80
#define TEXT_START 26 /* column of the help texts */

static const struct option *option_find(const struct option_table *tables, size_t n_tables, const char *name,
                                        size_t len)
{
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t i = 0; i < tables[t].n; i++) {
            const struct option *o = &tables[t].options[i];
            if (strlen(o->name) == len && memcmp(o->name, name, len) == 0)
                return o;
        }
    }
    return NULL;
}

static int unknown(const struct option_table *tables, size_t n_tables, const char *arg, struct reason *why)
{
    const char *names[NAMES_MAX];
    size_t n = 0;
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < tables[t].n && n < NAMES_MAX; i++)
            names[n++] = tables[t].options[i].name;
    char typed[NAMES_MAX];
    snprintf(typed, sizeof(typed), "%.*s", (int)strcspn(arg, "="), arg);
    const char *near = option_nearest(typed + strspn(typed, "-"), names, n);
    if (near != NULL)
        return reason_set(why, -E_INVAL, "unknown option %s; did you mean --%s?", typed, near);
    return reason_set(why, -E_INVAL, "unknown option %s", typed);
}

static int range_check(const struct option *o, double v, struct reason *why)
{
    if (o->max == 0 || (v >= o->min && v <= o->max))
        return 0;
    return reason_set(why, -E_INVAL, "must lie between %.15g and %.15g", o->min, o->max);
}

static int option_set(const struct option *o, const char *value, void *args, struct reason *why)
{
    void *field = (char *)args + o->offset;
    uint64_t count = 0;
    double number = 0;
    int r = 0;
    switch (o->type) {
    case OPTION_FLAG:
        *(bool *)field = true;
        return 0;
    case OPTION_TEXT:
        *(const char **)field = value;
        return 0;
    case OPTION_COUNT:
        if ((r = value_count(value, &count, why)) == 0 && (r = range_check(o, (double)count, why)) == 0)
            *(uint64_t *)field = count;
        break;
    case OPTION_NUMBER:
        if ((r = value_number(value, &number, why)) == 0 && (r = range_check(o, number, why)) == 0)
            *(double *)field = number;
        break;
    case OPTION_SIZE:
        if ((r = value_size(value, &count, why)) == 0)
            *(uint64_t *)field = count;
        break;
    case OPTION_LIST: {
        struct option_list *list = field;
        if (list->n == OPTION_LIST_MAX)
            r = reason_set(why, -E_INVAL, "given more than %d times", OPTION_LIST_MAX);
        else
            list->items[list->n++] = value;
        break;
    }
    }
    return r == 0 ? 0 : reason_wrap(why, r, "--%s", o->name);
}

static void fallbacks(const struct option_table *tables, size_t n_tables, void *args)
{
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t i = 0; i < tables[t].n; i++) {
            const struct option *o = &tables[t].options[i];
            void *field = (char *)args + o->offset;
            if (o->fallback != NULL) {
                int r = option_set(o, o->fallback, args, NULL);
                assert(r == 0); /* the table itself is wrong */
                (void)r;
            } else if (o->type == OPTION_COUNT || o->type == OPTION_SIZE) {
                *(uint64_t *)field = OPTION_UNSET;
            } else if (o->type == OPTION_NUMBER) {
                *(double *)field = (double)NAN;
            } else if (o->type == OPTION_FLAG) {
                *(bool *)field = false;
            } else if (o->type == OPTION_TEXT) {
                *(const char **)field = NULL;
            } else {
                ((struct option_list *)field)->n = 0;
            }
        }
    }
}

int option_parse(const struct option_table *tables, size_t n_tables, int argc, char **argv, void *ret_args,
                 const char **words, size_t words_cap, size_t *ret_n_words, struct reason *why)
{
    fallbacks(tables, n_tables, ret_args);
    size_t n_words = 0;
    bool only_words = false;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (!only_words && strcmp(arg, "--") == 0) {
            only_words = true;
            continue;
        }
        if (only_words || arg[0] != '-' || arg[1] == '\0') { /* "-" alone is a word: standard input */
            if (n_words == words_cap)
                return reason_set(why, -E_INVAL, "one word too many: \"%.64s\"", arg);
            words[n_words++] = arg;
            continue;
        }
        if (strcmp(arg, "-h") == 0)
            arg = "--help";
        size_t len = arg[1] == '-' ? strcspn(arg + 2, "=") : 0;
        const struct option *o = len == 0 ? NULL : option_find(tables, n_tables, arg + 2, len);
        if (o == NULL)
            return unknown(tables, n_tables, arg, why);
        const char *value = arg[2 + len] == '=' ? arg + 2 + len + 1 : NULL;
        if (o->type == OPTION_FLAG && value != NULL)
            return reason_set(why, -E_INVAL, "--%s takes no value", o->name);
        if (o->type != OPTION_FLAG && value == NULL) {
            if (i + 1 == argc)
                return reason_set(why, -E_INVAL, "--%s needs a value: --%s %s", o->name, o->name, o->metavar);
            value = argv[++i];
        }
        int r = option_set(o, value, ret_args, why);
        if (r < 0)
            return r;
    }
    *ret_n_words = n_words;
    return 0;
}

void option_wrap(FILE *out, const char *text, int indent, int column)
{
    while (*text != '\0') {
        int len = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + len > COLUMNS) {
            fputc('\n', out);
            column = 0;
        }
        if (column < indent)
            column += fprintf(out, "%*s", indent - column, "");
        else if (column > indent)
            column += fprintf(out, " ");
        column += fprintf(out, "%.*s", len, text);
        text += len;
        if (*text == '\n') {
            fputc('\n', out);
            column = 0;
        }
        if (*text != '\0')
            text++;
    }
    fputc('\n', out);
}

void option_help(FILE *out, const struct option_table *tables, size_t n_tables)
{
    for (size_t t = 0; t < n_tables; t++) {
        if (tables[t].n == 0)
            continue;
        fprintf(out, "\n%s:\n", tables[t].title);
        for (size_t i = 0; i < tables[t].n; i++) {
            const struct option *o = &tables[t].options[i];
            int column = fprintf(out, "  --%s%s%s", o->name, o->metavar == NULL ? "" : " ",
                                 o->metavar == NULL ? "" : o->metavar);
            if (column > TEXT_START - 2) {
                fputc('\n', out);
                column = 0;
            }
            char text[512];
            const char *def = o->fallback != NULL ? o->fallback : o->unset;
            int n = snprintf(text, sizeof(text), def == NULL ? "%s" : "%s (default: %s)", o->help, def);
            assert(n > 0 && (size_t)n < sizeof(text));
            (void)n;
            option_wrap(out, text, TEXT_START, column);
        }
    }
}

/* Optimal string alignment: edits and swaps of neighbours, the mistakes that hands make. */
static size_t distance(const char *a, const char *b)
{
    enum { CAP = 32 };
    size_t la = strlen(a), lb = strlen(b);
    if (la >= CAP || lb >= CAP)
        return CAP;
    size_t d[CAP + 1][CAP + 1];
    for (size_t i = 0; i <= la; i++) {
        for (size_t j = 0; j <= lb; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[la][lb];
}

const char *option_nearest(const char *text, const char *const *names, size_t n)
{
    size_t len = strlen(text);
    size_t best = len / 3 + 1; /* more differences than that is another word */
    const char *ret = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(text, names[i]);
        if (len >= 3 && strncmp(text, names[i], len) == 0)
            d = 1; /* a beginning counts as near, however long the rest */
        if (d <= best && (ret == NULL || d < best)) {
            best = d;
            ret = names[i];
        }
    }
    return ret;
}
