/* Numbers for people. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "runtime/base/text.h"

static void one_has_no_s(void **state)
{
    (void)state;
    assert_string_equal(text_s(0), "s");
    assert_string_equal(text_s(1), "");
    assert_string_equal(text_s(2), "s");
}

static void sizes(void **state)
{
    (void)state;
    const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"}, {1 << 20, "1.0 MiB"}, {UINT64_C(3) << 29, "1.5 GiB"}, {UINT64_MAX, "16.0 EiB"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[TEXT_SIZE_MAX];
        text_size(cases[i].bytes, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void durations(void **state)
{
    (void)state;
    const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0 ms"},        {0.00025, "0.25 ms"}, {0.0082, "8.2 ms"}, {0.52, "0.52 s"}, {9.99, "9.99 s"},
                 {12.4, "12 s"},     {59.9, "1m00s"},      {65, "1m05s"},      {3725, "1h02m"},  {-1, "?"},
                 {(double)NAN, "?"}, {1e300, "years"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[TEXT_DURATION_MAX];
        text_duration(cases[i].seconds, text);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_has_no_s),
        cmocka_unit_test(sizes),
        cmocka_unit_test(durations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
