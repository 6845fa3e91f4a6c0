/* The clocks. The one place in the tests that sleeps: sleeping is what is tested. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/clock.h"

#include <signal.h>
#include <sys/time.h>
#include <time.h>

#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#elif defined(__has_feature)
#define TSAN __has_feature(thread_sanitizer)
#else
#define TSAN 0
#endif

static volatile sig_atomic_t alarms;

static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
}

static void monotonic_clock_never_goes_back(void **state)
{
    (void)state;
    int64_t last = clock_now_ns();
    for (int i = 0; i < 10000; i++) {
        int64_t now = clock_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

static void wall_clock_counts_from_1970(void **state)
{
    (void)state;
    int64_t s = clock_wall_ns() / NS_PER_S;
    int64_t now = (int64_t)time(NULL);
    assert_true(s >= now - 2 && s <= now + 2);
}

static void sleeping_lasts_at_least_as_long_as_asked_through_signals(void **state)
{
    (void)state;
    struct sigaction act = {.sa_handler = on_alarm};
    struct sigaction old;
    assert_int_equal(sigaction(SIGALRM, &act, &old), 0);
    const struct itimerval every_ms = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
    assert_int_equal(setitimer(ITIMER_REAL, &every_ms, NULL), 0);
    int64_t start = clock_now_ns();
    clock_sleep_ns(20 * NS_PER_MS);
    int64_t slept = clock_now_ns() - start;
    const struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_true(slept >= 20 * NS_PER_MS);
#if !TSAN /* which holds signals back while the thread sleeps */
    assert_true(alarms > 1);
#endif
}

static void no_time_to_sleep_returns_at_once(void **state)
{
    (void)state;
    int64_t start = clock_now_ns();
    clock_sleep_ns(0);
    clock_sleep_ns(-1);
    clock_sleep_ns(INT64_MIN);
    assert_true(clock_now_ns() - start < 5 * NS_PER_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(monotonic_clock_never_goes_back),
        cmocka_unit_test(wall_clock_counts_from_1970),
        cmocka_unit_test(sleeping_lasts_at_least_as_long_as_asked_through_signals),
        cmocka_unit_test(no_time_to_sleep_returns_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
