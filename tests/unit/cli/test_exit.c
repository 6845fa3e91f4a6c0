/* Exit codes: the numbers that scripts rely on. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/exit.h"
#include "runtime/base/status.h"

static void promised_codes_stand(void **state)
{
    (void)state;
    assert_int_equal(exit_code(0), 0);
    assert_int_equal(exit_code(-E_INVAL), 2);
    assert_int_equal(exit_code(-E_CONFIG), 3);
    assert_int_equal(exit_code(-E_CORRUPT), 3);
    assert_int_equal(exit_code(-E_UNREACHABLE), 4);
    assert_int_equal(exit_code(-E_AUTH), 5);
    assert_int_equal(exit_code(-E_VERSION), 6);
    assert_int_equal(exit_code(-E_PEER), 7);
    assert_int_equal(exit_code(-E_NOMEM), 8);
    assert_int_equal(exit_code(-E_FIT), 8);
    assert_int_equal(exit_code(-E_INTERNAL), 9);
    assert_int_equal(exit_code(-E_CANCELED), 130);
}

static void no_failure_exits_with_success(void **state)
{
    (void)state;
    for (int s = 1; s < E_STATUS_END + 3; s++)
        assert_true(exit_code(-s) >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promised_codes_stand),
        cmocka_unit_test(no_failure_exits_with_success),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
