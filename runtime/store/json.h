/* Reading small JSON files and headers. Values are checked when they are asked for; a missing or wrong one gives
 * -E_CORRUPT and a sentence that names the key. Writing JSON is runtime/base/jsonw.h.
 *
 * JSON numbers are doubles: 64-bit values (seeds, hashes, counters) are therefore written as decimal or hexadecimal
 * strings, and json_get_u64 and json_get_hex read them back exactly. A parsed document is immutable; any thread may
 * read. */
#ifndef SHOAL_RUNTIME_STORE_JSON_H
#define SHOAL_RUNTIME_STORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

/* A document, or a value inside one (which lives as long as its document). */
struct json;

/* Parses len bytes that must hold one JSON value and nothing else. -E_CORRUPT, -E_NOMEM. */
int json_parse(const char *text, size_t len, struct json **ret, struct reason *why);

/* json_parse of the file at path, at most size_max bytes; what file_read says besides. */
int json_load(const char *path, size_t size_max, struct json **ret, struct reason *why);
struct json *json_free(struct json *document); /* NULL ok; returns NULL */

/* The value of key in the object obj: NULL if obj is not an object or has no such key. Keys are case-sensitive. */
const struct json *json_get(const struct json *obj, const char *key);

bool json_is_object(const struct json *v);
bool json_is_array(const struct json *v);

/* Going through an object or array: first child, next sibling, and its key (NULL inside arrays). */
const struct json *json_first(const struct json *v);
const struct json *json_next(const struct json *child);
const char *json_key(const struct json *child);

const char *json_str(const struct json *v);         /* NULL if v is not a string */
bool json_u64(const struct json *v, uint64_t *ret); /* a decimal string, or a whole number in [0, 2^53] */
bool json_num(const struct json *v, double *ret);   /* a number; null gives NaN, as jsonw writes it */

int json_get_str(const struct json *obj, const char *key, const char **ret, struct reason *why);
int json_get_u64(const struct json *obj, const char *key, uint64_t *ret, struct reason *why);
int json_get_num(const struct json *obj, const char *key, double *ret, struct reason *why);
int json_get_bool(const struct json *obj, const char *key, bool *ret, struct reason *why);

/* A string of exactly 2 n hexadecimal digits. */
int json_get_hex(const struct json *obj, const char *key, uint8_t *ret, size_t n, struct reason *why);

#endif
