/* The protocol on the wire: what comes out is what went in, the bytes stay what they are, and no bytes do harm. The
 * limits of single messages are tried in test_proto_limits.c.
 *
 * After a wanted change of the wire: SHOAL_GOLDEN_UPDATE=1 test_proto writes the golden bytes and the fuzz corpus anew
 * (raise PROTO_VERSION when older programs would misread them). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "tests/unit/parallel/proto_samples.h"

#define GOLDEN SHOAL_TESTS_DIR "/golden/proto_v1.txt"
#define CORPUS SHOAL_TESTS_DIR "/fuzz/corpus/proto/"
#define LINE   16384

#define EACH_TYPE(type) for (enum msg_type type = MSG_JOIN; type < MSG_TYPE_END; type++)

static struct msg *sample(enum msg_type type)
{
    struct msg *m = proto_sample(type);

    assert_non_null(m);
    return m;
}

static struct blob *encode(const struct msg *m)
{
    struct blob *head = NULL;

    assert_int_equal(proto_encode(m, &head), 0);
    return head;
}

/* A blob of exactly these bytes in a block of their own: a sanitizer sees one byte too far. */
static struct blob *exact(const void *bytes, size_t n)
{
    struct blob *b = NULL;
    void *block = malloc(n > 0 ? n : 1);

    assert_non_null(block);
    memcpy(block, bytes, n);
    assert_int_equal(blob_wrap(block, n, free, block, &b), 0);
    return b;
}

static int decode(const void *bytes, size_t n, struct blob *body, struct msg **ret, struct reason *why)
{
    struct blob *head = exact(bytes, n);
    int r = proto_decode(head, body, ret, why);

    blob_unref(head);
    return r;
}

static void assert_same_bytes(const struct blob *a, const struct blob *b)
{
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->data, b->data, a->size);
}

/* Compares what the lists hold, then everything else with the pointers blanked out (in both, for good). */
static void assert_same_msg(struct msg *a, struct msg *b)
{
    struct proto_sample_list x[3], y[3];
    const size_t n = proto_sample_lists(a, x);

    assert_int_equal(a->type, b->type);
    assert_int_equal(a->term, b->term);
    assert_int_equal(proto_sample_lists(b, y), n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(x[i].n_bytes, y[i].n_bytes);
        assert_memory_equal(*x[i].at, *y[i].at, x[i].n_bytes);
        *x[i].at = mem_free(*x[i].at);
        *y[i].at = mem_free(*y[i].at);
    }
    if (proto_sample_size(a->type) > 0)
        assert_memory_equal(&a->join, &b->join, proto_sample_size(a->type));
}

static void every_message_comes_back_as_it_went(void **state)
{
    (void)state;
    EACH_TYPE(type)
    {
        struct msg *m = sample(type), *back = NULL;
        struct blob *head = encode(m), *again;

        assert_int_equal(proto_decode(head, m->body, &back, NULL), 0);
        assert_ptr_equal(back->body, m->body);
        again = encode(back);
        assert_same_bytes(head, again);
        assert_same_msg(m, back);
        blob_unref(head);
        blob_unref(again);
        msg_free(m);
        msg_free(back);
    }
}

static void a_need_of_a_boundary_carries_its_key(void **state)
{
    struct msg *m = msg_new(MSG_NEED, 3), *back = NULL;
    struct blob *head;

    (void)state;
    assert_non_null(m);
    m->need.boundary = (struct msg_boundary_key){5, 6, 7, MSG_MODE_TRAIN, 8, MSG_BACKWARD};
    head = encode(m);
    assert_int_equal(proto_decode(head, NULL, &back, NULL), 0);
    assert_same_msg(m, back);
    blob_unref(head);
    msg_free(m);
    msg_free(back);
}

static void hex_of(const struct blob *b, char ret[LINE])
{
    assert_true(2 * b->size + 1 < LINE);
    for (size_t i = 0; i < b->size; i++)
        sprintf(ret + 2 * i, "%02x", ((const uint8_t *)b->data)[i]);
}

static void write_corpus(const struct msg *m, const struct blob *head)
{
    const uint32_t n = (uint32_t)head->size;
    char path[1024];
    FILE *f;

    snprintf(path, sizeof(path), "%s%s", CORPUS, msg_name(m->type));
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&n, sizeof(n), 1, f), 1);
    assert_int_equal(fwrite(head->data, 1, head->size, f), head->size);
    if (m->body != NULL)
        assert_int_equal(fwrite(m->body->data, 1, m->body->size, f), m->body->size);
    assert_int_equal(fclose(f), 0);
}

