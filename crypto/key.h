/* Identity: an Ed25519 key pair, and its Curve25519 form for the links (design 4). libsodium appears in this folder
 * only. Secrets are wiped when done; nothing here logs. */
#ifndef SHOAL_CRYPTO_KEY_H
#define SHOAL_CRYPTO_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

#define KEY_BYTES       32
#define KEY_HEX_LEN     64 /* without the NUL */
#define KEY_SHORT_LEN   8  /* hex digits shown to people */
#define SIGNATURE_BYTES 64

/* Public identity (Ed25519). Plain data: compare with key_equal. */
struct key {
    uint8_t bytes[KEY_BYTES];
};

struct key_pair {
    struct key pub;               /* Ed25519 public */
    uint8_t secret[64];           /* Ed25519 secret (seed | public) */
    uint8_t curve_pub[KEY_BYTES]; /* Curve25519 forms */
    uint8_t curve_secret[KEY_BYTES];
};

int key_setup(struct reason *why); /* once per process, before anything else here; starts the library */

int key_generate(struct key_pair *ret);
int key_from_seed(const uint8_t seed[32], struct key_pair *ret); /* deterministic: tests */
void key_pair_wipe(struct key_pair *k);

/* Reads a key file (one line of text with a checksum), refusing one that others may read (-E_PERM) or that is damaged
 * (-E_CORRUPT). -E_NOENT. */
int key_load(const char *path, struct key_pair *ret, struct reason *why);
/* Writes atomically with mode 0600, making missing folders with 0700. An existing file is -E_EXIST unless force. */
int key_save(const char *path, const struct key_pair *k, bool force, struct reason *why);
/* key_load, or generate and save where there is none; *ret_made (may be NULL) tells. */
int key_load_or_make(const char *path, struct key_pair *ret, bool *ret_made, struct reason *why);
/* $SHOAL_HOME/key, else $XDG_CONFIG_HOME/shoal/key, else $HOME/.config/shoal/key. mem_free. */
int key_default_path(char **ret, struct reason *why);

bool key_equal(const struct key *a, const struct key *b);
int key_compare(const struct key *a, const struct key *b); /* order for "the smaller key dials" */
void key_hex(const struct key *k, char ret[KEY_HEX_LEN + 1]);
void key_short(const struct key *k, char ret[KEY_SHORT_LEN + 1]);
int key_parse_hex(const char *hex, struct key *ret); /* -E_INVAL */

/* The Curve25519 public key of an identity; -E_INVAL if the bytes are no valid point. */
int key_to_curve(const struct key *k, uint8_t ret[KEY_BYTES]);

int key_sign(const struct key_pair *k, const void *data, size_t n, uint8_t ret[SIGNATURE_BYTES]);
bool key_verify(const struct key *k, const void *data, size_t n, const uint8_t sig[SIGNATURE_BYTES]);

/* In a time that does not tell where the bytes differ. */
bool key_secret_equal(const void *a, const void *b, size_t n);

void key_random(void *ret, size_t n); /* from the operating system */

#endif
