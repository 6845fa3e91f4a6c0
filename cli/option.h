/* Options of the command line: one table per command that feeds both parsing and --help. A value lands in a field of
 * the command's arguments struct, named by its offset. Options and words may be mixed; "--" ends the options. Nothing
 * here prints or exits except option_help. */
#ifndef SHOAL_CLI_OPTION_H
#define SHOAL_CLI_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/base/status.h"

enum option_type {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char *, NULL = not given */
    OPTION_COUNT,  /* uint64_t, OPTION_UNSET = not given */
    OPTION_NUMBER, /* double, NaN = not given */
    OPTION_SIZE,   /* uint64_t bytes, OPTION_UNSET = not given */
    OPTION_LIST,   /* struct option_list: may be given several times */
};

#define OPTION_UNSET    UINT64_MAX
#define OPTION_LIST_MAX 16

struct option_list {
    size_t n;
    const char *items[OPTION_LIST_MAX];
};

struct option {
    const char *name;    /* without the dashes */
    const char *metavar; /* NULL for a flag */
    enum option_type type;
    size_t offset;        /* of the field in the arguments struct */
    const char *fallback; /* the value when it is not given, parsed like one; NULL = the field stays "not given" */
    const char *unset;    /* what "not given" means, in words for --help; may be NULL */
    double min, max;      /* of counts, numbers; max 0 = no limits */
    const char *help;     /* one sentence without a full stop */
};

struct option_table {
    const char *title; /* heading in --help */
    const struct option *options;
    size_t n;
};

/* Sets every field to its fallback, then reads argv[0..argc). Words that are no options go to words, at most
 * words_cap of them (more is -E_INVAL). All kept pointers point into argv. -E_INVAL with a sentence; an unknown option
 * is answered with the nearest one. */
int option_parse(const struct option_table *tables, size_t n_tables, int argc, char **argv, void *ret_args,
                 const char **words, size_t words_cap, size_t *ret_n_words, struct reason *why);

/* The tables as aligned, wrapped text of at most 80 columns. */
void option_help(FILE *out, const struct option_table *tables, size_t n_tables);

/* Prints text wrapped to 80 columns, each line after `indent` blanks; the first line starts at column `column`. */
void option_wrap(FILE *out, const char *text, int indent, int column);

/* The one of n names most like text, or NULL when none is near. */
const char *option_nearest(const char *text, const char *const *names, size_t n);

#endif
