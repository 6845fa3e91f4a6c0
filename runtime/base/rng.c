/* Philox4x32-10 and what is built on it. Not for secrets. Invariant: every value is a pure function of (key, counter),
 * made of integer operations only, so it is the same on every machine; rng_normal_at adds one correctly rounded double
 * multiplication and one rounding to float, which are too. */
#include "runtime/base/rng.h"

#include <assert.h>

/* Multipliers and Weyl constants of Salmon et al. (SC'11), table 2 and section 3.3. */
#define PHILOX_M0 UINT32_C(0xD2511F53)
#define PHILOX_M1 UINT32_C(0xCD9E8D57)
#define PHILOX_W0 UINT32_C(0x9E3779B9)
#define PHILOX_W1 UINT32_C(0xBB67AE85)

/* Third counter word: keeps the streams of rng_at and rng_normal_at apart. */
enum { STREAM_U64 = 0, STREAM_NORMAL = 1 };

void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t ret[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

/* The finalizer of SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA'14): a bijection
 * that spreads every input bit over the output. */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t rng_key(uint64_t seed, const char *name)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (const char *p = name; *p; p++)
        h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001B3);
    return mix64(h ^ mix64(seed + UINT64_C(0x9E3779B97F4A7C15)));
}

static void philox_at(uint64_t key, uint64_t i, uint32_t stream, uint32_t ret[4])
{
    const uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t c[4] = {(uint32_t)i, (uint32_t)(i >> 32), stream, 0};
    rng_philox(k, c, ret);
}

uint64_t rng_at(uint64_t key, uint64_t i)
{
    uint32_t x[4];
    philox_at(key, i, STREAM_U64, x);
    return x[0] | (uint64_t)x[1] << 32;
}

float rng_normal_at(uint64_t key, uint64_t i)
{
    uint32_t x[4];
    philox_at(key, i, STREAM_NORMAL, x);
    int32_t sum = 0;
    for (int j = 0; j < 4; j++)
        sum += (int32_t)(x[j] & 0xFFFF) + (int32_t)(x[j] >> 16);

    /* Eight uniform integers in [0, 65535] have mean 8 * 65535 / 2 = 262140 and variance 8 * (2^32 - 1) / 12. The
     * constant is 1 / sqrt(variance), written out so that no library's square root has a say. */
    const double per_deviation = 0x1.3988e1412ed76p-16;
    return (float)((double)(sum - 262140) * per_deviation);
}

struct rng rng_make(uint64_t seed, const char *name)
{
    return (struct rng){.key = rng_key(seed, name)};
}

uint64_t rng_u64(struct rng *r)
{
    return rng_at(r->key, r->next++);
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    assert(n > 0);
    /* Drop the first 2^64 mod n values: the rest is a whole number of n's. */
    uint64_t drop = (0 - n) % n;
    uint64_t x;
    do
        x = rng_u64(r);
    while (x < drop);
    return x % n;
}

double rng_unit(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}
