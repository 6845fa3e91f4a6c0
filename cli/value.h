/* Words of the command line to values: counts, numbers, sizes, lists. Each refusal says what was typed and what would
 * have been right. Pure; any thread. */
#ifndef SHOAL_CLI_VALUE_H
#define SHOAL_CLI_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

/* A whole number, decimal digits only. -E_INVAL. */
int value_count(const char *text, uint64_t *ret, struct reason *why);

/* A finite number. -E_INVAL. */
int value_number(const char *text, double *ret, struct reason *why);

/* Bytes: 4GiB, 512MiB, 2G (= 2GiB), 100MB (powers of ten), 4096; fractions as 1.5GiB. Units in any case. -E_INVAL. */
int value_size(const char *text, uint64_t *ret, struct reason *why);

/* Cuts "a,b,c" at the commas into ret[0..*ret_n) (pieces of one new text: mem_free(ret[0]) frees all). -E_INVAL when
 * empty, with an empty piece, or with more than cap; -E_NOMEM. */
int value_split(const char *text, char **ret, size_t cap, size_t *ret_n, struct reason *why);

#endif