static void the_bytes_stay_what_they_are(void **state)
{
    const bool update = getenv("SHOAL_GOLDEN_UPDATE") != NULL;
    FILE *f = fopen(GOLDEN, update ? "w" : "r");

    (void)state;
    assert_non_null(f);
    EACH_TYPE(type)
    {
        static char line[LINE + 64], expected[LINE + 64], hex[LINE];
        struct msg *m = sample(type);
        struct blob *head = encode(m);

        hex_of(head, hex);
        snprintf(line, sizeof(line), "%s %s\n", msg_name(type), hex);
        if (update) {
            assert_true(fputs(line, f) >= 0);
            write_corpus(m, head);
        } else {
            assert_non_null(fgets(expected, sizeof(expected), f));
            assert_string_equal(line, expected);
        }
        blob_unref(head);
        msg_free(m);
    }
    if (!update)
        assert_int_equal(fgetc(f), EOF);
    assert_int_equal(fclose(f), 0);
}

static void a_head_cut_anywhere_is_refused(void **state)
{
    (void)state;
    EACH_TYPE(type)
    {
        struct msg *m = sample(type), *back = NULL;
        struct blob *head = encode(m);

        for (size_t n = 0; n < head->size; n++)
            assert_int_equal(decode(head->data, n, m->body, &back, NULL), -E_PROTO);
        blob_unref(head);
        msg_free(m);
    }
}

static void bytes_after_the_head_are_refused(void **state)
{
    struct msg *m = sample(MSG_VIEW_ACK), *back = NULL;
    struct blob *head = encode(m);
    uint8_t longer[256] = {0};
    struct reason why = {0};

    (void)state;
    memcpy(longer, head->data, head->size);
    assert_int_equal(decode(longer, head->size + 1, NULL, &back, &why), -E_PROTO);
    assert_string_equal(why.text, "1 bytes stand after the end of the head");
    blob_unref(head);
    msg_free(m);
}

static void a_changed_byte_is_refused_or_keeps_every_limit(void **state)
{
    (void)state;
    EACH_TYPE(type)
    {
        struct msg *m = sample(type);
        struct blob *head = encode(m);
        uint8_t *bytes = mem_dup(head->data, head->size);

        assert_non_null(bytes);
        for (size_t i = 0; i < head->size; i++) {
            for (unsigned flip = 1; flip < 0x200; flip = flip == 0x80 ? 0xff : flip == 0xff ? 0x200 : flip << 1) {
                struct msg *back = NULL;
                int r;

                bytes[i] ^= (uint8_t)flip;
                r = decode(bytes, head->size, m->body, &back, NULL);
                if (r == 0)
                    blob_unref(encode(back)); /* the encoder checks every limit */
                else
                    assert_true(r == -E_PROTO || r == -E_VERSION || r == -E_UNSUPPORTED);
                msg_free(back);
                bytes[i] ^= (uint8_t)flip;
            }
        }
        mem_free(bytes);
        blob_unref(head);
        msg_free(m);
    }
}

/* ---- Heads changed one entry at a time, with the bare library -----------------------------------------------------
 */

enum edit { EDIT_DROP, EDIT_NIL, EDIT_UINT, EDIT_ADD };

/* The head with entry number `entry` changed; what is added stands before it. */
static void edited(const struct blob *head, uint32_t entry, enum edit edit, uint64_t value, msgpack_sbuffer *ret)
{
    msgpack_unpacked u;
    msgpack_packer p;
    size_t at = 0;

    msgpack_unpacked_init(&u);
    assert_int_equal(msgpack_unpack_next(&u, head->data, head->size, &at), MSGPACK_UNPACK_SUCCESS);
    msgpack_sbuffer_init(ret);
    msgpack_packer_init(&p, ret, msgpack_sbuffer_write);
    const msgpack_object_map map = u.data.via.map;

    msgpack_pack_map(&p, map.size + (edit == EDIT_ADD) - (edit == EDIT_DROP));
    for (uint32_t i = 0; i < map.size; i++) {
        if (i == entry && edit == EDIT_ADD) {
            msgpack_pack_str_with_body(&p, "novelty", 7);
            msgpack_pack_array(&p, 2);
            msgpack_pack_map(&p, 0);
            msgpack_pack_int(&p, -5);
        }
        if (i == entry && edit == EDIT_DROP)
            continue;
        msgpack_pack_object(&p, map.ptr[i].key);
        if (i == entry && edit == EDIT_NIL)
            msgpack_pack_nil(&p);
        else if (i == entry && edit == EDIT_UINT)
            msgpack_pack_uint64(&p, value);
        else
            msgpack_pack_object(&p, map.ptr[i].val);
    }
    msgpack_unpacked_destroy(&u);
}

