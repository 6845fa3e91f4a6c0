/* Signals. The handler touches nothing but lock-free atomics, write(2) and the stop function it was given. */
#include "cli/stopping.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};
#define N_STOP_SIGNALS (sizeof(stop_signals) / sizeof(stop_signals[0]))

static void (*stop_fn)(void *arg);
static void *stop_arg;
static const char *stop_hint;
static atomic_int n_stops, n_inside; /* signals so far; handlers that run right now, on whatever thread */

static void set_all(void (*handler)(int))
{
    struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < N_STOP_SIGNALS; i++)
        sigaddset(&sa.sa_mask, stop_signals[i]);
    for (size_t i = 0; i < N_STOP_SIGNALS; i++)
        sigaction(stop_signals[i], &sa, NULL);
}

static void on_signal(int sig)
{
    (void)sig;
    int saved = errno;
    atomic_fetch_add(&n_inside, 1);
    int n = atomic_fetch_add(&n_stops, 1);
    if (n == 0 && stop_hint != NULL) {
        ssize_t ignored = write(STDERR_FILENO, stop_hint, strlen(stop_hint));
        (void)ignored;
    }
    if (n >= 1)
        set_all(SIG_DFL); /* whoever presses a third time means it */
    stop_fn(stop_arg);
    atomic_fetch_sub(&n_inside, 1);
    errno = saved;
}

void stopping_begin(void (*stop)(void *arg), void *arg, const char *hint)
{
    assert(stop_fn == NULL && stop != NULL);
    stop_fn = stop;
    stop_arg = arg;
    stop_hint = hint;
    atomic_store(&n_stops, 0);
    signal(SIGPIPE, SIG_IGN);
    set_all(on_signal);
}

void stopping_end(void)
{
    set_all(SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    while (atomic_load(&n_inside) > 0)
        sched_yield(); /* another thread is in the handler: arg must outlive it */
    stop_fn = NULL;
    stop_arg = NULL;
}
