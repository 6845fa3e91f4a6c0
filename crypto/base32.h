/* Base32 for people: Crockford's alphabet (digits and lower-case letters without i, l, o, u), five bits a character,
 * high bits first, no padding characters. Exact: every byte string has one text, and no other text leads to it. Pure.
 */
#ifndef SHOAL_CRYPTO_BASE32_H
#define SHOAL_CRYPTO_BASE32_H

#include <stddef.h>
#include <stdint.h>

#define BASE32_LEN(n_bytes) (((n_bytes)*8 + 4) / 5) /* characters that n bytes take */

/* The value of a character, 0..31, either case; -1 for one that is not of the alphabet. */
int base32_value(char c);

/* Writes BASE32_LEN(n) characters and a NUL. */
void base32_encode(const uint8_t *data, size_t n, char *ret);

/* Reads n_text characters, all of the alphabet, into ret, which has room for n_text * 5 / 8 bytes: so many are written.
 * -E_INVAL if the text is of a length that no byte string has, or its spare bits are not zero. */
int base32_decode(const char *text, size_t n_text, uint8_t *ret);

#endif