static int decode_edited(enum msg_type type, uint32_t entry, enum edit edit, uint64_t value, struct msg **ret,
                         struct reason *why)
{
    struct msg *m = sample(type);
    struct blob *head = encode(m);
    msgpack_sbuffer b;
    int r;

    edited(head, entry, edit, value, &b);
    r = decode(b.data, b.size, m->body, ret, why);
    msgpack_sbuffer_destroy(&b);
    blob_unref(head);
    msg_free(m);
    return r;
}

static uint32_t n_entries(enum msg_type type)
{
    struct msg *m = sample(type);
    struct blob *head = encode(m);
    const uint8_t *bytes = head->data;
    const uint32_t n = bytes[0] == 0xde ? (uint32_t)(bytes[1] << 8 | bytes[2]) : bytes[0] & 0x0fu;

    blob_unref(head);
    msg_free(m);
    return n;
}

static void unknown_entries_are_skipped(void **state)
{
    (void)state;
    EACH_TYPE(type)
    {
        const uint32_t n = n_entries(type);

        for (uint32_t i = 0; i < n; i++) {
            struct msg *back = NULL, *m = sample(type);

            assert_int_equal(decode_edited(type, i, EDIT_ADD, 0, &back, NULL), 0);
            assert_same_msg(m, back);
            msg_free(m);
            msg_free(back);
        }
    }
}

static void a_missing_or_empty_entry_is_refused_by_name(void **state)
{
    (void)state;
    EACH_TYPE(type)
    {
        const uint32_t n = n_entries(type);

        for (uint32_t i = 0; i < n; i++) {
            struct msg *back = NULL;
            struct reason why = {0};

            assert_int_equal(decode_edited(type, i, EDIT_DROP, 0, &back, &why), -E_PROTO);
            assert_non_null(strstr(why.text, "field \""));
            assert_non_null(strstr(why.text, "\" is missing"));
            assert_int_equal(decode_edited(type, i, EDIT_NIL, 0, &back, NULL), -E_PROTO);
        }
    }
}

/* Entries 0, 1 and 2 are v, t and term. */
static void another_version_is_refused_with_both_in_the_sentence(void **state)
{
    struct msg *back = NULL;
    struct reason why = {0};

    (void)state;
    assert_int_equal(decode_edited(MSG_JOIN, 0, EDIT_UINT, 77, &back, &why), -E_VERSION);
    assert_string_equal(why.text, "the sender speaks version 77 of the protocol, we speak version 1");
}

static void an_unknown_type_is_unsupported(void **state)
{
    struct msg *back = NULL;

    (void)state;
    assert_int_equal(decode_edited(MSG_JOIN, 1, EDIT_UINT, MSG_TYPE_END, &back, NULL), -E_UNSUPPORTED);
    assert_int_equal(decode_edited(MSG_JOIN, 1, EDIT_UINT, 0, &back, NULL), -E_UNSUPPORTED);
    assert_int_equal(decode_edited(MSG_JOIN, 1, EDIT_UINT, UINT32_MAX, &back, NULL), -E_UNSUPPORTED);
    assert_string_equal(msg_name(MSG_LEASES), "LEASES");
    assert_string_equal(msg_name(MSG_TYPE_END), "?");
}

/* ---- Memory that runs out -----------------------------------------------------------------------------------------
 */

static void encoding_survives_each_failing_allocation(void **state)
{
    (void)state;
    EACH_TYPE(type)
    {
        struct msg *m = sample(type);

        for (int64_t n = 0;; n++) {
            struct blob *head = NULL;
            int r;

            mem_fault_set(n);
            r = proto_encode(m, &head);
            const bool hit = mem_fault_hit();
            mem_fault_set(-1);
            assert_int_equal(r, hit ? -E_NOMEM : 0);
            assert_true(hit == (head == NULL));
            blob_unref(head);
            if (!hit)
                break;
        }
        msg_free(m);
    }
}

