/* Walks msgpack bytes (https://github.com/msgpack/msgpack/blob/master/spec.md) without building anything.
 *
 * Invariant: a container is entered only if each of its elements can still have a byte of its own, so whoever reads the
 * accepted bytes afterwards allocates in proportion to them. */
#include "parallel/proto_scan.h"

#include <stdbool.h>
#include <stdint.h>

struct item {
    size_t size;       /* bytes of the head and, for scalars, of the value */
    uint64_t children; /* values that follow, of a container */
    bool is_string, is_map, is_container;
};

/* The big-endian number in n bytes at p. */
static uint64_t number_at(const uint8_t *p, size_t n)
{
    uint64_t v = 0;

    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

/* Values whose head says their length: str, bin (wide: 1, 2, 4 bytes of length), array, map (2, 4). */
static bool read_sized(const uint8_t *p, size_t left, size_t wide, struct item *ret)
{
    uint64_t n;

    if (left < 1 + wide)
        return false;
    n = number_at(p + 1, wide);
    ret->size = 1 + wide + (ret->is_container ? 0 : (size_t)n);
    ret->children = ret->is_container ? (ret->is_map ? 2 * n : n) : 0;
    return true;
}

/* One value's head. false: cut short, or a type that no message of ours has. */
static bool read_item(const uint8_t *p, size_t left, struct item *ret)
{
    static const uint8_t scalar_bytes[] = {
        [0xc0 - 0xc0] = 1, [0xc2 - 0xc0] = 1, [0xc3 - 0xc0] = 1,                    /* nil, false, true */
        [0xca - 0xc0] = 5, [0xcb - 0xc0] = 9,                                       /* float 32, 64 */
        [0xcc - 0xc0] = 2, [0xcd - 0xc0] = 3, [0xce - 0xc0] = 5, [0xcf - 0xc0] = 9, /* uint 8 to 64 */
        [0xd0 - 0xc0] = 2, [0xd1 - 0xc0] = 3, [0xd2 - 0xc0] = 5, [0xd3 - 0xc0] = 9, /* int 8 to 64 */
        [0xdf - 0xc0] = 0,
    };
    const uint8_t b = p[0];

    *ret = (struct item){.size = 1};
    if (b <= 0x7f || b >= 0xe0) /* small integers */
        return true;
    ret->is_map = b <= 0x8f || b == 0xde || b == 0xdf;
    ret->is_container = b <= 0x9f || b >= 0xdc;
    ret->is_string = (b >= 0xa0 && b <= 0xbf) || (b >= 0xd9 && b <= 0xdb);
    if (b <= 0x9f) {
        ret->children = ret->is_map ? 2 * (b & 0x0fu) : b & 0x0fu;
        return true;
    }
    if (b <= 0xbf) {
        ret->size = 1 + (b & 0x1fu);
        return true;
    }
    if (b >= 0xc4 && b <= 0xc6)
        return read_sized(p, left, (size_t)1 << (b - 0xc4), ret);
    if (b >= 0xd9 && b <= 0xdb)
        return read_sized(p, left, (size_t)1 << (b - 0xd9), ret);
    if (b >= 0xdc)
        return read_sized(p, left, (b & 1) == 0 ? 2 : 4, ret);
    ret->size = scalar_bytes[b - 0xc0];
    return ret->size > 0; /* 0: extension types and the one unused code */
}

struct level {
    uint64_t left; /* values still to come */
    bool is_map;   /* keys when left is even */
};

int proto_scan(const void *bytes, size_t n, struct reason *why)
{
    const uint8_t *p = bytes;
    struct level levels[PROTO_SCAN_DEPTH_MAX + 1] = {{.left = 1}};
    uint64_t values = 0;
    size_t depth = 0, at = 0;

    for (;;) {
        struct level *in = &levels[depth];
        const bool is_key = in->is_map && in->left % 2 == 0;
        struct item item;

        if (in->left == 0) {
            if (depth == 0)
                break;
            depth--;
            continue;
        }
        if (at == n || !read_item(p + at, n - at, &item) || item.size > n - at)
            return reason_set(why, -E_PROTO, "the head is cut short or not ours at byte %zu of %zu", at, n);
        at += item.size;
        in->left--;
        if (++values > PROTO_SCAN_VALUES_MAX || item.children > n - at)
            return reason_set(why, -E_PROTO, "the head claims more values than it can hold at byte %zu of %zu", at, n);
        if (is_key && (!item.is_string || item.size > 2 + PROTO_SCAN_KEY_MAX_LEN))
            return reason_set(why, -E_PROTO, "a map in the head has a key that is no short string at byte %zu", at);
        if (depth == 0 && !item.is_map)
            return reason_set(why, -E_PROTO, "the head is not a map");
        if (item.is_map && item.children > 2 * PROTO_SCAN_ENTRIES_MAX)
            return reason_set(why, -E_PROTO, "a map in the head has more than %u entries", PROTO_SCAN_ENTRIES_MAX);
        if (item.is_container) {
            if (depth == PROTO_SCAN_DEPTH_MAX)
                return reason_set(why, -E_PROTO, "the head nests deeper than %u", PROTO_SCAN_DEPTH_MAX);
            levels[++depth] = (struct level){.left = item.children, .is_map = item.is_map};
        }
    }
    if (at != n)
        return reason_set(why, -E_PROTO, "%zu bytes stand after the end of the head", n - at);
    return 0;
}
