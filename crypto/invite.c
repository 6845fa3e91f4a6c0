/* Invites as text. The bytes under the base32, little-endian:
 *
 *     u8 version = 1 | u16 bytes in all | key 32 | job id 8 | capability 16 | u8 n_addrs |
 *     n_addrs times: u8 host length, host, u16 port | first 4 bytes of BLAKE2b-256 over all before
 *
 * Version, length and checksum stay where they are in every version, so that a string that was cut or mistyped is never
 * taken for one of a newer program. A decoded invite always keeps the limits that invite_encode asks for. */
#include "crypto/invite.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "crypto/base32.h"
#include "crypto/hash.h"

#define PREFIX         "shoal1"
#define PREFIX_LEN     (sizeof(PREFIX) - 1)
#define VERSION        1
#define BLANKS         " \t\r\n\v\f"
#define CHECKSUM_BYTES 4
#define FRAME_BYTES    (1 + 2 + CHECKSUM_BYTES) /* what every version has */
#define FIXED_BYTES    (FRAME_BYTES + KEY_BYTES + INVITE_JOB_ID_BYTES + INVITE_CAPABILITY_BYTES + 1)
#define PAYLOAD_MAX    (FIXED_BYTES + ADDRS_MAX * (1 + HOST_MAX_LEN + 2))

_Static_assert(PREFIX_LEN + BASE32_LEN(PAYLOAD_MAX) <= INVITE_TEXT_MAX, "the longest invite fits");

static bool host_valid(const char *host, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (host[i] <= ' ' || host[i] > '~')
            return false;
    return n > 0 && n <= HOST_MAX_LEN;
}

static uint8_t *put(uint8_t *at, const void *data, size_t n)
{
    memcpy(at, data, n);
    return at + n;
}

static uint8_t *put_u16(uint8_t *at, size_t v)
{
    assert(v <= UINT16_MAX);
    at[0] = (uint8_t)v;
    at[1] = (uint8_t)(v >> 8);
    return at + 2;
}

static unsigned get_u16(const uint8_t *at)
{
    return at[0] | (unsigned)at[1] << 8;
}

int invite_encode(const struct invite *inv, char *ret)
{
    uint8_t payload[PAYLOAD_MAX], hash[HASH_BYTES];
    uint8_t *at = payload + 3;
    size_t n;

    if (inv->n_addrs == 0 || inv->n_addrs > ADDRS_MAX)
        return -E_INVAL;
    at = put(at, inv->coordinator.bytes, KEY_BYTES);
    at = put(at, inv->job_id, INVITE_JOB_ID_BYTES);
    at = put(at, inv->capability, INVITE_CAPABILITY_BYTES);
    *at++ = (uint8_t)inv->n_addrs;
    for (uint32_t i = 0; i < inv->n_addrs; i++) {
        const size_t host_len = strnlen(inv->addrs[i].host, HOST_MAX_LEN + 1);

        if (!host_valid(inv->addrs[i].host, host_len) || inv->addrs[i].port == 0)
            return -E_INVAL;
        *at++ = (uint8_t)host_len;
        at = put(at, inv->addrs[i].host, host_len);
        at = put_u16(at, inv->addrs[i].port);
    }
    n = (size_t)(at - payload) + CHECKSUM_BYTES;
    payload[0] = VERSION;
    put_u16(payload + 1, n);
    hash_of(payload, n - CHECKSUM_BYTES, hash);
    put(at, hash, CHECKSUM_BYTES);
    memcpy(ret, PREFIX, PREFIX_LEN);
    base32_encode(payload, n, ret + PREFIX_LEN);
    return 0;
}

/* The text without its blanks, in lower case: at most INVITE_TEXT_MAX characters and a NUL. */
static int strip(const char *text, char *ret, size_t *ret_n, struct reason *why)
{
    size_t n = 0;

    for (; *text != '\0'; text++) {
        if (strchr(BLANKS, *text) != NULL)
            continue;
        if (n == INVITE_TEXT_MAX)
            return reason_set(why, -E_INVAL, "this is no invite: it is longer than any invite");
        ret[n++] = *text >= 'A' && *text <= 'Z' ? (char)(*text - 'A' + 'a') : *text;
    }
    ret[n] = '\0';
    *ret_n = n;
    return 0;
}

