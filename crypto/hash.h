/* BLAKE2b-256 (RFC 7693), whole and incremental. */
#ifndef SHOAL_CRYPTO_HASH_H
#define SHOAL_CRYPTO_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BYTES   32
#define HASH_HEX_LEN 64

struct hash {
    _Alignas(64) uint8_t opaque[384];
};

void hash_init(struct hash *h);
void hash_update(struct hash *h, const void *data, size_t n);
void hash_final(struct hash *h, uint8_t ret[HASH_BYTES]);
void hash_of(const void *data, size_t n, uint8_t ret[HASH_BYTES]);
void hash_hex(const uint8_t hash[HASH_BYTES], char ret[HASH_HEX_LEN + 1]);

#endif
