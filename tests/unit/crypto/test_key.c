/* Keys: RFC 8032's vectors (section 7.1, tests 1 to 3); the Curve25519 forms were computed in plain integers from RFC
 * 7748's map u = (1 + y) / (1 - y) and the clamped SHA-512 of the seed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "crypto/key.h"

static const struct vector {
    const char *seed, *pub, *curve_pub, *curve_secret;
    uint8_t message[2];
    size_t n;
    const char *signature[2]; /* its two halves */
} vectors[] = {
    {"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
     "d85e07ec22b0ad881537c2f44d662d1a143cf830c57aca4305d85c7a90f6b62e",
     "307c83864f2833cb427a2ef1c00a013cfdff2768d980c0a3a520f006904de94f",
     {0},
     0,
     {"e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155",
      "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"}},
    {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
     "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
     "25c704c594b88afc00a76b69d1ed2b984d7e22550f3ed0802d04fbcd07d38d47",
     "68bd9ed75882d52815a97585caf4790a7f6c6b3b7f821c5e259a24b02e502e51",
     {0x72},
     1,
     {"92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da",
      "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"}},
    {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
     "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
     "cbb22fc9f790bd3eba9b84680c157ca4950a9894362601701f89c3c4d9fda23a",
     "909a8b755ed902849023a55b15c23d11ba4d7f4ec5c2f51b1325a181991ea95c",
     {0xaf, 0x82},
     2,
     {"6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac",
      "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"}},
};

static struct key bytes_of(const char *hex)
{
    struct key k;

    assert_int_equal(key_parse_hex(hex, &k), 0);
    return k;
}

static int setup(void **state)
{
    (void)state;
    return key_setup(NULL);
}

static void setup_twice_is_fine(void **state)
{
    struct reason why = {0};

    (void)state;
    assert_int_equal(key_setup(&why), 0);
    assert_string_equal(why.text, "");
}

static void a_seed_leads_to_the_known_keys_and_signatures(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        const struct vector *v = &vectors[i];
        const struct key pub = bytes_of(v->pub);
        uint8_t sig[SIGNATURE_BYTES], curve[KEY_BYTES];
        struct key_pair k;

        assert_int_equal(key_from_seed(bytes_of(v->seed).bytes, &k), 0);
        assert_true(key_equal(&k.pub, &pub));
        assert_memory_equal(k.curve_pub, bytes_of(v->curve_pub).bytes, KEY_BYTES);
        assert_memory_equal(k.curve_secret, bytes_of(v->curve_secret).bytes, KEY_BYTES);
        assert_int_equal(key_to_curve(&pub, curve), 0);
        assert_memory_equal(curve, k.curve_pub, KEY_BYTES);
        assert_int_equal(key_sign(&k, v->message, v->n, sig), 0);
        assert_memory_equal(sig, bytes_of(v->signature[0]).bytes, 32);
        assert_memory_equal(sig + 32, bytes_of(v->signature[1]).bytes, 32);
        assert_true(key_verify(&pub, v->message, v->n, sig));
    }
}

