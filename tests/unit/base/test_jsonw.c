/* Writing JSON: commas, escapes, numbers, running out of memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/jsonw.h"
#include "runtime/base/mem.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void commas_stand_between_values_only(void **state)
{
    (void)state;
    struct jsonw w;
    jsonw_init(&w);
    assert_string_equal(jsonw_text(&w), "");
    jsonw_object(&w, NULL);
    jsonw_str(&w, "s", "x");
    jsonw_object(&w, "empty");
    jsonw_object_end(&w);
    jsonw_array(&w, "a");
    jsonw_int(&w, NULL, INT64_MIN);
    jsonw_array(&w, NULL);
    jsonw_array_end(&w);
    jsonw_object(&w, NULL);
    jsonw_bool(&w, "t", true);
    jsonw_bool(&w, "f", false);
    jsonw_object_end(&w);
    jsonw_array_end(&w);
    jsonw_str(&w, "none", NULL);
    jsonw_object_end(&w);
    assert_string_equal(
        jsonw_text(&w),
        "{\"s\":\"x\",\"empty\":{},\"a\":[-9223372036854775808,[],{\"t\":true,\"f\":false}],\"none\":null}");
    assert_int_equal(w.len, strlen(w.text));
    jsonw_done(&w);
    assert_string_equal(jsonw_text(&w), "");
}

/* The text of one string value, quotes included. */
static void assert_string_is_written(const char *value, const char *want)
{
    struct jsonw w;
    jsonw_init(&w);
    jsonw_str(&w, NULL, value);
    assert_string_equal(jsonw_text(&w), want);
    jsonw_done(&w);
}

static void strings_and_keys_are_escaped(void **state)
{
    (void)state;
    assert_string_is_written("", "\"\"");
    assert_string_is_written("a\"b\\c/d", "\"a\\\"b\\\\c/d\"");
    assert_string_is_written("\n\r\t\b\f\x01\x1f\x7f", "\"\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\"");
    struct jsonw w;
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_int(&w, "\"\n", 1);
    jsonw_object_end(&w);
    assert_string_equal(jsonw_text(&w), "{\"\\\"\\n\":1}");
    jsonw_done(&w);
}

static void valid_utf8_passes_unchanged(void **state)
{
    (void)state;
    assert_string_is_written("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\x9F", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\x9F\"");
    assert_string_is_written("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF",
                             "\"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\"");
}

#define FFFD "\xEF\xBF\xBD"

static void invalid_utf8_becomes_the_replacement_character(void **state)
{
    (void)state;
    assert_string_is_written("a\xFFz", "\"a" FFFD "z\"");
    assert_string_is_written("\x80", "\"" FFFD "\"");
    assert_string_is_written("\xE2\x82", "\"" FFFD FFFD "\"");                   /* cut short by the end */
    assert_string_is_written("\xC3\"", "\"" FFFD "\\\"\"");                      /* the quote is not swallowed */
    assert_string_is_written("\xC0\xAF", "\"" FFFD FFFD "\"");                   /* overlong */
    assert_string_is_written("\xE0\x9F\xBF", "\"" FFFD FFFD FFFD "\"");          /* overlong */
    assert_string_is_written("\xF0\x8F\xBF\xBF", "\"" FFFD FFFD FFFD FFFD "\""); /* overlong */
    assert_string_is_written("\xED\xA0\x80", "\"" FFFD FFFD FFFD "\"");          /* a surrogate */
    assert_string_is_written("\xF4\x90\x80\x80", "\"" FFFD FFFD FFFD FFFD "\""); /* past U+10FFFF */
}

static void assert_number_is_written(double value, const char *want)
{
    struct jsonw w;
    jsonw_init(&w);
    jsonw_num(&w, NULL, value);
    assert_string_equal(jsonw_text(&w), want);
    jsonw_done(&w);
}

static void numbers_are_short_and_read_back_equal(void **state)
{
    (void)state;
    assert_number_is_written(0, "0");
    assert_number_is_written(0.1, "0.1");
    assert_number_is_written(-2.5e-300, "-2.5e-300");
    assert_number_is_written(1e21, "1e+21");
    assert_number_is_written(0.1 + 0.2, "0.30000000000000004");
    const double hard[] = {DBL_MAX, DBL_MIN, DBL_TRUE_MIN, 1.0 / 3, 5e-324, 9007199254740993.0, 0x1.fffffffffffffp-2};
    for (size_t i = 0; i < sizeof(hard) / sizeof(hard[0]); i++) {
        struct jsonw w;
        jsonw_init(&w);
        jsonw_num(&w, NULL, hard[i]);
        assert_true(strtod(jsonw_text(&w), NULL) == hard[i]);
        jsonw_done(&w);
    }
}

static void numbers_that_json_lacks_become_null(void **state)
{
    (void)state;
    assert_number_is_written((double)NAN, "null");
    assert_number_is_written((double)INFINITY, "null");
    assert_number_is_written(-(double)INFINITY, "null");
}

static void write_long(struct jsonw *w)
{
    jsonw_array(w, NULL);
    for (int i = 0; i < 200; i++)
        jsonw_int(w, NULL, 100 + i);
    jsonw_array_end(w);
}

static void failed_allocation_is_remembered_and_told_at_the_end(void **state)
{
    (void)state;
    int64_t n = 0;
    for (;; n++) {
        struct jsonw w;
        jsonw_init(&w);
        mem_fault_set(n);
        write_long(&w);
        if (!mem_fault_hit()) {
            assert_int_equal(strlen(jsonw_text(&w)), 1 + 200 * 4);
            jsonw_done(&w);
            break;
        }
        assert_null(jsonw_text(&w));
        jsonw_str(&w, NULL, "more");
        assert_null(jsonw_text(&w));
        jsonw_done(&w);
    }
    mem_fault_set(-1);
    assert_true(n >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_stand_between_values_only),
        cmocka_unit_test(strings_and_keys_are_escaped),
        cmocka_unit_test(valid_utf8_passes_unchanged),
        cmocka_unit_test(invalid_utf8_becomes_the_replacement_character),
        cmocka_unit_test(numbers_are_short_and_read_back_equal),
        cmocka_unit_test(numbers_that_json_lacks_become_null),
        cmocka_unit_test(failed_allocation_is_remembered_and_told_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
