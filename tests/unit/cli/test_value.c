/* Counts, numbers, sizes, lists as people type them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "cli/value.h"
#include "runtime/base/mem.h"

static void counts(void **state)
{
    (void)state;
    uint64_t v = 7;
    assert_int_equal(value_count("0", &v, NULL), 0);
    assert_int_equal(v, 0);
    assert_int_equal(value_count("9223372036854775807", &v, NULL), 0);
    assert_true(v == INT64_MAX);
    const char *const bad[] = {
        "", "-1", "+1", " 1", "1 ", "1.0", "0x10", "9223372036854775808", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(value_count(bad[i], &v, NULL), -E_INVAL);
    assert_true(v == INT64_MAX);
}

static void numbers(void **state)
{
    (void)state;
    double v = 7;
    assert_int_equal(value_number("-0.25", &v, NULL), 0);
    assert_true(v == -0.25);
    assert_int_equal(value_number(".5e1", &v, NULL), 0);
    assert_true(v == 5);
    const char *const bad[] = {"", "inf", "nan", "0x1p3", "1e999", "1,5", " 1", "1x", "-"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(value_number(bad[i], &v, NULL), -E_INVAL);
}

static void sizes(void **state)
{
    (void)state;
    const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4096", 4096},
                {"1k", 1024},
                {"512MiB", UINT64_C(512) << 20},
                {"4GiB", UINT64_C(4) << 30},
                {"4gib", UINT64_C(4) << 30},
                {"2G", UINT64_C(2) << 30},
                {"1.5GiB", UINT64_C(3) << 29},
                {"100MB", 100000000},
                {"7b", 7},
                {"1T", UINT64_C(1) << 40}};
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(value_size(good[i].text, &v, NULL), 0);
        assert_true(v == good[i].bytes);
    }
    const char *const bad[] = {"", "GiB", "4 GiB", "4GiBs", "-1G", "infG", "1e30", "99999999T"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(value_size(bad[i], &v, NULL), -E_INVAL);
}

static void lists_are_cut_at_commas(void **state)
{
    (void)state;
    char *items[3];
    size_t n = 0;
    assert_int_equal(value_split("1,0.5,x", items, 3, &n, NULL), 0);
    assert_int_equal(n, 3);
    assert_string_equal(items[0], "1");
    assert_string_equal(items[1], "0.5");
    assert_string_equal(items[2], "x");
    mem_free(items[0]);
    const char *const bad[] = {"", ",", "1,", ",1", "1,,2", "1,2,3,4"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(value_split(bad[i], items, 3, &n, NULL), -E_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(numbers),
        cmocka_unit_test(sizes),
        cmocka_unit_test(lists_are_cut_at_commas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
