/* The limits of messages: at each limit a message passes, one past it nobody sends it, and nobody accepts it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/proto_field.h"
#include "parallel/proto_scan.h"
#include "runtime/base/mem.h"
#include "tests/unit/parallel/proto_samples.h"

/* Encodes the sample of TYPE (called m) after the statements, and expects rc; what can be encoded must decode. */
#define TRY(TYPE, rc, ...)                                                                                             \
    do {                                                                                                               \
        struct msg *m = proto_sample(MSG_##TYPE);                                                                      \
        assert_non_null(m);                                                                                            \
        __VA_ARGS__;                                                                                                   \
        try_and_free(m, rc);                                                                                           \
    } while (0)
#define OK(TYPE, ...)  TRY(TYPE, 0, __VA_ARGS__)
#define BAD(TYPE, ...) TRY(TYPE, -E_INVAL, __VA_ARGS__)

static void try_and_free(struct msg *m, int expected)
{
    struct blob *head = NULL;
    struct msg *back = NULL;
    struct reason why = {0};

    assert_int_equal(proto_encode(m, &head), expected);
    if (expected == 0 && proto_decode(head, m->body, &back, &why) < 0)
        fail_msg("%s", why.text);
    blob_unref(head);
    msg_free(back);
    msg_free(m);
}

static void body_of(struct msg *m, size_t n)
{
    m->body = blob_unref(m->body);
    assert_int_equal(blob_new(n, &m->body), 0);
    memset(m->body->data, 0, n);
}

/* Replaces a list by n copies of its first element; numbers them where that matters. */
static void stretch(void *list, uint32_t *count, size_t size, uint32_t n)
{
    void **at = list;
    void *longer = mem_calloc(n, size);

    assert_non_null(longer);
    for (uint32_t i = 0; i < n; i++)
        memcpy((char *)longer + i * size, *at, size);
    mem_free(*at);
    *at = longer;
    *count = n;
}
#define STRETCH(list, count, n) stretch(&(list), &(count), sizeof(*(list)), n)

static void single_values_keep_their_limits(void **state)
{
    (void)state;
    OK(LEASES, m->leases.leases[0].microbatch = MICROBATCHES_MAX - 1);
    BAD(LEASES, m->leases.leases[0].microbatch = MICROBATCHES_MAX);
    BAD(LEASES, m->leases.leases[1].mode = MSG_MODE_END);
    OK(DONE, m->done.microbatch = MICROBATCHES_MAX - 1);
    BAD(DONE, m->done.microbatch = MICROBATCHES_MAX);
    BAD(DONE, m->done.mode = MSG_MODE_END);
    OK(BOUNDARY, m->boundary.key.unit = UNITS_MAX - 1);
    BAD(BOUNDARY, m->boundary.key.unit = UNITS_MAX);
    BAD(BOUNDARY, m->boundary.key.unit = 0);
    BAD(BOUNDARY, m->boundary.key.direction = MSG_DIRECTION_END);
    BAD(BOUNDARY, m->boundary.key.mode = MSG_MODE_END);
    OK(CHUNK, m->chunk.key.group = GROUPS_MAX - 1);
    BAD(CHUNK, m->chunk.key.group = GROUPS_MAX);
    BAD(CHUNK, m->chunk.key.kind = MSG_CHUNK_KIND_END);
    OK(STATE_GET, m->state_get.key.tensor = TENSORS_MAX - 1);
    BAD(STATE_GET, m->state_get.key.tensor = TENSORS_MAX);
    BAD(STATE_GET, m->state_get.key.part = 3);
    OK(BYE, m->bye.code = MSG_BYE_END - 1);
    BAD(BYE, m->bye.code = MSG_BYE_END);
    BAD(BYE, m->bye.code = 0);
    OK(REFUSE, m->refuse.code = UINT32_MAX); /* reasons of later versions are shown by their text */
    BAD(REFUSE, m->refuse.code = 0);
    assert_int_equal(proto_encode(&(struct msg){.type = MSG_TYPE_END}, &(struct blob *){NULL}), -E_INVAL);
}

static void spans_and_ranges_are_not_empty_and_do_not_overflow(void **state)
{
    (void)state;
    OK(DONE, m->done.u0 = UNITS_MAX - 1; m->done.u1 = UNITS_MAX);
    BAD(DONE, m->done.u0 = UNITS_MAX; m->done.u1 = UNITS_MAX + 1);
    BAD(DONE, m->done.u0 = m->done.u1);
    BAD(LEASES, m->leases.leases[1].u0 = m->leases.leases[1].u1);
    OK(LEASES, m->leases.leases[1].prev = PEERS_MAX - 1);
    BAD(LEASES, m->leases.leases[1].prev = PEERS_MAX);
    BAD(LEASES, m->leases.leases[0].next = PEERS_MAX);
    OK(BOUNDARY, m->boundary.total = m->boundary.offset + m->boundary.n);
    BAD(BOUNDARY, m->boundary.total = m->boundary.offset + m->boundary.n - 1);
    BAD(BOUNDARY, m->boundary.offset = UINT64_MAX - 1);
    BAD(BOUNDARY, m->boundary.n = 0; body_of(m, 0));
    OK(NEED, m->need.chunk.offset = UINT64_MAX - m->need.chunk.n);
    BAD(NEED, m->need.chunk.offset = UINT64_MAX - m->need.chunk.n + 1);
    BAD(NEED, m->need.chunk.n = 0);
    BAD(NEED, m->need.is_chunk = false); /* its boundary is all zeros: before unit 0 */
    BAD(CHUNK, m->chunk.key.offset = UINT64_MAX);
    OK(STATE_GET, m->state_get.key.n = BODY_BYTES_MAX / 4);
    BAD(STATE_GET, m->state_get.key.n = BODY_BYTES_MAX / 4 + 1);
    BAD(STATE_GET, m->state_get.key.n = 0);
    BAD(STATE_CHUNK, m->state_chunk.key.offset = UINT64_MAX - 2);
    OK(STATE_CHUNK, m->state_chunk.key.offset = UINT64_MAX - 3);
}

static void bodies_have_the_size_that_the_head_says(void **state)
{
    (void)state;
    BAD(BOUNDARY, body_of(m, 11));
    BAD(BOUNDARY, body_of(m, 16));
    BAD(BOUNDARY, m->boundary.n = (UINT64_C(1) << 62) + 3; m->boundary.total = UINT64_MAX); /* times 4 is 12 again */
    BAD(BOUNDARY, m->body = blob_unref(m->body));
    BAD(CHUNK, m->chunk.fixed_point = false);
    OK(CHUNK, m->chunk.fixed_point = false; body_of(m, 8));
    OK(CHUNK, m->chunk.fixed_point = false; m->chunk.key.kind = MSG_CHUNK_SUM; body_of(m, 8));
    BAD(CHUNK, m->chunk.key.kind = MSG_CHUNK_SUM); /* finished sums are fp32 */
    BAD(STATE_CHUNK, body_of(m, 8));
    OK(LEASES, m->body = blob_unref(m->body)); /* a peer in the middle needs no tokens */
    BAD(LEASES, body_of(m, 15));
    BAD(VIEW_ACK, body_of(m, 1));
    BAD(JOIN, body_of(m, 0));
    OK(WELCOME, body_of(m, JOB_TEXT_MAX));
    BAD(WELCOME, body_of(m, JOB_TEXT_MAX + 1));
    BAD(WELCOME, body_of(m, 0));
    OK(STATUS, body_of(m, BODY_BYTES_MAX));
    BAD(STATUS, body_of(m, BODY_BYTES_MAX + 1));
    BAD(STATUS, m->body = blob_unref(m->body));
}

static void numbers_are_finite_where_they_must_be(void **state)
{
    (void)state;
    BAD(PROFILE, m->profile.forward_s[1] = NAN);
    BAD(PROFILE, m->profile.backward_s[1] = INFINITY);
    BAD(PROFILE, m->profile.forward_s[2] = -1e-9);
    BAD(PLAN, m->plan.plan.predicted_seconds = INFINITY);
    BAD(LEASES, m->leases.loss_scale = NAN);
    BAD(LEASES, m->leases.loss_scale = -1);
    OK(DONE, m->done.loss = NAN); /* flagged: something was not finite */
    BAD(DONE, m->done.loss = NAN; m->done.flagged = false);
    OK(REDUCED, m->reduced.sum_squares[1] = INFINITY); /* fp32 sums can overflow; the coordinator must hear of it */
    OK(REDUCED, m->reduced.sum_squares[1] = NAN);
    BAD(REDUCED, m->reduced.sum_squares[1] = -1);
    BAD(COMMIT, m->commit.update.inv_bias2 = NAN);
    BAD(COMMIT, m->commit.norm = INFINITY);
    BAD(COMMIT, m->commit.norm = -1);
    BAD(COMMIT, m->commit.loss = NAN);
    OK(COMMIT, m->commit.skipped = true; m->commit.n_groups = 0; m->commit.norm = INFINITY; m->commit.loss = NAN);
}

static void lists_keep_their_limits(void **state)
{
    (void)state;
    OK(LEASES, STRETCH(m->leases.leases, m->leases.n_leases, MSG_LEASES_MAX));
    BAD(LEASES, STRETCH(m->leases.leases, m->leases.n_leases, MSG_LEASES_MAX + 1));
    OK(LEASES, m->leases.n_leases = 0);
    OK(DIAL, STRETCH(m->dial.keys, m->dial.n_keys, PEERS_MAX));
    BAD(DIAL, STRETCH(m->dial.keys, m->dial.n_keys, PEERS_MAX + 1));
    OK(REDUCED, STRETCH(m->reduced.sum_squares, m->reduced.n_tensors, TENSORS_MAX));
    BAD(REDUCED, STRETCH(m->reduced.sum_squares, m->reduced.n_tensors, TENSORS_MAX + 1));
    BAD(REDUCED, m->reduced.n_tensors = 0);
    OK(COMMIT, STRETCH(m->commit.groups, m->commit.n_groups, GROUPS_MAX));
    BAD(COMMIT, STRETCH(m->commit.groups, m->commit.n_groups, GROUPS_MAX + 1));
    BAD(COMMIT, m->commit.n_groups = 0);
    BAD(COMMIT, m->commit.skipped = true);
    BAD(PROFILE, m->profile.n_units = 0);
    OK(PROFILE, uint32_t n; STRETCH(m->profile.backward_s, n, UNITS_MAX);
       STRETCH(m->profile.forward_s, m->profile.n_units, UNITS_MAX));
    BAD(PROFILE, uint32_t n; STRETCH(m->profile.backward_s, n, UNITS_MAX + 1);
        STRETCH(m->profile.forward_s, m->profile.n_units, UNITS_MAX + 1));
}

static void tensors_of_a_snapshot(struct msg *m, uint32_t n)
{
    uint32_t ignored;

    STRETCH(m->snapshot_taken.digests, ignored, n);
    STRETCH(m->snapshot_taken.tensors, m->snapshot_taken.n_tensors, n);
    for (uint32_t i = 0; i < n; i++)
        m->snapshot_taken.tensors[i] = i;
}

static void tensors_of_a_snapshot_ascend(void **state)
{
    (void)state;
    OK(SNAPSHOT_TAKEN, tensors_of_a_snapshot(m, TENSORS_MAX));
    BAD(SNAPSHOT_TAKEN, tensors_of_a_snapshot(m, TENSORS_MAX + 1));
    BAD(SNAPSHOT_TAKEN, m->snapshot_taken.tensors[2] = TENSORS_MAX);
    BAD(SNAPSHOT_TAKEN, m->snapshot_taken.tensors[2] = 4);
}

static void members(struct msg *m, uint32_t n)
{
    STRETCH(m->reduce.members, m->reduce.n_members, n);
    for (uint32_t i = 0; i < n; i++) {
        m->reduce.members[i].peer = i;
        m->reduce.members[i].lo = i;
        m->reduce.members[i].hi = i + 1;
    }
}

static void ranges_of_a_reduce_follow_each_other(void **state)
{
    (void)state;
    OK(REDUCE, members(m, PEERS_MAX));
    BAD(REDUCE, members(m, PEERS_MAX + 1));
    BAD(REDUCE, m->reduce.members[1].peer = 0);
    BAD(REDUCE, m->reduce.members[2].lo = 699);
    BAD(REDUCE, m->reduce.members[2].lo = 701);
    BAD(REDUCE, m->reduce.members[0].lo = 1);
    BAD(REDUCE, m->reduce.members[1].lo = 701);
    OK(REDUCE, m->reduce.members[1].lo = m->reduce.members[1].hi = 5); /* empty is empty, wherever */
    BAD(REDUCE, m->reduce.members[0].contributes = m->reduce.members[2].contributes = false);
    BAD(REDUCE, m->reduce.n_members = 0);
}

static void peers_of_a_view(struct msg *m, uint32_t n)
{
    struct key_pair coordinator;

    STRETCH(m->view.peers, m->view.n_peers, n);
    for (uint32_t i = 0; i < n; i++)
        memcpy(m->view.peers[i].key.bytes, &i, sizeof(i));
    proto_sample_coordinator(&coordinator);
    assert_int_equal(msg_view_sign(&m->view, &coordinator), n <= PEERS_MAX ? 0 : -E_INVAL);
}

/* The largest legal view: every peer with every address, each as long as can be. */
static void full_addresses(struct msg *m)
{
    STRETCH(m->view.peers, m->view.n_peers, 1);
    m->view.peers[0].n_addrs = ADDRS_MAX;
    for (uint32_t i = 0; i < ADDRS_MAX; i++)
        memset(m->view.peers[0].addrs[i], 'a', HOST_MAX_LEN);
    peers_of_a_view(m, PEERS_MAX);
}

static void views_keep_their_limits(void **state)
{
    (void)state;
    OK(VIEW, peers_of_a_view(m, PEERS_MAX));
    OK(VIEW, full_addresses(m));
    BAD(VIEW, peers_of_a_view(m, PEERS_MAX + 1));
    BAD(VIEW, memcpy(&m->view.peers[1].key, &m->view.peers[0].key, KEY_BYTES));
    BAD(VIEW, m->view.peers[0].addrs[0][0] = '\0');
    BAD(VIEW, m->view.signed_size = 0);
}

static void plans_are_held_to_their_rules(void **state)
{
    (void)state;
    OK(PLAN, m->plan.fetch = false; m->plan.version = 0);
    BAD(PLAN, m->plan.fetch = false);
    BAD(PLAN, m->plan.plan.stages[1].u0 = 2);
    BAD(PLAN, m->plan.plan.holders[2].weight = PLAN_WEIGHT_MAX + 1);
    BAD(PLAN, m->plan.plan.in_flight = 0);
    BAD(PLAN, memcpy(&m->plan.plan.peers[1], &m->plan.plan.peers[0], sizeof(struct plan_peer)));
}

static void words_are_printable_and_strings_end(void **state)
{
    (void)state;
    OK(JOIN, memset(m->join.addrs[0], 'x', HOST_MAX_LEN));
    BAD(JOIN, memset(m->join.addrs[0], 'x', HOST_MAX_LEN + 1)); /* no end */
    BAD(JOIN, strcpy(m->join.addrs[0], "two words"));
    BAD(JOIN, strcpy(m->join.addrs[1], ""));
    BAD(JOIN, strcpy(m->join.fingerprint, "a\n"));
    BAD(JOIN, m->join.n_addrs = ADDRS_MAX + 1);
    OK(LEAVE, memset(m->leave.text, 'x', TEXT_MAX_LEN));
    BAD(LEAVE, memset(m->leave.text, 'x', TEXT_MAX_LEN + 1));
    OK(JOIN, memset(m->join.name, 'x', NAME_MAX_LEN));
    BAD(JOIN, memset(m->join.name, 'x', NAME_MAX_LEN + 1));
}

static void texts_are_made_printable(void **state)
{
    struct msg *m = proto_sample(MSG_LINK), *back = NULL;
    struct blob *head = NULL;

    (void)state;
    assert_non_null(m);
    strcpy(m->link.text,
           "a\tb\x1b[2J \xc3\xa9 \xc2\x9b \xff \xe2\x80\xae \xed\xa0\x80 \xf0\x9f\x90\x9f \xf5\x80\x80\x80 \xc3");
    assert_int_equal(proto_encode(m, &head), 0);
    assert_int_equal(proto_decode(head, NULL, &back, NULL), 0);
    assert_string_equal(back->link.text, "a?b?[2J \xc3\xa9 ?? ? ??? ??? \xf0\x9f\x90\x9f ???? ?");
    blob_unref(head);
    msg_free(m);
    msg_free(back);
}

static void a_text_from_the_wire_is_cleaned_too(void **state)
{
    struct msg *m = proto_sample(MSG_LEAVE), *back = NULL;
    struct blob *head = NULL;
    char *text;

    (void)state;
    assert_non_null(m);
    assert_int_equal(proto_encode(m, &head), 0);
    text = memmem(head->data, head->size, m->leave.text, strlen(m->leave.text));
    assert_non_null(text);
    text[0] = '\x1b';
    text[4] = '\0';
    assert_int_equal(proto_decode(head, NULL, &back, NULL), 0);
    assert_string_equal(back->leave.text, "?he ?id was closed");
    blob_unref(head);
    msg_free(m);
    msg_free(back);
}

/* ---- What the scan keeps from the library -------------------------------------------------------------------------
 */

#define SCAN(...) proto_scan((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}), NULL)

static void claims_without_bytes_are_refused(void **state)
{
    (void)state;
    assert_int_equal(SCAN(0x80), 0);
    assert_int_equal(SCAN(0x81, 0xa1, 'a', 0xdd, 0, 0, 0, 1, 0xc0), 0);
    assert_int_equal(SCAN(0x81, 0xa1, 'a', 0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0), -E_PROTO);
    assert_int_equal(SCAN(0x81, 0xa1, 'a', 0xdf, 0xff, 0xff, 0xff, 0xff, 0xc0), -E_PROTO);
    assert_int_equal(SCAN(0x81, 0xa1, 'a', 0xdc, 0x00, 0x02, 0xc0), -E_PROTO);
    assert_int_equal(SCAN(0xdf, 0xff, 0xff, 0xff, 0xff), -E_PROTO);
    assert_int_equal(SCAN(0x81, 0xa1, 'a', 0xc6, 0xff, 0xff, 0xff, 0xff, 0xc0), -E_PROTO);
    assert_int_equal(SCAN(0x81, 0xa1, 'a', 0xdb, 0xff, 0xff, 0xff, 0xff, 0xc0), -E_PROTO);
    assert_int_equal(proto_scan("", 0, NULL), -E_PROTO);
}

static void only_maps_with_string_keys_pass(void **state)
{
    (void)state;
    assert_int_equal(SCAN(0x90), -E_PROTO);                      /* an array */
    assert_int_equal(SCAN(0xc0), -E_PROTO);                      /* nil */
    assert_int_equal(SCAN(0x81, 0x01, 0xc0), -E_PROTO);          /* a number as a key */
    assert_int_equal(SCAN(0x81, 0xa0, 0xc1), -E_PROTO);          /* the code that is never used */
    assert_int_equal(SCAN(0x81, 0xa0, 0xd4, 1, 2), -E_PROTO);    /* an extension */
    assert_int_equal(SCAN(0x81, 0xa0, 0xc7, 1, 2, 3), -E_PROTO); /* another */
    assert_int_equal(SCAN(0x81, 0xa0, 0xc0, 0xc0), -E_PROTO);    /* something after the end */
    assert_int_equal(SCAN(0x81, 0xa0, 0x81, 0xc0, 0xc0), -E_PROTO);
}

/* A map with arrays one in the other: depth containers in all. */
static int scan_deep(uint32_t depth)
{
    uint8_t bytes[64] = {0x81, 0xa0};

    memset(bytes + 2, 0x91, depth - 1);
    bytes[depth + 1] = 0xc0;
    return proto_scan(bytes, depth + 2, NULL);
}

/* A map of n entries, each nil, whose keys have len characters. */
static int scan_wide(uint32_t n, uint32_t len)
{
    uint8_t *bytes = calloc(1, 3 + n * (len + 3u)), *p = bytes;
    int r;

    assert_non_null(bytes);
    *p++ = 0xde;
    *p++ = (uint8_t)(n >> 8);
    *p++ = (uint8_t)n;
    for (uint32_t i = 0; i < n; i++, p += len, *p++ = 0xc0) {
        *p++ = 0xd9;
        *p++ = (uint8_t)len;
    }
    r = proto_scan(bytes, (size_t)(p - bytes), NULL);
    free(bytes);
    return r;
}

/* A map with one array of n nils: n + 3 values. */
static int scan_long(uint32_t n)
{
    uint8_t *bytes = malloc(7 + n);
    int r;

    assert_non_null(bytes);
    memcpy(bytes,
           (const uint8_t[]){0x81, 0xa0, 0xdd, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n},
           7);
    memset(bytes + 7, 0xc0, n);
    r = proto_scan(bytes, 7 + n, NULL);
    free(bytes);
    return r;
}

static void depth_width_and_length_are_bounded(void **state)
{
    (void)state;
    assert_int_equal(scan_deep(PROTO_SCAN_DEPTH_MAX), 0);
    assert_int_equal(scan_deep(PROTO_SCAN_DEPTH_MAX + 1), -E_PROTO);
    assert_int_equal(scan_wide(PROTO_SCAN_ENTRIES_MAX, 3), 0);
    assert_int_equal(scan_wide(PROTO_SCAN_ENTRIES_MAX + 1, 3), -E_PROTO);
    assert_int_equal(scan_wide(1, PROTO_SCAN_KEY_MAX_LEN), 0);
    assert_int_equal(scan_wide(1, PROTO_SCAN_KEY_MAX_LEN + 1), -E_PROTO);
    assert_int_equal(scan_long(PROTO_SCAN_VALUES_MAX - 3), 0);
    assert_int_equal(scan_long(PROTO_SCAN_VALUES_MAX - 2), -E_PROTO);
}

static void a_head_past_its_size_is_not_read(void **state)
{
    struct blob *head = NULL;
    struct msg *back = NULL;
    struct reason why = {0};

    (void)state;
    assert_int_equal(blob_new(HEAD_BYTES_MAX + 1, &head), 0);
    memset(head->data, 0xc0, head->size);
    assert_int_equal(proto_decode(head, NULL, &back, &why), -E_PROTO);
    assert_non_null(strstr(why.text, "more than"));
    blob_unref(head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_values_keep_their_limits),
        cmocka_unit_test(spans_and_ranges_are_not_empty_and_do_not_overflow),
        cmocka_unit_test(bodies_have_the_size_that_the_head_says),
        cmocka_unit_test(numbers_are_finite_where_they_must_be),
        cmocka_unit_test(lists_keep_their_limits),
        cmocka_unit_test(tensors_of_a_snapshot_ascend),
        cmocka_unit_test(ranges_of_a_reduce_follow_each_other),
        cmocka_unit_test(views_keep_their_limits),
        cmocka_unit_test(plans_are_held_to_their_rules),
        cmocka_unit_test(words_are_printable_and_strings_end),
        cmocka_unit_test(texts_are_made_printable),
        cmocka_unit_test(a_text_from_the_wire_is_cleaned_too),
        cmocka_unit_test(claims_without_bytes_are_refused),
        cmocka_unit_test(only_maps_with_string_keys_pass),
        cmocka_unit_test(depth_width_and_length_are_bounded),
        cmocka_unit_test(a_head_past_its_size_is_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
