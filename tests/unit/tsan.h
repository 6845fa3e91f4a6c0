/* To be included by one file of a test that uses libzmq. It orders its threads by atomics that the thread sanitizer
 * cannot see: what it touches through libc is not judged, our own code is. */
#ifndef SHOAL_TESTS_UNIT_TSAN_H
#define SHOAL_TESTS_UNIT_TSAN_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define TSAN 1
#endif
#ifdef TSAN
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "ignore_noninstrumented_modules=1";
}
#endif

#endif
