/* Digests of tensors and of a whole model: what equal bits are told by. BLAKE2b-256 over values as they lie in a file,
 * little-endian, no names and no shapes: those are the model's, and equal models are compared. Pure; any thread. */
#ifndef SHOAL_MODEL_DIGEST_H
#define SHOAL_MODEL_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "crypto/hash.h"

/* Of n fp32 values in host memory. */
void digest_tensor(const float *values, int64_t n, uint8_t ret[HASH_BYTES]);

/* The model's hash: over the n digests of its tensors, in canonical order. */
void digest_model(const uint8_t (*digests)[HASH_BYTES], size_t n, uint8_t ret[HASH_BYTES]);

#endif
