/* Digests. See digest.h. */
#include "model/digest.h"

#include <assert.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are hashed as they lie in memory");

void digest_tensor(const float *values, int64_t n, uint8_t ret[HASH_BYTES])
{
    assert(n >= 0);
    hash_of(values, (size_t)n * sizeof(float), ret);
}

void digest_model(const uint8_t (*digests)[HASH_BYTES], size_t n, uint8_t ret[HASH_BYTES])
{
    hash_of(digests, n * HASH_BYTES, ret);
}
