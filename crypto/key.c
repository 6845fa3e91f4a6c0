/* Identity keys: Ed25519 for who somebody is and what he signs, Curve25519 for the links, the second made from the
 * first (libsodium's conversion). Files are keyfile.c's business. Every struct key_pair made here is whole: its four
 * parts come from one seed. */
#include "crypto/key.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

_Static_assert(KEY_BYTES == crypto_sign_PUBLICKEYBYTES, "an identity is an Ed25519 public key");
_Static_assert(KEY_BYTES == crypto_scalarmult_curve25519_BYTES, "and so is its Curve25519 form");
_Static_assert(sizeof(((struct key_pair *)0)->secret) == crypto_sign_SECRETKEYBYTES, "seed and public key");
_Static_assert(SIGNATURE_BYTES == crypto_sign_BYTES, "a detached signature");

int key_setup(struct reason *why)
{
    if (sodium_init() < 0)
        return reason_set(why, -E_INTERNAL, "libsodium could not be started: no source of randomness?");
    return 0;
}

bool key_secret_equal(const void *a, const void *b, size_t n)
{
    return sodium_memcmp(a, b, n) == 0;
}

void key_random(void *ret, size_t n)
{
    randombytes_buf(ret, n);
}

int key_from_seed(const uint8_t seed[32], struct key_pair *ret)
{
    struct key_pair k;
    int rc = crypto_sign_seed_keypair(k.pub.bytes, k.secret, seed);

    /* These fail on points that no seed leads to. */
    rc |= crypto_sign_ed25519_pk_to_curve25519(k.curve_pub, k.pub.bytes);
    rc |= crypto_sign_ed25519_sk_to_curve25519(k.curve_secret, k.secret);
    assert(rc == 0);
    *ret = k;
    key_pair_wipe(&k);
    return 0;
}

int key_generate(struct key_pair *ret)
{
    uint8_t seed[crypto_sign_SEEDBYTES];
    int rc;

    key_random(seed, sizeof(seed));
    rc = key_from_seed(seed, ret);
    sodium_memzero(seed, sizeof(seed));
    return rc;
}

void key_pair_wipe(struct key_pair *k)
{
    sodium_memzero(k, sizeof(*k));
}

bool key_equal(const struct key *a, const struct key *b)
{
    return key_compare(a, b) == 0;
}

int key_compare(const struct key *a, const struct key *b)
{
    return memcmp(a->bytes, b->bytes, KEY_BYTES); /* public bytes: the time it takes tells nothing secret */
}

void key_hex(const struct key *k, char ret[KEY_HEX_LEN + 1])
{
    sodium_bin2hex(ret, KEY_HEX_LEN + 1, k->bytes, KEY_BYTES);
}

void key_short(const struct key *k, char ret[KEY_SHORT_LEN + 1])
{
    sodium_bin2hex(ret, KEY_SHORT_LEN + 1, k->bytes, KEY_SHORT_LEN / 2);
}

int key_parse_hex(const char *hex, struct key *ret)
{
    struct key k;
    size_t n = 0;

    if (strlen(hex) != KEY_HEX_LEN)
        return -E_INVAL;
    if (sodium_hex2bin(k.bytes, KEY_BYTES, hex, KEY_HEX_LEN, NULL, &n, NULL) != 0 || n != KEY_BYTES)
        return -E_INVAL;
    *ret = k;
    return 0;
}

int key_to_curve(const struct key *k, uint8_t ret[KEY_BYTES])
{
    uint8_t curve[KEY_BYTES];

    /* Refuses what is off the curve, of small order, or outside the main subgroup. */
    if (crypto_sign_ed25519_pk_to_curve25519(curve, k->bytes) != 0)
        return -E_INVAL;
    memcpy(ret, curve, KEY_BYTES);
    return 0;
}

int key_sign(const struct key_pair *k, const void *data, size_t n, uint8_t ret[SIGNATURE_BYTES])
{
    const int rc = crypto_sign_detached(ret, NULL, data, n, k->secret);

    assert(rc == 0); /* no input makes it fail */
    return 0;
}

bool key_verify(const struct key *k, const void *data, size_t n, const uint8_t sig[SIGNATURE_BYTES])
{
    return crypto_sign_verify_detached(sig, data, n, k->bytes) == 0;
}