static void a_signature_binds_every_bit_of_message_key_and_signature(void **state)
{
    uint8_t message[16] = "sixteen letters", sig[SIGNATURE_BYTES];
    struct key_pair k;
    struct key pub;

    (void)state;
    assert_int_equal(key_generate(&k), 0);
    pub = k.pub;
    assert_int_equal(key_sign(&k, message, sizeof(message), sig), 0);
    assert_true(key_verify(&pub, message, sizeof(message), sig));
    for (unsigned bit = 0; bit < 8 * sizeof(message); bit++) {
        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(key_verify(&pub, message, sizeof(message), sig));
        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (unsigned bit = 0; bit < 8 * SIGNATURE_BYTES; bit++) {
        sig[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(key_verify(&pub, message, sizeof(message), sig));
        sig[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (unsigned bit = 0; bit < 8 * KEY_BYTES; bit++) {
        pub.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(key_verify(&pub, message, sizeof(message), sig));
        pub.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_false(key_verify(&pub, message, sizeof(message) - 1, sig));
}

static void points_that_are_no_identity_have_no_curve_form(void **state)
{
    static const char *const bad[] = {
        "0100000000000000000000000000000000000000000000000000000000000000", /* the neutral point */
        "0000000000000000000000000000000000000000000000000000000000000000", /* of order 4 */
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05", /* of order 8 */
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", /* of order 2 */
        "0200000000000000000000000000000000000000000000000000000000000000", /* off the curve */
    };
    uint8_t curve[KEY_BYTES], before[KEY_BYTES];

    (void)state;
    memset(curve, 0x5a, sizeof(curve));
    memset(before, 0x5a, sizeof(before));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct key k = bytes_of(bad[i]);

        assert_int_equal(key_to_curve(&k, curve), -E_INVAL);
        assert_memory_equal(curve, before, KEY_BYTES);
    }
}

static void generated_keys_differ_and_are_whole(void **state)
{
    struct key_pair a, b, again;

    (void)state;
    assert_int_equal(key_generate(&a), 0);
    assert_int_equal(key_generate(&b), 0);
    assert_false(key_equal(&a.pub, &b.pub));
    assert_int_equal(key_from_seed(a.secret, &again), 0); /* the secret starts with the seed */
    assert_memory_equal(&again, &a, sizeof(a));
}

static void a_wiped_key_is_gone(void **state)
{
    const struct key_pair zero = {0};
    struct key_pair k;

    (void)state;
    assert_int_equal(key_generate(&k), 0);
    key_pair_wipe(&k);
    assert_memory_equal(&k, &zero, sizeof(k));
}

static void keys_are_ordered_by_their_bytes(void **state)
{
    const struct key a = bytes_of("00ff000000000000000000000000000000000000000000000000000000000000");
    const struct key b = bytes_of("0100000000000000000000000000000000000000000000000000000000000000");
    const struct key c = bytes_of("ff00000000000000000000000000000000000000000000000000000000000000");

    (void)state;
    assert_true(key_compare(&a, &b) < 0);
    assert_true(key_compare(&b, &c) < 0);
    assert_true(key_compare(&c, &a) > 0);
    assert_int_equal(key_compare(&a, &a), 0);
    assert_false(key_equal(&a, &b));
}

static void hex_survives_the_round_trip(void **state)
{
    const char *hex = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    const struct key k = bytes_of(hex);
    char text[KEY_HEX_LEN + 1], brief[KEY_SHORT_LEN + 1];

    (void)state;
    key_hex(&k, text);
    assert_string_equal(text, hex);
    key_short(&k, brief);
    assert_string_equal(brief, "d75a9801");
}

static void text_that_is_no_key_is_refused(void **state)
{
    char text[KEY_HEX_LEN + 2];
    struct key k, before;

    (void)state;
    memset(&k, 0x5a, sizeof(k));
    before = k;
    memset(text, 'a', sizeof(text));
    for (size_t n = 0; n <= KEY_HEX_LEN + 1; n++) {
        text[n] = '\0';
        if (n != KEY_HEX_LEN)
            assert_int_equal(key_parse_hex(text, &k), -E_INVAL);
        text[n] = 'a';
    }
    text[KEY_HEX_LEN] = '\0';
    for (size_t i = 0; i < KEY_HEX_LEN; i++) {
        text[i] = 'g';
        assert_int_equal(key_parse_hex(text, &k), -E_INVAL);
        text[i] = 'a';
    }
    assert_true(key_equal(&k, &before));
    assert_int_equal(key_parse_hex(text, &k), 0);
}

static void secrets_are_equal_where_every_byte_is(void **state)
{
    (void)state;
    uint8_t a[16], b[16];

    key_random(a, sizeof(a));
    memcpy(b, a, sizeof(b));
    assert_true(key_secret_equal(a, b, sizeof(a)));
    b[15] ^= 1;
    assert_false(key_secret_equal(a, b, sizeof(a)));
    assert_true(key_secret_equal(a, b, 15));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(secrets_are_equal_where_every_byte_is),
        cmocka_unit_test(setup_twice_is_fine),
        cmocka_unit_test(a_seed_leads_to_the_known_keys_and_signatures),
        cmocka_unit_test(a_signature_binds_every_bit_of_message_key_and_signature),
        cmocka_unit_test(points_that_are_no_identity_have_no_curve_form),
        cmocka_unit_test(generated_keys_differ_and_are_whole),
        cmocka_unit_test(a_wiped_key_is_gone),
        cmocka_unit_test(keys_are_ordered_by_their_bytes),
        cmocka_unit_test(hex_survives_the_round_trip),
        cmocka_unit_test(text_that_is_no_key_is_refused),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
