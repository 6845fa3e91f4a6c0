/* The byte tokenizer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/tokenizer.h"

static void every_byte_survives_a_round_trip(void **state)
{
    uint8_t text[256], back[256];
    int32_t tokens[256];

    (void)state;
    for (int i = 0; i < 256; i++)
        text[i] = (uint8_t)i;
    tokenizer_encode(text, 256, tokens);
    for (int i = 0; i < 256; i++)
        assert_int_equal(tokens[i], i);
    tokenizer_decode(tokens, 256, back);
    assert_memory_equal(text, back, 256);
}

static void tokens_that_are_no_bytes_become_question_marks(void **state)
{
    const int32_t tokens[] = {'a', -1, 256, INT32_MAX, INT32_MIN, 'b'};
    uint8_t text[6];

    (void)state;
    tokenizer_decode(tokens, 6, text);
    assert_memory_equal(text, "a????b", 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_survives_a_round_trip),
        cmocka_unit_test(tokens_that_are_no_bytes_become_question_marks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
