/* Inside proto*.c only: how the fields of a message lie in its struct, and on the wire. A message is described by a
 * table of fields; packing, unpacking, the limits of single values and freeing all follow from the table, so they
 * cannot disagree. What concerns several fields at once is the check function's business (proto_type.h).
 *
 * On the wire a message is a map from field names to values. A record inside a list is an array of its fields' values
 * in the order of its table: compact; a longer array is accepted and its end skipped, so records can grow too. Many
 * equal values (seconds, keys, digests) are one bin of their little-endian bytes. */
#ifndef SHOAL_PARALLEL_PROTO_FIELD_H
#define SHOAL_PARALLEL_PROTO_FIELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/blob.h"
#include "runtime/base/status.h"

/* The lists must stay the last kinds: they own memory and have a count. */
enum field_kind {
    FIELD_BOOL,
    FIELD_U16,
    FIELD_U32,
    FIELD_U64,
    FIELD_F32,     /* float32, finite */
    FIELD_F64,     /* float64, finite */
    FIELD_F64_ANY, /* float64, may be infinite or not a number: a measurement that went wrong */
    FIELD_BYTES,   /* bin of exactly max bytes */
    FIELD_TEXT,    /* char[max + 1], for people: cleaned both ways (proto_text_clean) */
    FIELD_WORD,    /* char[max + 1], for machines: printable ASCII without blanks, else refused */
    FIELD_WORDS,   /* char[max][elem_size], a count beside it */
    FIELD_RECORD,  /* a struct inside, as an array of its fields */
    FIELD_RECORDS, /* pointer to structs, as an array of arrays */
    FIELD_U32S,    /* pointer to uint32_t, as an array */
    FIELD_F64S,    /* pointer to double, as a bin of little-endian float64 */
    FIELD_BINS,    /* pointer to elements of elem_size bytes, as a bin */
};

enum field_presence { FIELD_ALWAYS, FIELD_IF_SET, FIELD_IF_UNSET };

struct proto_field {
    const char *name;
    enum field_kind kind;
    uint32_t offset; /* in the struct */
    uint64_t max;    /* largest value, longest string, exact bytes, or most elements */
    uint32_t count;  /* lists, words: offset of the uint32_t that counts the elements */
    bool counted;    /* lists: an earlier field has the same count; both must agree */
    uint32_t elem_size;
    const struct proto_field *fields; /* of a record */
    uint32_t n_fields;
    enum field_presence presence; /* on the wire only if the bool at `condition` is set / unset */
    uint32_t condition;
};

#define FIELD_COUNT(table) ((uint32_t)(sizeof(table) / sizeof((table)[0])))

/* The inside of one table entry. S: the struct, m: its member (may be nested), n: the member that counts. */
#define FIELD_(S, key, k, m, most) .name = key, .kind = FIELD_##k, .offset = offsetof(S, m), .max = (most)
#define FIELD_SIZE(S, m)           sizeof(((S *)NULL)->m)
#define BOOL(S, key, m)            FIELD_(S, key, BOOL, m, 1)
#define U16(S, key, m)             FIELD_(S, key, U16, m, UINT16_MAX)
#define U32(S, key, m, most)       FIELD_(S, key, U32, m, most)
#define U64(S, key, m)             FIELD_(S, key, U64, m, UINT64_MAX)
#define F32(S, key, m)             FIELD_(S, key, F32, m, 0)
#define F64(S, key, m)             FIELD_(S, key, F64, m, 0)
#define F64_ANY(S, key, m)         FIELD_(S, key, F64_ANY, m, 0)
#define BYTES(S, key, m)           FIELD_(S, key, BYTES, m, FIELD_SIZE(S, m))
#define TEXT(S, key, m)            FIELD_(S, key, TEXT, m, FIELD_SIZE(S, m) - 1)
#define WORD(S, key, m)            FIELD_(S, key, WORD, m, FIELD_SIZE(S, m) - 1)
#define LIST_(S, key, k, m, n, most)                                                                                   \
    FIELD_(S, key, k, m, most), .count = offsetof(S, n), .elem_size = FIELD_SIZE(S, m[0])
#define WORDS(S, key, m, n, most) LIST_(S, key, WORDS, m, n, most)
#define U32S(S, key, m, n, most)  LIST_(S, key, U32S, m, n, most)
#define F64S(S, key, m, n, most)  LIST_(S, key, F64S, m, n, most)
#define BINS(S, key, m, n, most)  LIST_(S, key, BINS, m, n, most)
#define RECORDS(S, key, m, n, most, tab)                                                                               \
    LIST_(S, key, RECORDS, m, n, most), .fields = (tab), .n_fields = FIELD_COUNT(tab)
#define RECORD(S, key, m, tab) FIELD_(S, key, RECORD, m, 0), .fields = (tab), .n_fields = FIELD_COUNT(tab)
#define COUNTED                .counted = true
#define IF_SET(S, flag)        .presence = FIELD_IF_SET, .condition = offsetof(S, flag)
#define IF_UNSET(S, flag)      .presence = FIELD_IF_UNSET, .condition = offsetof(S, flag)

/* Fields of one struct that go into a map; a head is made of two: what all messages share, and the message's own. */
struct proto_part {
    const struct proto_field *fields;
    uint32_t n;
    void *base; /* the struct: read when packing, written when unpacking */
};

/* One map of all parts' fields, of at most max_bytes. -E_INVAL if a value breaks a limit of its field, -E_NOMEM. */
int proto_pack(const struct proto_part *parts, uint32_t n_parts, size_t max_bytes, struct blob **ret);

/* A map that was read, over bytes that must outlive it. */
struct proto_map;

/* -E_PROTO unless the bytes are one map and nothing else (proto_scan.h says which), -E_NOMEM. */
int proto_map_open(const void *bytes, size_t n, struct proto_map **ret, struct reason *why);
struct proto_map *proto_map_close(struct proto_map *map); /* NULL ok; returns NULL */

/* Reads the fields of part into its struct, which must be zeroed. On failure (-E_PROTO, -E_NOMEM) lists already read
 * stay for proto_fields_free. */
int proto_map_read(const struct proto_map *map, const struct proto_part *part, struct reason *why);

/* Frees what the lists own; zeroed structs are fine. */
void proto_fields_free(const struct proto_part *part);

/* Replaces every one of the n bytes at s that is no part of well-formed UTF-8 or belongs to a control character by '?':
 * what a terminal or a log gets to see does nothing but show. */
void proto_text_clean(char *s, size_t n);

/* Whether the n bytes at s are printable ASCII without blanks. */
bool proto_text_is_word(const char *s, size_t n);

#endif
