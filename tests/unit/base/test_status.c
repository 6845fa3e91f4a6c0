/* Status codes and the sentences that go with them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/status.h"

#include <string.h>

static void text_and_name_accept_either_sign(void **state)
{
    (void)state;
    assert_string_equal(status_text(-E_IO), "input/output error");
    assert_string_equal(status_text(E_IO), "input/output error");
    assert_string_equal(status_name(-E_INTERNAL), "INTERNAL");
    assert_string_equal(status_name(E_OK), "OK");
}

static void numbers_that_are_no_code_have_a_text_too(void **state)
{
    (void)state;
    const int strange[] = {E_STATUS_END, -E_STATUS_END, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
        assert_string_equal(status_text(strange[i]), "unknown status");
        assert_string_equal(status_name(strange[i]), "UNKNOWN");
    }
}

static void codes_on_the_wire_keep_their_numbers(void **state)
{
    (void)state;
    assert_int_equal(E_NOMEM, 1);
    assert_int_equal(E_PROTO, 3);
    assert_int_equal(E_TOOBIG, 13);
    assert_int_equal(E_INTERNAL, 22);
}

static void reason_is_born_with_its_status_and_wrapped_by_passers_by(void **state)
{
    (void)state;
    struct reason why = {0};
    assert_string_equal(reason_text(&why, -E_NOENT), "not found");
    assert_string_equal(reason_text(NULL, -E_NOENT), "not found");
    assert_int_equal(reason_set(&why, -E_IO, "cannot open %s", "a.bin"), -E_IO);
    assert_int_equal(reason_wrap(&why, -E_IO, "reading job %d", 7), -E_IO);
    assert_string_equal(reason_text(&why, -E_IO), "reading job 7: cannot open a.bin");
    assert_int_equal(reason_set(NULL, -E_IO, "nobody asks"), -E_IO);
    assert_int_equal(reason_wrap(NULL, -E_IO, "nobody asks"), -E_IO);
}

static void wrapping_nothing_wraps_the_text_of_the_code(void **state)
{
    (void)state;
    struct reason why = {0};
    reason_wrap(&why, -E_TIMEOUT, "joining");
    assert_string_equal(why.text, "joining: timed out");
}

static void reason_may_quote_itself(void **state)
{
    (void)state;
    struct reason why = {0};
    reason_set(&why, -E_IO, "inner");
    reason_set(&why, -E_IO, "outer (%s)", why.text);
    assert_string_equal(why.text, "outer (inner)");
    reason_wrap(&why, -E_IO, "%s again", why.text);
    assert_string_equal(why.text, "outer (inner) again: outer (inner)");
}

static void long_reasons_are_cut_and_terminated(void **state)
{
    (void)state;
    char big[2 * REASON_TEXT_MAX];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    struct reason why = {0};
    reason_set(&why, -E_IO, "%s", big);
    assert_int_equal(strlen(why.text), REASON_TEXT_MAX - 1);
    reason_wrap(&why, -E_IO, "p");
    assert_int_equal(strlen(why.text), REASON_TEXT_MAX - 1);
    assert_memory_equal(why.text, "p: xxx", 6);
    for (int room = 0; room < 4; room++) {
        reason_set(&why, -E_IO, "old");
        reason_wrap(&why, -E_IO, "%.*s", REASON_TEXT_MAX - 1 - room, big);
        assert_int_equal(strlen(why.text), REASON_TEXT_MAX - 1 - (room == 1 ? 1 : 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_name_accept_either_sign),
        cmocka_unit_test(numbers_that_are_no_code_have_a_text_too),
        cmocka_unit_test(codes_on_the_wire_keep_their_numbers),
        cmocka_unit_test(reason_is_born_with_its_status_and_wrapped_by_passers_by),
        cmocka_unit_test(wrapping_nothing_wraps_the_text_of_the_code),
        cmocka_unit_test(reason_may_quote_itself),
        cmocka_unit_test(long_reasons_are_cut_and_terminated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
