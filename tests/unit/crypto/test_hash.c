/* BLAKE2b-256 against values of an independent implementation (Python's hashlib.blake2b, digest_size=32). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "crypto/hash.h"

static void expect_hash(const void *data, size_t n, const char *hex)
{
    uint8_t hash[HASH_BYTES];
    char text[HASH_HEX_LEN + 1];

    hash_of(data, n, hash);
    hash_hex(hash, text);
    assert_string_equal(text, hex);
}

static void hashes_equal_known_answers(void **state)
{
    uint8_t bytes[256];
    char as[1000];

    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)i;
    memset(as, 'a', sizeof(as));
    expect_hash(NULL, 0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
    expect_hash("abc", 3, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
    expect_hash(bytes, sizeof(bytes), "39a7eb9fedc19aabc83425c6755dd90e6f9d0c804964a1f4aaeea3b9fb599835");
    expect_hash(as, sizeof(as), "e00b0ddbf1e2cdaf5c898e1a5e8826ea3a2c339bcf2a478da2e5fca9ff126672");
}

static void a_hash_does_not_depend_on_how_the_input_is_cut(void **state)
{
    uint8_t data[300], whole[HASH_BYTES], parts[HASH_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7);
    hash_of(data, sizeof(data), whole);
    for (size_t cut = 0; cut <= sizeof(data); cut++) {
        struct hash h;

        hash_init(&h);
        hash_update(&h, data, cut);
        hash_update(&h, NULL, 0);
        hash_update(&h, data + cut, sizeof(data) - cut);
        hash_final(&h, parts);
        assert_memory_equal(parts, whole, HASH_BYTES);
    }
}

static void a_copied_hash_goes_its_own_way(void **state)
{
    uint8_t a[HASH_BYTES], b[HASH_BYTES], want[HASH_BYTES];
    struct hash h, copy;

    (void)state;
    hash_init(&h);
    hash_update(&h, "common", 6);
    copy = h;
    hash_update(&h, "left", 4);
    hash_final(&h, a);
    hash_update(&copy, "right", 5);
    hash_final(&copy, b);
    hash_of("commonleft", 10, want);
    assert_memory_equal(a, want, HASH_BYTES);
    hash_of("commonright", 11, want);
    assert_memory_equal(b, want, HASH_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_equal_known_answers),
        cmocka_unit_test(a_hash_does_not_depend_on_how_the_input_is_cut),
        cmocka_unit_test(a_copied_hash_goes_its_own_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
