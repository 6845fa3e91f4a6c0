/* What all messages have in common: the head's first three fields, the order of the checks, memory. Each message's own
 * fields and rules stand in its table (proto_type.h).
 *
 * Invariant: proto_decode returns a message only if proto_encode would accept it, and the other way round: both run the
 * same limits and the same check. */
#include "parallel/proto.h"

#include <assert.h>

#include "parallel/proto_field.h"
#include "parallel/proto_type.h"
#include "runtime/base/mem.h"

static const struct proto_type *const types[MSG_TYPE_END] = {
#define X(NAME, name) [MSG_##NAME] = &proto_type_##name,
    PROTO_TYPES(X)
#undef X
};

static const char *const names[MSG_TYPE_END] = {
#define X(NAME, name) [MSG_##NAME] = #NAME,
    PROTO_TYPES(X)
#undef X
};

#define X(NAME, name) +1
_Static_assert(MSG_TYPE_END == 1 PROTO_TYPES(X), "a message is missing in PROTO_TYPES");
#undef X
_Static_assert(MSG_JOIN == 1 && MSG_TYPE_END == 28, "message numbers are on the wire: append only");

struct wire_head {
    uint32_t version, type;
    uint64_t term;
};

/* In the order of reading: what another version means by its type is not ours to judge. */
static const struct proto_field head_fields[] = {
    {U32(struct wire_head, "v", version, UINT32_MAX)},
    {U32(struct wire_head, "t", type, UINT32_MAX)},
    {U64(struct wire_head, "term", term)},
};

static struct proto_part own_part(const struct msg *m)
{
    const struct proto_type *type = types[m->type];

    /* All structs of the union begin where the first does. */
    return (struct proto_part){.fields = type->fields, .n = type->n_fields, .base = (void *)&m->join};
}

struct msg *msg_new(enum msg_type type, uint64_t term)
{
    struct msg *m = mem_calloc(1, sizeof(*m));

    assert(type > 0 && type < MSG_TYPE_END);
    if (m != NULL) {
        m->type = type;
        m->term = term;
    }
    return m;
}

struct msg *msg_free(struct msg *m)
{
    if (m == NULL)
        return NULL;
    const struct proto_part own = own_part(m);

    if (types[m->type]->done != NULL)
        types[m->type]->done(m);
    proto_fields_free(&own);
    blob_unref(m->body);
    return mem_free(m);
}

const char *msg_name(enum msg_type type)
{
    return type > 0 && type < MSG_TYPE_END ? names[type] : "?";
}

int proto_check_units(uint32_t u0, uint32_t u1, struct reason *why)
{
    if (u0 >= u1 || u1 > UNITS_MAX)
        return reason_set(why, -E_PROTO, "[%u, %u) is no span of units", u0, u1);
    return 0;
}

int proto_check_range(uint64_t offset, uint64_t n, struct reason *why)
{
    if (n == 0 || n > UINT64_MAX - offset)
        return reason_set(why, -E_PROTO, "%llu elements at %llu are no range", (unsigned long long)n,
                          (unsigned long long)offset);
    return 0;
}

int proto_check_body(const struct msg *m, uint64_t n, uint64_t elem_size, struct reason *why)
{
    /* Divided, not multiplied: n is anything. */
    if (m->body->size % elem_size != 0 || m->body->size / elem_size != n)
        return reason_set(why, -E_PROTO, "a body of %zu bytes for %llu elements of %llu", m->body->size,
                          (unsigned long long)n, (unsigned long long)elem_size);
    return 0;
}

static int check(const struct msg *m, struct reason *why)
{
    const struct proto_type *type = types[m->type];

    if (m->body == NULL && type->body == PROTO_BODY_MUST)
        return reason_set(why, -E_PROTO, "its body is missing");
    if (m->body != NULL && type->body == PROTO_BODY_NONE)
        return reason_set(why, -E_PROTO, "it has a body where none belongs");
    if (m->body != NULL && m->body->size > BODY_BYTES_MAX)
        return reason_set(why, -E_PROTO, "its body has %zu bytes, more than %u", m->body->size, BODY_BYTES_MAX);
    return type->check == NULL ? 0 : type->check(m, why);
}

int proto_encode(const struct msg *m, struct blob **ret_head)
{
    struct wire_head head = {.version = PROTO_VERSION, .type = m->type, .term = m->term};

    if (m->type <= 0 || m->type >= MSG_TYPE_END || check(m, NULL) < 0)
        return -E_INVAL;
    const struct proto_part parts[] = {
        {.fields = head_fields, .n = FIELD_COUNT(head_fields), .base = &head},
        own_part(m),
    };
    return proto_pack(parts, 2, HEAD_BYTES_MAX, ret_head);
}

/* The fields that say how to read the rest. */
static int read_head(const struct proto_map *map, struct wire_head *head, struct reason *why)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < FIELD_COUNT(head_fields); i++) {
        r = proto_map_read(map, &(struct proto_part){.fields = &head_fields[i], .n = 1, .base = head}, why);
        if (r == 0 && i == 0 && head->version != PROTO_VERSION)
            r = reason_set(why, -E_VERSION, "the sender speaks version %u of the protocol, we speak version %u",
                           head->version, PROTO_VERSION);
        if (r == 0 && i == 1 && (head->type == 0 || head->type >= MSG_TYPE_END))
            r = reason_set(why, -E_UNSUPPORTED, "a message of unknown type %u", head->type);
    }
    return r;
}

static int read_own(const struct proto_map *map, struct blob *body, struct msg *m, struct reason *why)
{
    const struct proto_part own = own_part(m);
    int r = proto_map_read(map, &own, why);

    if (r == 0 && types[m->type]->open != NULL)
        r = types[m->type]->open(m, why);
    m->body = blob_ref(body);
    if (r == 0)
        r = check(m, why);
    return r == 0 ? 0 : reason_wrap(why, r, "%s", msg_name(m->type));
}

int proto_decode(struct blob *head, struct blob *body, struct msg **ret, struct reason *why)
{
    struct proto_map *map = NULL;
    struct wire_head h = {0};
    struct msg *m = NULL;
    int r;

    if (head->size > HEAD_BYTES_MAX)
        return reason_set(why, -E_PROTO, "a head of %zu bytes, more than %u", head->size, HEAD_BYTES_MAX);
    r = proto_map_open(head->data, head->size, &map, why);
    if (r == 0)
        r = read_head(map, &h, why);
    if (r == 0) {
        m = msg_new((enum msg_type)h.type, h.term);
        r = m == NULL ? -E_NOMEM : read_own(map, body, m, why);
    }
    proto_map_close(map);
    if (r < 0) {
        msg_free(m);
        return r;
    }
    *ret = m;
    return 0;
}