static void decoding_survives_each_failing_allocation(void **state)
{
    (void)state;
    EACH_TYPE(type)
    {
        struct msg *m = sample(type);
        struct blob *head = encode(m);

        for (int64_t n = 0;; n++) {
            struct msg *back = NULL;
            int r;

            mem_fault_set(n);
            r = proto_decode(head, m->body, &back, NULL);
            const bool hit = mem_fault_hit();
            mem_fault_set(-1);
            assert_int_equal(r, hit ? -E_NOMEM : 0);
            assert_true(hit == (back == NULL));
            msg_free(back);
            if (!hit)
                break;
        }
        blob_unref(head);
        if (m->body != NULL)
            assert_int_equal(m->body->refs, 1);
        msg_free(m);
    }
}

/* ---- The view -----------------------------------------------------------------------------------------------------
 */

static void a_view_is_verified_against_its_coordinator(void **state)
{
    struct key_pair coordinator, other;
    struct msg *m = sample(MSG_VIEW), *back = NULL;
    struct blob *head = encode(m);
    uint8_t seed[32] = {1};

    (void)state;
    proto_sample_coordinator(&coordinator);
    assert_int_equal(key_from_seed(seed, &other), 0);
    assert_int_equal(proto_decode(head, NULL, &back, NULL), 0);
    assert_true(msg_view_verify(&back->view, &coordinator.pub));
    assert_false(msg_view_verify(&back->view, &other.pub));
    back->view.sig[5] ^= 1;
    assert_false(msg_view_verify(&back->view, &coordinator.pub));
    blob_unref(head);
    msg_free(m);
    msg_free(back);
}

static void a_tampered_view_is_not_verified(void **state)
{
    struct key_pair coordinator;
    struct msg *m = sample(MSG_VIEW);
    struct blob *head = encode(m);
    uint8_t *bytes = mem_dup(head->data, head->size);
    uint8_t *host = memmem(bytes, head->size, "peer.example.org", 16);
    struct msg *back = NULL;

    (void)state;
    proto_sample_coordinator(&coordinator);
    assert_non_null(host);
    host[0] = 'b'; /* a well-formed view with a peer elsewhere */
    assert_int_equal(decode(bytes, head->size, NULL, &back, NULL), 0);
    assert_string_equal(back->view.peers[0].addrs[0], "beer.example.org");
    assert_false(msg_view_verify(&back->view, &coordinator.pub));
    mem_free(bytes);
    blob_unref(head);
    msg_free(m);
    msg_free(back);
}

static void signing_survives_each_failing_allocation(void **state)
{
    struct key_pair coordinator;
    struct msg *m = sample(MSG_VIEW);
    bool hit = true;

    (void)state;
    proto_sample_coordinator(&coordinator);
    m->view.number++;
    for (int64_t n = 0; hit; n++) {
        mem_fault_set(n);
        const int r = msg_view_sign(&m->view, &coordinator);

        hit = mem_fault_hit();
        mem_fault_set(-1);
        assert_int_equal(r, hit ? -E_NOMEM : 0);
        assert_true(msg_view_verify(&m->view, &coordinator.pub)); /* the old signature until there is a new one */
    }
    msg_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_went),
        cmocka_unit_test(a_need_of_a_boundary_carries_its_key),
        cmocka_unit_test(the_bytes_stay_what_they_are),
        cmocka_unit_test(a_head_cut_anywhere_is_refused),
        cmocka_unit_test(bytes_after_the_head_are_refused),
        cmocka_unit_test(a_changed_byte_is_refused_or_keeps_every_limit),
        cmocka_unit_test(unknown_entries_are_skipped),
        cmocka_unit_test(a_missing_or_empty_entry_is_refused_by_name),
        cmocka_unit_test(another_version_is_refused_with_both_in_the_sentence),
        cmocka_unit_test(an_unknown_type_is_unsupported),
        cmocka_unit_test(encoding_survives_each_failing_allocation),
        cmocka_unit_test(decoding_survives_each_failing_allocation),
        cmocka_unit_test(a_view_is_verified_against_its_coordinator),
        cmocka_unit_test(a_tampered_view_is_not_verified),
        cmocka_unit_test(signing_survives_each_failing_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
