/* Strings of messages. Text is for people and made harmless rather than refused (a driver may call its device
 * anything); words are for machines and refused when odd. */
#include "parallel/proto_field.h"

/* Bytes of the well-formed character at s (The Unicode Standard, table 3-7), 0 if there is none. */
static size_t utf8_len(const unsigned char *s, size_t n)
{
    const unsigned char b = s[0];
    const size_t len = b < 0x80 ? 1 : b >= 0xc2 && b <= 0xdf ? 2 : b >= 0xe0 && b <= 0xef ? 3 : 4;
    /* The second byte's range depends on the first one's: no overlong forms, no surrogates, nothing past U+10FFFF. */
    const unsigned char lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
    const unsigned char hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;

    if (len == 1)
        return 1;
    if (len > n || b > 0xf4 || (len == 4 && b < 0xf0) || s[1] < lo || s[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++) {
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    }
    return len;
}

static bool is_control(const unsigned char *s, size_t len)
{
    if (len == 1)
        return s[0] < 0x20 || s[0] == 0x7f;
    if (len == 2)
        return s[0] == 0xc2 && s[1] < 0xa0; /* U+0080 to U+009F */
    /* U+200E, U+200F, U+2028 to U+202E and U+2066 to U+2069 break lines or turn their direction. */
    return len == 3 && s[0] == 0xe2 &&
           ((s[1] == 0x80 && (s[2] == 0x8e || s[2] == 0x8f || (s[2] >= 0xa8 && s[2] <= 0xae))) ||
            (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9));
}

void proto_text_clean(char *s, size_t n)
{
    unsigned char *p = (unsigned char *)s;

    for (size_t i = 0; i < n;) {
        const size_t len = utf8_len(p + i, n - i);

        if (len > 0 && !is_control(p + i, len)) {
            i += len;
            continue;
        }
        for (size_t end = i + (len > 0 ? len : 1); i < end; i++)
            p[i] = '?';
    }
}

bool proto_text_is_word(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] <= ' ' || s[i] > '~')
            return false;
    }
    return true;
}
