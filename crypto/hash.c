/* BLAKE2b-256 by libsodium. Not keyed, not a MAC: it names content. One input gives one hash, however it is cut into
 * updates. */
#include "crypto/hash.h"

#include <assert.h>
#include <sodium.h>

_Static_assert(sizeof(crypto_generichash_state) <= sizeof(struct hash), "struct hash holds libsodium's state");
_Static_assert(_Alignof(crypto_generichash_state) <= _Alignof(struct hash), "struct hash is aligned like it");
_Static_assert(HASH_BYTES >= crypto_generichash_BYTES_MIN && HASH_BYTES <= crypto_generichash_BYTES_MAX,
               "a legal size");

static crypto_generichash_state *state_of(struct hash *h)
{
    return (crypto_generichash_state *)(void *)h;
}

void hash_init(struct hash *h)
{
    const int rc = crypto_generichash_init(state_of(h), NULL, 0, HASH_BYTES);

    assert(rc == 0); /* fails on illegal sizes only */
}

void hash_update(struct hash *h, const void *data, size_t n)
{
    assert(data != NULL || n == 0);
    if (n > 0)
        crypto_generichash_update(state_of(h), data, n);
}

void hash_final(struct hash *h, uint8_t ret[HASH_BYTES])
{
    const int rc = crypto_generichash_final(state_of(h), ret, HASH_BYTES);

    assert(rc == 0); /* the size is the one given to init, and a hash is closed once */
}

void hash_of(const void *data, size_t n, uint8_t ret[HASH_BYTES])
{
    struct hash h;

    hash_init(&h);
    hash_update(&h, data, n);
    hash_final(&h, ret);
}

void hash_hex(const uint8_t hash[HASH_BYTES], char ret[HASH_HEX_LEN + 1])
{
    sodium_bin2hex(ret, HASH_HEX_LEN + 1, hash, HASH_BYTES);
}
