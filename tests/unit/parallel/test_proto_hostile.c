/* Heads that our own encoder would never write, made with the bare library: one value of a well-formed head set to its
 * limit, which passes, and past it, which is refused with the reason. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/parallel/proto_samples.h"

/* A sample's head as objects that may be changed before it is packed again. */
struct forge {
    struct msg *m;
    struct blob *head;
    msgpack_unpacked u;
};

static void forge_open(enum msg_type type, struct forge *ret)
{
    size_t at = 0;

    ret->m = proto_sample(type);
    assert_non_null(ret->m);
    assert_int_equal(proto_encode(ret->m, &ret->head), 0);
    msgpack_unpacked_init(&ret->u);
    assert_int_equal(msgpack_unpack_next(&ret->u, ret->head->data, ret->head->size, &at), MSGPACK_UNPACK_SUCCESS);
}

static msgpack_object *forge_at(struct forge *f, const char *name)
{
    const msgpack_object_map map = f->u.data.via.map;

    for (uint32_t i = 0; i < map.size; i++) {
        const msgpack_object_str key = map.ptr[i].key.via.str;

        if (key.size == strlen(name) && memcmp(key.ptr, name, key.size) == 0)
            return &map.ptr[i].val;
    }
    fail_msg("no field %s", name);
    return NULL;
}

/* Packs, decodes, frees. */
static int forge_try(struct forge *f, struct reason *why)
{
    struct msg *back = NULL;
    struct blob *head = NULL;
    msgpack_sbuffer b;
    msgpack_packer p;
    int r;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    assert_int_equal(msgpack_pack_object(&p, f->u.data), 0);
    assert_int_equal(blob_wrap(b.data, b.size, free, b.data, &head), 0);
    r = proto_decode(head, f->m->body, &back, why);
    msg_free(back);
    blob_unref(head);
    blob_unref(f->head);
    msg_free(f->m);
    msgpack_unpacked_destroy(&f->u);
    return r;
}

struct number_case {
    enum msg_type type;
    const char *name;
    int i, j;      /* where in the list's record, -1 = the field is no list */
    uint64_t most; /* that passes */
};

static int try_number(const struct number_case *c, uint64_t value, struct reason *why)
{
    struct forge f;
    msgpack_object *o;

    forge_open(c->type, &f);
    o = forge_at(&f, c->name);
    if (c->i >= 0) {
        assert_int_equal(o->type, MSGPACK_OBJECT_ARRAY);
        assert_true((uint32_t)c->i < o->via.array.size);
        o = &o->via.array.ptr[c->i];
    }
    if (c->j >= 0) {
        assert_int_equal(o->type, MSGPACK_OBJECT_ARRAY);
        assert_true((uint32_t)c->j < o->via.array.size);
        o = &o->via.array.ptr[c->j];
    }
    assert_int_equal(o->type, MSGPACK_OBJECT_POSITIVE_INTEGER);
    o->via.u64 = value;
    return forge_try(&f, why);
}

