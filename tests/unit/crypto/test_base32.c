/* Base32: exact both ways. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "crypto/base32.h"
#include "runtime/base/rng.h"
#include "runtime/base/status.h"

static void every_length_survives_the_round_trip(void **state)
{
    struct rng r = rng_make(1, "base32");

    (void)state;
    for (size_t n = 0; n <= 64; n++) {
        uint8_t data[64], back[64];
        char text[BASE32_LEN(64) + 1];

        for (size_t i = 0; i < n; i++)
            data[i] = (uint8_t)rng_u64(&r);
        base32_encode(data, n, text);
        assert_int_equal(strlen(text), BASE32_LEN(n));
        assert_int_equal(base32_decode(text, strlen(text), back), 0);
        assert_memory_equal(back, data, n);
    }
}

static void known_bytes_have_known_texts(void **state)
{
    const uint8_t all[] = {0x00, 0x44, 0x32, 0x14, 0xc7, 0x42, 0x54, 0xb6, 0x35, 0xcf, 0x84,
                           0x65, 0x3a, 0x56, 0xd7, 0xc6, 0x75, 0xbe, 0x77, 0xdf}; /* the values 0..31, five bits each */
    char text[BASE32_LEN(sizeof(all)) + 1];

    (void)state;
    base32_encode(all, sizeof(all), text);
    assert_string_equal(text, "0123456789abcdefghjkmnpqrstvwxyz");
    base32_encode((const uint8_t *)"\xff", 1, text);
    assert_string_equal(text, "zw");
}

static void spare_bits_and_spare_characters_are_refused(void **state)
{
    uint8_t back[8];

    (void)state;
    assert_int_equal(base32_decode("zw", 2, back), 0);
    assert_int_equal(base32_decode("zx", 2, back), -E_INVAL);
    assert_int_equal(base32_decode("zw0", 3, back), -E_INVAL);
    assert_int_equal(base32_decode("0", 1, back), -E_INVAL);
    assert_int_equal(base32_decode("", 0, back), 0);
}

static void only_the_alphabet_has_values(void **state)
{
    int n = 0;

    (void)state;
    for (int c = -128; c < 128; c++)
        n += base32_value((char)c) >= 0;
    assert_int_equal(n, 32 + 22);
    assert_int_equal(base32_value('Z'), 31);
    assert_int_equal(base32_value('o'), -1);
    assert_int_equal(base32_value('L'), -1);
    assert_int_equal(base32_value('\0'), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_survives_the_round_trip),
        cmocka_unit_test(known_bytes_have_known_texts),
        cmocka_unit_test(spare_bits_and_spare_characters_are_refused),
        cmocka_unit_test(only_the_alphabet_has_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