static int check_prefix(const char *text, size_t n, struct reason *why)
{
    if (n == 0)
        return reason_set(why, -E_INVAL, "the invite is empty");
    if (n < PREFIX_LEN && memcmp(text, PREFIX, n) == 0)
        return reason_set(why, -E_INVAL, "the invite is cut short: only \"%s\" is there", text);
    if (n < PREFIX_LEN || memcmp(text, PREFIX, PREFIX_LEN - 1) != 0 || text[PREFIX_LEN - 1] < '1' ||
        text[PREFIX_LEN - 1] > '9')
        return reason_set(why, -E_INVAL, "this is no invite: an invite starts with %s", PREFIX);
    if (text[PREFIX_LEN - 1] != PREFIX[PREFIX_LEN - 1])
        return reason_set(why, -E_VERSION,
                          "the invite starts with %.*s, this program knows %s: install the newer Shoal",
                          (int)PREFIX_LEN, text, PREFIX);
    return 0;
}

static int check_characters(const char *text, size_t n, struct reason *why)
{
    for (size_t i = PREFIX_LEN; i < n; i++) {
        const char c = text[i];
        const char *meant = c == 'o' ? " (the digit 0?)" : c == 'i' || c == 'l' ? " (the digit 1?)" : "";

        if (base32_value(c) >= 0)
            continue;
        if (c > ' ' && c <= '~')
            return reason_set(why, -E_INVAL, "the invite is mistyped: character %zu is '%c'%s, which no invite has",
                              i + 1, c, meant);
        return reason_set(why, -E_INVAL, "the invite is mistyped: character %zu is no letter and no digit", i + 1);
    }
    return 0;
}

/* Length, checksum and version: what holds for the bytes of every version. exact tells that the base32 ended cleanly.
 */
static int check_frame(const uint8_t *payload, size_t n, bool exact, struct reason *why)
{
    uint8_t hash[HASH_BYTES];
    const size_t stated = n >= 3 ? get_u16(payload + 1) : FRAME_BYTES;

    if (n < stated || n < FRAME_BYTES)
        return reason_set(why, -E_INVAL, "the invite is cut short: its end is missing");
    if (n > stated || !exact)
        return reason_set(why, -E_INVAL, "the invite is mistyped: it has characters too many");
    hash_of(payload, n - CHECKSUM_BYTES, hash);
    if (memcmp(payload + n - CHECKSUM_BYTES, hash, CHECKSUM_BYTES) != 0)
        return reason_set(why, -E_INVAL, "the invite is mistyped: its checksum does not match");
    if (payload[0] != VERSION)
        return reason_set(why, -E_VERSION,
                          "the invite is of version %u, this program knows %d: install the newer Shoal", payload[0],
                          VERSION);
    return 0;
}

/* The fields between frame head and checksum; false if they break the limits, which no honest encoder does. */
static bool parse_fields(const uint8_t *payload, size_t n, struct invite *ret)
{
    const uint8_t *at = payload + 3;
    const uint8_t *end = payload + n - CHECKSUM_BYTES;

    if (n < FIXED_BYTES)
        return false;
    memcpy(ret->coordinator.bytes, at, KEY_BYTES);
    at += KEY_BYTES;
    memcpy(ret->job_id, at, INVITE_JOB_ID_BYTES);
    at += INVITE_JOB_ID_BYTES;
    memcpy(ret->capability, at, INVITE_CAPABILITY_BYTES);
    at += INVITE_CAPABILITY_BYTES;
    ret->n_addrs = *at++;
    if (ret->n_addrs == 0 || ret->n_addrs > ADDRS_MAX)
        return false;
    for (uint32_t i = 0; i < ret->n_addrs; i++) {
        const size_t host_len = at < end ? *at++ : 0;

        if ((size_t)(end - at) < host_len + 2 || !host_valid((const char *)at, host_len))
            return false;
        memcpy(ret->addrs[i].host, at, host_len);
        at += host_len;
        ret->addrs[i].port = (uint16_t)get_u16(at);
        at += 2;
        if (ret->addrs[i].port == 0)
            return false;
    }
    return at == end;
}

int invite_decode(const char *text, struct invite *ret, struct reason *why)
{
    char plain[INVITE_TEXT_MAX + 1];
    uint8_t payload[INVITE_TEXT_MAX * 5 / 8];
    struct invite inv = {0};
    size_t n = 0;
    bool exact;
    int rc = strip(text, plain, &n, why);

    if (rc == 0)
        rc = check_prefix(plain, n, why);
    if (rc == 0)
        rc = check_characters(plain, n, why);
    if (rc < 0)
        return rc;
    exact = base32_decode(plain + PREFIX_LEN, n - PREFIX_LEN, payload) == 0;
    n = (n - PREFIX_LEN) * 5 / 8;
    rc = check_frame(payload, n, exact, why);
    if (rc < 0)
        return rc;
    if (!parse_fields(payload, n, &inv))
        return reason_set(why, -E_INVAL, "the invite was made wrongly: its fields break the limits of version %d",
                          VERSION);
    *ret = inv;
    return 0;
}
