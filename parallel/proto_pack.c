/* From structs to msgpack, led by field tables. The first failure sticks in the output and the rest writes nothing, so
 * that the walk needs no checks; proto_pack looks once at the end. */
#include "parallel/proto_field.h"

#include <assert.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>

#include "runtime/base/bounds.h"
#include "runtime/base/mem.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bins of numbers are copied as they lie in memory");

#define FIRST_BYTES 512

struct out {
    msgpack_packer packer;
    uint8_t *bytes;
    size_t n, cap, max;
    int r;
};

static int out_write(void *data, const char *bytes, size_t n)
{
    struct out *o = data;

    if (o->r == 0 && n > o->max - o->n)
        o->r = -E_INVAL;
    if (o->r == 0 && n > o->cap - o->n) {
        const size_t cap = 2 * (o->n + n) + FIRST_BYTES;
        uint8_t *bigger = mem_resize(o->bytes, o->cap, cap, 1);

        if (bigger == NULL) {
            o->r = -E_NOMEM;
        } else {
            o->bytes = bigger;
            o->cap = cap;
        }
    }
    if (o->r < 0)
        return -1;
    memcpy(o->bytes + o->n, bytes, n);
    o->n += n;
    return 0;
}

static void out_demand(struct out *o, bool ok)
{
    if (!ok && o->r == 0)
        o->r = -E_INVAL;
}

static void pack_bin(struct out *o, const void *bytes, size_t n)
{
    msgpack_pack_bin(&o->packer, n);
    if (n > 0)
        msgpack_pack_bin_body(&o->packer, bytes, n);
}

static void pack_uint(struct out *o, uint64_t value, uint64_t max)
{
    out_demand(o, value <= max);
    msgpack_pack_uint64(&o->packer, value);
}

static void pack_word(struct out *o, const char *s, size_t max)
{
    const size_t n = strnlen(s, max + 1);

    out_demand(o, n <= max && proto_text_is_word(s, n));
    if (o->r == 0)
        msgpack_pack_str_with_body(&o->packer, s, n);
}

static void pack_text(struct out *o, const char *s, size_t max)
{
    const size_t n = strnlen(s, max + 1);
    char clean[TEXT_MAX_LEN + 1];

    assert(max <= TEXT_MAX_LEN);
    out_demand(o, n <= max);
    if (o->r < 0)
        return;
    memcpy(clean, s, n);
    proto_text_clean(clean, n);
    msgpack_pack_str_with_body(&o->packer, clean, n);
}

static void pack_scalar(struct out *o, const struct proto_field *f, const void *at)
{
    assert(f->kind <= FIELD_WORD);
    switch (f->kind) {
    case FIELD_BOOL:
        if (*(const bool *)at)
            msgpack_pack_true(&o->packer);
        else
            msgpack_pack_false(&o->packer);
        break;
    case FIELD_U16:
        pack_uint(o, *(const uint16_t *)at, f->max);
        break;
    case FIELD_U32:
        pack_uint(o, *(const uint32_t *)at, f->max);
        break;
    case FIELD_U64:
        pack_uint(o, *(const uint64_t *)at, f->max);
        break;
    case FIELD_F32:
        out_demand(o, isfinite(*(const float *)at));
        msgpack_pack_float(&o->packer, *(const float *)at);
        break;
    case FIELD_F64:
    case FIELD_F64_ANY:
        out_demand(o, f->kind == FIELD_F64_ANY || isfinite(*(const double *)at));
        msgpack_pack_double(&o->packer, *(const double *)at);
        break;
    case FIELD_BYTES:
        pack_bin(o, at, f->max);
        break;
    case FIELD_TEXT:
        pack_text(o, at, f->max);
        break;
    case FIELD_WORD:
        pack_word(o, at, f->max);
        break;
    default:
        break;
    }
}

static void pack_value(struct out *o, const struct proto_field *f, const char *base);

static void pack_record(struct out *o, const struct proto_field *f, const char *record)
{
    msgpack_pack_array(&o->packer, f->n_fields);
    for (uint32_t i = 0; i < f->n_fields; i++)
        pack_value(o, &f->fields[i], record);
}

/* n elements that lie at elems. */
static void pack_list(struct out *o, const struct proto_field *f, const char *elems, uint32_t n)
{
    out_demand(o, n <= f->max && (n == 0 || elems != NULL));
    if (o->r < 0)
        return;
    if (f->kind == FIELD_F64S || f->kind == FIELD_BINS) {
        pack_bin(o, elems, (size_t)n * f->elem_size);
        return;
    }
    msgpack_pack_array(&o->packer, n);
    for (uint32_t i = 0; i < n; i++) {
        const char *elem = elems + (size_t)i * f->elem_size;

        if (f->kind == FIELD_WORDS)
            pack_word(o, elem, f->elem_size - 1);
        else if (f->kind == FIELD_U32S)
            pack_uint(o, *(const uint32_t *)(const void *)elem, UINT32_MAX);
        else
            pack_record(o, f, elem);
    }
}

static void pack_value(struct out *o, const struct proto_field *f, const char *base)
{
    const void *at = base + f->offset;

    if (f->kind == FIELD_RECORD)
        pack_record(o, f, at);
    else if (f->kind < FIELD_WORDS)
        pack_scalar(o, f, at);
    else
        pack_list(o, f, f->kind == FIELD_WORDS ? at : *(char *const *)at,
                  *(const uint32_t *)(const void *)(base + f->count));
}

static bool is_present(const struct proto_field *f, const char *base)
{
    return f->presence == FIELD_ALWAYS || *(const bool *)(base + f->condition) == (f->presence == FIELD_IF_SET);
}

static void release(void *bytes)
{
    mem_free(bytes);
}

int proto_pack(const struct proto_part *parts, uint32_t n_parts, size_t max_bytes, struct blob **ret)
{
    struct out o = {.max = max_bytes};
    uint32_t n = 0;

    msgpack_packer_init(&o.packer, &o, out_write);
    for (uint32_t i = 0; i < n_parts; i++) {
        for (uint32_t j = 0; j < parts[i].n; j++)
            n += is_present(&parts[i].fields[j], parts[i].base);
    }
    msgpack_pack_map(&o.packer, n);
    for (uint32_t i = 0; i < n_parts; i++) {
        for (uint32_t j = 0; j < parts[i].n; j++) {
            const struct proto_field *f = &parts[i].fields[j];

            if (!is_present(f, parts[i].base))
                continue;
            msgpack_pack_str_with_body(&o.packer, f->name, strlen(f->name));
            pack_value(&o, f, parts[i].base);
        }
    }
    if (o.r == 0)
        o.r = blob_wrap(o.bytes, o.n, release, o.bytes, ret);
    if (o.r < 0)
        mem_free(o.bytes);
    return o.r;
}
