/* From msgpack to structs, led by field tables. Every value is checked for its type and its field's limit before it is
 * stored, and a list gets memory only for elements that are there (proto_scan saw them). */
#include "parallel/proto_field.h"

#include <assert.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>

#include "parallel/proto_scan.h"
#include "runtime/base/mem.h"

struct proto_map {
    msgpack_unpacked unpacked; /* data is the map; strings and bins point into the caller's bytes */
};

int proto_map_open(const void *bytes, size_t n, struct proto_map **ret, struct reason *why)
{
    struct proto_map *map;
    size_t at = 0;
    int r = proto_scan(bytes, n, why);

    if (r < 0)
        return r;
    map = mem_calloc(1, sizeof(*map));
    if (map == NULL)
        return -E_NOMEM;
    msgpack_unpacked_init(&map->unpacked);
    switch (msgpack_unpack_next(&map->unpacked, bytes, n, &at)) {
    case MSGPACK_UNPACK_SUCCESS:
        break;
    case MSGPACK_UNPACK_NOMEM_ERROR:
        r = -E_NOMEM;
        break;
    default:
        r = reason_set(why, -E_PROTO, "the head is not msgpack");
    }
    if (r == 0 && (map->unpacked.data.type != MSGPACK_OBJECT_MAP || at != n))
        r = reason_set(why, -E_PROTO, "the head is not one map");
    if (r < 0) {
        proto_map_close(map);
        return r;
    }
    *ret = map;
    return 0;
}

struct proto_map *proto_map_close(struct proto_map *map)
{
    if (map != NULL)
        msgpack_unpacked_destroy(&map->unpacked);
    return mem_free(map);
}

/* The first entry called name; NULL if there is none. */
static const msgpack_object *find(const struct proto_map *map, const char *name)
{
    const msgpack_object_map *m = &map->unpacked.data.via.map;
    const size_t n = strlen(name);

    for (uint32_t i = 0; i < m->size; i++) {
        const msgpack_object_str *key = &m->ptr[i].key.via.str;

        if (key->size == n && memcmp(key->ptr, name, n) == 0)
            return &m->ptr[i].val;
    }
    return NULL;
}

static int refuse(const struct proto_field *f, const char *what, struct reason *why)
{
    return reason_set(why, -E_PROTO, "field \"%s\" %s", f->name, what);
}

static int read_uint(const struct proto_field *f, const msgpack_object *o, uint64_t max, uint64_t *ret,
                     struct reason *why)
{
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return refuse(f, "is no unsigned number", why);
    if (o->via.u64 > max)
        return reason_set(why, -E_PROTO, "field \"%s\" is %llu, more than %llu", f->name,
                          (unsigned long long)o->via.u64, (unsigned long long)max);
    *ret = o->via.u64;
    return 0;
}

static int read_string(const struct proto_field *f, const msgpack_object *o, uint64_t max, char *ret,
                       struct reason *why)
{
    if (o->type != MSGPACK_OBJECT_STR)
        return refuse(f, "is no text", why);
    if (o->via.str.size > max)
        return reason_set(why, -E_PROTO, "field \"%s\" has %u bytes, more than %llu", f->name, o->via.str.size,
                          (unsigned long long)max);
    if (f->kind != FIELD_TEXT && !proto_text_is_word(o->via.str.ptr, o->via.str.size))
        return refuse(f, "has a blank, a control or a foreign character", why);
    memcpy(ret, o->via.str.ptr, o->via.str.size);
    ret[o->via.str.size] = '\0';
    if (f->kind == FIELD_TEXT)
        proto_text_clean(ret, o->via.str.size);
    return 0;
}

static int read_float(const struct proto_field *f, const msgpack_object *o, void *at, struct reason *why)
{
    if (o->type != (f->kind == FIELD_F32 ? MSGPACK_OBJECT_FLOAT32 : MSGPACK_OBJECT_FLOAT64))
        return refuse(f, "is no number of its width", why);
    if (f->kind != FIELD_F64_ANY && !isfinite(o->via.f64))
        return refuse(f, "is not finite", why);
    if (f->kind == FIELD_F32)
        *(float *)at = (float)o->via.f64; /* exact: the library widened it */
    else
        *(double *)at = o->via.f64;
    return 0;
}

