/* The system's clocks. Not timers: those live in the loops. Invariant: clock_now_ns never goes back. */
#include "runtime/base/clock.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    int r = clock_gettime(id, &t);
    assert(r == 0);
    (void)r;
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

int64_t clock_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void clock_sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
    int64_t now = clock_now_ns();
    int64_t until = ns > INT64_MAX - now ? INT64_MAX : now + ns;
    struct timespec t = {.tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}
