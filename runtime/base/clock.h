/* Time. Engines never call this: time reaches them inside events. */
#ifndef SHOAL_RUNTIME_BASE_CLOCK_H
#define SHOAL_RUNTIME_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_S  INT64_C(1000000000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_US INT64_C(1000)

int64_t clock_now_ns(void);      /* monotonic, arbitrary origin, never goes back. Any thread. */
int64_t clock_wall_ns(void);     /* since 1970, may jump. Any thread. */
int64_t clock_thread_ns(void);   /* processor time of the calling thread */
void clock_sleep_ns(int64_t ns); /* sleeps at least ns, resumes after signals; ns <= 0 returns at once */

#endif