static int read_scalar(const struct proto_field *f, const msgpack_object *o, void *at, struct reason *why)
{
    uint64_t u = 0;
    int r;

    switch (f->kind) {
    case FIELD_BOOL:
        if (o->type != MSGPACK_OBJECT_BOOLEAN)
            return refuse(f, "is no boolean", why);
        *(bool *)at = o->via.boolean;
        return 0;
    case FIELD_F32:
    case FIELD_F64:
    case FIELD_F64_ANY:
        return read_float(f, o, at, why);
    case FIELD_BYTES:
        if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size != f->max)
            return refuse(f, "is no bin of its size", why);
        memcpy(at, o->via.bin.ptr, f->max);
        return 0;
    case FIELD_TEXT:
    case FIELD_WORD:
        return read_string(f, o, f->max, at, why);
    default:
        break;
    }
    r = read_uint(f, o, f->max, &u, why);
    if (r == 0 && f->kind == FIELD_U16)
        *(uint16_t *)at = (uint16_t)u;
    else if (r == 0 && f->kind == FIELD_U32)
        *(uint32_t *)at = (uint32_t)u;
    else if (r == 0)
        *(uint64_t *)at = u;
    return r;
}

static int read_value(const struct proto_field *f, const msgpack_object *o, char *base, struct reason *why);

static int read_record(const struct proto_field *f, const msgpack_object *o, char *record, struct reason *why)
{
    int r = 0;

    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size < f->n_fields)
        return refuse(f, "has a record with too few values", why);
    for (uint32_t i = 0; r == 0 && i < f->n_fields; i++)
        r = read_value(&f->fields[i], &o->via.array.ptr[i], record, why);
    return r;
}

/* How many elements the list has on the wire. */
static int list_size(const struct proto_field *f, const msgpack_object *o, uint32_t *ret, struct reason *why)
{
    const bool packed = f->kind == FIELD_F64S || f->kind == FIELD_BINS;
    uint32_t n;

    if (o->type != (packed ? MSGPACK_OBJECT_BIN : MSGPACK_OBJECT_ARRAY))
        return refuse(f, "is no list of its kind", why);
    if (packed && o->via.bin.size % f->elem_size != 0)
        return refuse(f, "is cut inside an element", why);
    n = packed ? o->via.bin.size / f->elem_size : o->via.array.size;
    if (n > f->max)
        return reason_set(why, -E_PROTO, "field \"%s\" has %u elements, more than %llu", f->name, n,
                          (unsigned long long)f->max);
    *ret = n;
    return 0;
}

static int read_elem(const struct proto_field *f, const msgpack_object *o, void *elem, struct reason *why)
{
    uint64_t u = 0;
    int r;

    if (f->kind == FIELD_WORDS)
        return read_string(f, o, f->elem_size - 1, elem, why);
    if (f->kind == FIELD_RECORDS)
        return read_record(f, o, elem, why);
    r = read_uint(f, o, UINT32_MAX, &u, why);
    if (r == 0)
        *(uint32_t *)elem = (uint32_t)u;
    return r;
}

static int read_list(const struct proto_field *f, const msgpack_object *o, char *base, struct reason *why)
{
    uint32_t *count = (uint32_t *)(void *)(base + f->count);
    char *elems = base + f->offset;
    uint32_t n = 0;
    int r = list_size(f, o, &n, why);

    if (r < 0)
        return r;
    if (f->counted && n != *count)
        return reason_set(why, -E_PROTO, "field \"%s\" has %u elements, its companion %u", f->name, n, *count);
    *count = n;
    if (n == 0)
        return 0;
    if (f->kind != FIELD_WORDS) {
        char **list = (char **)(void *)elems;

        assert(*list == NULL);
        elems = *list = mem_calloc(n, f->elem_size);
        if (elems == NULL)
            return -E_NOMEM;
    }
    if (f->kind == FIELD_F64S || f->kind == FIELD_BINS)
        memcpy(elems, o->via.bin.ptr, o->via.bin.size);
    else
        for (uint32_t i = 0; r == 0 && i < n; i++)
            r = read_elem(f, &o->via.array.ptr[i], elems + (size_t)i * f->elem_size, why);
    return r;
}

static int read_value(const struct proto_field *f, const msgpack_object *o, char *base, struct reason *why)
{
    if (f->kind == FIELD_RECORD)
        return read_record(f, o, base + f->offset, why);
    if (f->kind < FIELD_WORDS)
        return read_scalar(f, o, base + f->offset, why);
    return read_list(f, o, base, why);
}

int proto_map_read(const struct proto_map *map, const struct proto_part *part, struct reason *why)
{
    char *base = part->base;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < part->n; i++) {
        const struct proto_field *f = &part->fields[i];
        const msgpack_object *o;

        if (f->presence != FIELD_ALWAYS && *(const bool *)(base + f->condition) != (f->presence == FIELD_IF_SET))
            continue;
        o = find(map, f->name);
        r = o == NULL ? refuse(f, "is missing", why) : read_value(f, o, base, why);
    }
    return r;
}

void proto_fields_free(const struct proto_part *part)
{
    for (uint32_t i = 0; i < part->n; i++) {
        const struct proto_field *f = &part->fields[i];

        if (f->kind > FIELD_RECORD) {
            void **list = (void **)(void *)((char *)part->base + f->offset);

            *list = mem_free(*list);
        }
    }
}
