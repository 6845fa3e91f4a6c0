/* Base32, see base32.h: a shift register of bits, filled by eight and emptied by five, or the other way round. */
#include "crypto/base32.h"

#include <assert.h>
#include <string.h>

#include "runtime/base/status.h"

static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";
_Static_assert(sizeof(alphabet) == 32 + 1, "five bits a character");

int base32_value(char c)
{
    const char lower = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
    const char *at = lower != '\0' ? strchr(alphabet, lower) : NULL;

    return at != NULL ? (int)(at - alphabet) : -1;
}

void base32_encode(const uint8_t *data, size_t n, char *ret)
{
    uint32_t bits = 0;
    unsigned n_bits = 0;

    for (size_t i = 0; i < n; i++) {
        bits = (bits << 8 | data[i]) & 0xfff;
        for (n_bits += 8; n_bits >= 5; n_bits -= 5)
            *ret++ = alphabet[bits >> (n_bits - 5) & 31];
    }
    if (n_bits > 0)
        *ret++ = alphabet[bits << (5 - n_bits) & 31];
    *ret = '\0';
}

int base32_decode(const char *text, size_t n_text, uint8_t *ret)
{
    uint32_t bits = 0;
    unsigned n_bits = 0;

    for (size_t i = 0; i < n_text; i++) {
        const int value = base32_value(text[i]);

        assert(value >= 0);
        bits = (bits << 5 | (uint32_t)value) & 0xfff;
        n_bits += 5;
        if (n_bits >= 8) {
            n_bits -= 8;
            *ret++ = (uint8_t)(bits >> n_bits);
        }
    }
    /* Five spare bits or more are a whole character too many. */
    return n_bits < 5 && (bits & ((1u << n_bits) - 1)) == 0 ? 0 : -E_INVAL;
}
