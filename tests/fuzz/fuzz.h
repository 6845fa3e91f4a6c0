/* What every fuzz target defines: one untrusted input, tried. Returns 0; aborts on a broken promise. */
#ifndef SHOAL_TESTS_FUZZ_FUZZ_H
#define SHOAL_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
