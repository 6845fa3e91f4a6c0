/* Numbers as people read them: plurals, sizes, durations. Not a number parser (cli/value.h). Pure; any thread. */
#ifndef SHOAL_RUNTIME_BASE_TEXT_H
#define SHOAL_RUNTIME_BASE_TEXT_H

#include <stdint.h>

#define TEXT_SIZE_MAX     16
#define TEXT_DURATION_MAX 32

/* The ending of a counted word: "%u peer%s", n, text_s(n). */
const char *text_s(uint64_t n);

/* "4.0 GiB", "512 B". */
void text_size(uint64_t size_bytes, char ret[TEXT_SIZE_MAX]);

/* "8.2 ms", "0.52 s", "1m05s", "3h12m". */
void text_duration(double seconds, char ret[TEXT_DURATION_MAX]);

#endif