static void numbers_past_their_limit_are_refused(void **state)
{
    static const struct number_case cases[] = {
        {MSG_JOIN, "threads", -1, -1, UINT32_MAX},
        {MSG_JOIN, "control", -1, -1, UINT16_MAX},
        {MSG_WELCOME, "bulk", -1, -1, UINT16_MAX},
        {MSG_REFUSE, "code", -1, -1, UINT32_MAX},
        {MSG_BYE, "code", -1, -1, MSG_BYE_END - 1},
        {MSG_PLAN, "in_flight", -1, -1, MICROBATCHES_MAX},
        {MSG_PLAN, "holders", 0, 1, PLAN_WEIGHT_MAX},
        {MSG_PLAN, "holders", 0, 0, 0},
        {MSG_PLAN, "stages", 0, 1, 3},
        {MSG_PLAN, "units", -1, -1, 4},
        {MSG_LEASES, "leases", 0, 0, MICROBATCHES_MAX - 1},
        {MSG_LEASES, "leases", 0, 1, MSG_MODE_END - 1},
        {MSG_LEASES, "leases", 1, 2, 3},
        {MSG_LEASES, "leases", 1, 3, UNITS_MAX},
        {MSG_LEASES, "leases", 0, 5, PEERS_MAX - 1},
        {MSG_DONE, "microbatch", -1, -1, MICROBATCHES_MAX - 1},
        {MSG_DONE, "mode", -1, -1, MSG_MODE_END - 1},
        {MSG_DONE, "u0", -1, -1, 3},
        {MSG_DONE, "u1", -1, -1, UNITS_MAX},
        {MSG_BOUNDARY, "key", 2, -1, MICROBATCHES_MAX - 1},
        {MSG_BOUNDARY, "key", 3, -1, MSG_MODE_END - 1},
        {MSG_BOUNDARY, "key", 4, -1, UNITS_MAX - 1},
        {MSG_BOUNDARY, "key", 5, -1, MSG_DIRECTION_END - 1},
        {MSG_BOUNDARY, "offset", -1, -1, 2000 - 3},
        {MSG_BOUNDARY, "n", -1, -1, 3},
        {MSG_NEED, "chunk", 2, -1, GROUPS_MAX - 1},
        {MSG_NEED, "chunk", 4, -1, MSG_CHUNK_KIND_END - 1},
        {MSG_NEED, "chunk", 5, -1, UINT64_MAX - 2},
        {MSG_CHUNK, "key", 4, -1, MSG_CHUNK_PARTIAL},
        {MSG_CHUNK, "key", 6, -1, 2},
        {MSG_REDUCE, "group", -1, -1, GROUPS_MAX - 1},
        {MSG_REDUCE, "attempt", -1, -1, UINT32_MAX},
        {MSG_REDUCE, "members", 2, 0, PEERS_MAX - 1},
        {MSG_REDUCE, "members", 1, 0, 3},
        {MSG_REDUCE, "members", 2, 2, 700},
        {MSG_REDUCED, "group", -1, -1, GROUPS_MAX - 1},
        {MSG_SNAPSHOT_TAKEN, "tensors", 2, -1, TENSORS_MAX - 1},
        {MSG_SNAPSHOT_TAKEN, "tensors", 0, -1, 3},
        {MSG_STATE_GET, "key", 1, -1, TENSORS_MAX - 1},
        {MSG_STATE_GET, "key", 2, -1, 2},
        {MSG_STATE_GET, "key", 4, -1, BODY_BYTES_MAX / 4},
        {MSG_STATE_CHUNK, "key", 3, -1, UINT64_MAX - 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reason why = {0};

        if (try_number(&cases[i], cases[i].most, &why) != 0)
            fail_msg("%s %s at its limit: %s", msg_name(cases[i].type), cases[i].name, why.text);
        if (cases[i].most == UINT64_MAX)
            continue;
        if (try_number(&cases[i], cases[i].most + 1, &why) != -E_PROTO)
            fail_msg("%s %s passes its limit", msg_name(cases[i].type), cases[i].name);
        assert_true(strncmp(why.text, msg_name(cases[i].type), strlen(msg_name(cases[i].type))) == 0);
    }
}

struct list_case {
    enum msg_type type;
    const char *name;
    uint32_t elem; /* bytes of an element in a bin; 0 = an array */
    uint32_t most;
};

/* The list gets n elements, each like its first. What several elements must keep together may refuse it later. */
static void try_list(const struct list_case *c, uint32_t n, struct reason *why)
{
    struct forge f;
    msgpack_object *o;
    void *longer;

    forge_open(c->type, &f);
    o = forge_at(&f, c->name);
    if (c->elem > 0) {
        assert_int_equal(o->type, MSGPACK_OBJECT_BIN);
        longer = calloc(n, c->elem);
        o->via.bin.ptr = longer;
        o->via.bin.size = n * c->elem;
    } else {
        assert_int_equal(o->type, MSGPACK_OBJECT_ARRAY);
        longer = calloc(n, sizeof(msgpack_object));
        assert_non_null(longer);
        for (uint32_t i = 0; i < n; i++)
            ((msgpack_object *)longer)[i] = o->via.array.ptr[0];
        o->via.array.ptr = longer;
        o->via.array.size = n;
    }
    assert_non_null(longer);
    *why = (struct reason){0};
    forge_try(&f, why);
    free(longer);
}

static void lists_past_their_limit_are_refused(void **state)
{
    static const struct list_case cases[] = {
        {MSG_JOIN, "addrs", 0, ADDRS_MAX},
        {MSG_PROFILE, "forward", 8, UNITS_MAX},
        {MSG_DIAL, "keys", KEY_BYTES, PEERS_MAX},
        {MSG_PLAN, "peers", 0, PEERS_MAX},
        {MSG_PLAN, "stages", 0, STAGES_MAX},
        {MSG_PLAN, "holders", 0, HOLDERS_MAX},
        {MSG_LEASES, "leases", 0, MSG_LEASES_MAX},
        {MSG_REDUCE, "members", 0, PEERS_MAX},
        {MSG_REDUCED, "squares", 8, TENSORS_MAX},
        {MSG_COMMIT, "groups", 0, GROUPS_MAX},
        {MSG_SNAPSHOT_TAKEN, "tensors", 0, TENSORS_MAX},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reason why;
        char expected[128];

        try_list(&cases[i], cases[i].most, &why);
        assert_null(strstr(why.text, "elements, more than"));
        try_list(&cases[i], cases[i].most + 1, &why);
        snprintf(expected, sizeof(expected), "%s: field \"%s\" has %u elements, more than %u", msg_name(cases[i].type),
                 cases[i].name, cases[i].most + 1, cases[i].most);
        assert_string_equal(why.text, expected);
    }
}

/* Sets a field to an object, and expects a refusal that says what. */
static void refused(enum msg_type type, const char *name, msgpack_object value, const char *expected)
{
    struct forge f;
    struct reason why = {0};

    forge_open(type, &f);
    *forge_at(&f, name) = value;
    assert_int_equal(forge_try(&f, &why), -E_PROTO);
    if (strstr(why.text, expected) == NULL)
        fail_msg("\"%s\" says nothing of \"%s\"", why.text, expected);
}

static msgpack_object of_f64(double x)
{
    return (msgpack_object){.type = MSGPACK_OBJECT_FLOAT64, .via.f64 = x};
}

static msgpack_object of_bin(const char *bytes, uint32_t n)
{
    return (msgpack_object){.type = MSGPACK_OBJECT_BIN, .via.bin = {n, bytes}};
}

static msgpack_object of_str(const char *bytes, uint32_t n)
{
    return (msgpack_object){.type = MSGPACK_OBJECT_STR, .via.str = {n, bytes}};
}

static void values_of_the_wrong_kind_are_refused(void **state)
{
    static char bytes[2 * TEXT_MAX_LEN];

    (void)state;
    memset(bytes, 'x', sizeof(bytes));
    refused(MSG_PLAN, "predicted", of_f64(NAN), "is not finite");
    refused(MSG_PLAN, "predicted", of_f64(-1), "predicts");
    refused(MSG_LEASES, "scale", of_f64(0.5), "is no number of its width");
    refused(MSG_DONE, "loss", of_bin(bytes, 8), "is no number of its width");
    refused(MSG_COMMIT, "norm", of_f64(NAN), "in a step that counts");
    refused(MSG_JOIN, "key", of_bin(bytes, KEY_BYTES - 1), "is no bin of its size");
    refused(MSG_JOIN, "key", of_bin(bytes, KEY_BYTES + 1), "is no bin of its size");
    refused(MSG_JOIN, "key", of_str(bytes, KEY_BYTES), "is no bin of its size");
    refused(MSG_JOIN, "name", of_str(bytes, NAME_MAX_LEN + 1), "has 65 bytes, more than 64");
    refused(MSG_JOIN, "name", of_bin(bytes, 4), "is no text");
    refused(MSG_JOIN, "fingerprint", of_str("a b", 3), "has a blank");
    refused(MSG_JOIN, "fingerprint", of_str("a\0b", 3), "has a blank");
    refused(MSG_LEAVE, "text", of_str(bytes, TEXT_MAX_LEN + 1), "has 1025 bytes, more than 1024");
    refused(MSG_LINK, "up", of_f64(1), "is no boolean");
    refused(MSG_DIAL, "keys", of_bin(bytes, KEY_BYTES + 1), "is cut inside an element");
    refused(MSG_PROFILE, "backward", of_bin(bytes, 16), "has 2 elements, its companion 3");
    refused(MSG_SNAPSHOT_TAKEN, "digests", of_bin(bytes, 64), "has 2 elements, its companion 3");
    refused(MSG_VIEW, "view", of_bin("\x80", 1), "\"seal\" is missing");
    refused(MSG_VIEW, "view", of_bin("", 0), "cut short");
    refused(MSG_VIEW, "view", of_bin("\x81\xa4seal\xa1y", 8), "is no view");
    refused(MSG_VIEW, "sig", of_bin(bytes, SIGNATURE_BYTES - 1), "is no bin of its size");
}

static void negative_numbers_are_refused(void **state)
{
    (void)state;
    refused(MSG_VIEW_ACK, "number", (msgpack_object){.type = MSGPACK_OBJECT_NEGATIVE_INTEGER, .via.i64 = -1},
            "is no unsigned number");
}

static void a_longer_record_is_read_and_a_shorter_one_refused(void **state)
{
    struct forge f;
    msgpack_object *o, longer[8];

    (void)state;
    forge_open(MSG_STATE_GET, &f);
    o = forge_at(&f, "key");
    memcpy(longer, o->via.array.ptr, o->via.array.size * sizeof(*longer));
    longer[o->via.array.size++] = of_f64(1);
    o->via.array.ptr = longer;
    assert_int_equal(forge_try(&f, NULL), 0);

    forge_open(MSG_STATE_GET, &f);
    forge_at(&f, "key")->via.array.size--;
    assert_int_equal(forge_try(&f, NULL), -E_PROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_past_their_limit_are_refused),
        cmocka_unit_test(lists_past_their_limit_are_refused),
        cmocka_unit_test(values_of_the_wrong_kind_are_refused),
        cmocka_unit_test(negative_numbers_are_refused),
        cmocka_unit_test(a_longer_record_is_read_and_a_shorter_one_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
