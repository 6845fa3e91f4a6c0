/* Random numbers that are a pure function of a key and a counter: Philox4x32-10 (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", SC'11). Integer arithmetic only, so every machine and device gets the same bits, in any
 * order. */
#ifndef SHOAL_RUNTIME_BASE_RNG_H
#define SHOAL_RUNTIME_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* Philox4x32-10: 128 bits out from (key, counter). */
void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t ret[4]);

/* A 64-bit key from a seed and a name (a tensor's, a purpose's): FNV-1a of the name mixed with the seed. */
uint64_t rng_key(uint64_t seed, const char *name);

/* The 64-bit value number i of stream key. */
uint64_t rng_at(uint64_t key, uint64_t i);

/* An approximately normal value number i of stream key, mean 0, deviation 1, from integers only: the sum of eight
 * 16-bit uniform values (Irwin-Hall, n = 8), centred and scaled in double, |x| < 4.9. The same bits everywhere. */
float rng_normal_at(uint64_t key, uint64_t i);

/* A sequential generator over rng_at, for callers who want a stream. */
struct rng {
    uint64_t key;
    uint64_t next;
};
struct rng rng_make(uint64_t seed, const char *name);
uint64_t rng_u64(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n); /* uniform in [0, n), n > 0, unbiased */
double rng_unit(struct rng *r);                /* uniform in [0, 1), 53 bits */

#endif
