/* Reading JSON through cJSON, which is seen in this folder only. See json.h. A struct json is a cJSON item under
 * another name: the pointer is cast, the type never completed. */
#include "runtime/store/json.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/store/file.h"

static const cJSON *item(const struct json *v)
{
    return (const cJSON *)v;
}

int json_parse(const char *text, size_t len, struct json **ret, struct reason *why)
{
    cleanup_mem_ char *copy = NULL;
    const char *end = NULL;
    cJSON *root;

    if (memchr(text, '\0', len) != NULL)
        return reason_set(why, -E_CORRUPT, "JSON text with a NUL byte");
    copy = mem_alloc(len + 1); /* cJSON tells the end of the text by a NUL */
    if (copy == NULL)
        return reason_set(why, -E_NOMEM, "no memory for %zu bytes of JSON", len);
    memcpy(copy, text, len);
    copy[len] = '\0';
    root = cJSON_ParseWithLengthOpts(copy, len + 1, &end, true);
    if (root == NULL)
        return reason_set(why, -E_CORRUPT, "not JSON from byte %td of %zu on", end != NULL ? end - copy : 0, len);
    *ret = (struct json *)root;
    return 0;
}

int json_load(const char *path, size_t size_max, struct json **ret, struct reason *why)
{
    cleanup_mem_ char *text = NULL;
    size_t len;
    int r = file_read(path, size_max, &text, &len, why);

    if (r < 0)
        return r;
    r = json_parse(text, len, ret, why);
    return r < 0 ? reason_wrap(why, r, "%s", path) : 0;
}

struct json *json_free(struct json *document)
{
    cJSON_Delete((cJSON *)document);
    return NULL;
}

const struct json *json_get(const struct json *obj, const char *key)
{
    return cJSON_IsObject(item(obj)) ? (const struct json *)cJSON_GetObjectItemCaseSensitive(item(obj), key) : NULL;
}

bool json_is_object(const struct json *v)
{
    return cJSON_IsObject(item(v));
}

bool json_is_array(const struct json *v)
{
    return cJSON_IsArray(item(v));
}

const struct json *json_first(const struct json *v)
{
    return v != NULL ? (const struct json *)item(v)->child : NULL;
}

const struct json *json_next(const struct json *child)
{
    assert(child != NULL);
    return (const struct json *)item(child)->next;
}

const char *json_key(const struct json *child)
{
    return child != NULL ? item(child)->string : NULL;
}

const char *json_str(const struct json *v)
{
    return cJSON_IsString(item(v)) ? item(v)->valuestring : NULL;
}

bool json_u64(const struct json *v, uint64_t *ret)
{
    const char *s = json_str(v);
    uint64_t x = 0;

    if (cJSON_IsNumber(item(v))) {
        const double d = item(v)->valuedouble;

        if (!(d >= 0 && d <= 0x1p53) || d != floor(d))
            return false;
        *ret = (uint64_t)d;
        return true;
    }
    if (s == NULL || s[0] == '\0')
        return false;
    for (; *s != '\0'; s++) {
        if (*s < '0' || *s > '9')
            return false;
        if (__builtin_mul_overflow(x, UINT64_C(10), &x) || __builtin_add_overflow(x, (uint64_t)(*s - '0'), &x))
            return false;
    }
    *ret = x;
    return true;
}

bool json_num(const struct json *v, double *ret)
{
    if (cJSON_IsNull(item(v))) {
        *ret = (double)NAN;
        return true;
    }
    if (!cJSON_IsNumber(item(v)))
        return false;
    *ret = item(v)->valuedouble;
    return true;
}

static int missing(struct reason *why, const struct json *v, const char *key, const char *what)
{
    if (v == NULL)
        return reason_set(why, -E_CORRUPT, "\"%s\" is missing", key);
    return reason_set(why, -E_CORRUPT, "\"%s\" is not %s", key, what);
}

int json_get_str(const struct json *obj, const char *key, const char **ret, struct reason *why)
{
    const struct json *v = json_get(obj, key);
    const char *s = json_str(v);

    if (s == NULL)
        return missing(why, v, key, "a string");
    *ret = s;
    return 0;
}

int json_get_u64(const struct json *obj, const char *key, uint64_t *ret, struct reason *why)
{
    const struct json *v = json_get(obj, key);

    return json_u64(v, ret) ? 0 : missing(why, v, key, "a whole number that fits 64 bits");
}

int json_get_num(const struct json *obj, const char *key, double *ret, struct reason *why)
{
    const struct json *v = json_get(obj, key);

    return json_num(v, ret) ? 0 : missing(why, v, key, "a number");
}

int json_get_bool(const struct json *obj, const char *key, bool *ret, struct reason *why)
{
    const struct json *v = json_get(obj, key);

    if (!cJSON_IsBool(item(v)))
        return missing(why, v, key, "true or false");
    *ret = cJSON_IsTrue(item(v));
    return 0;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int json_get_hex(const struct json *obj, const char *key, uint8_t *ret, size_t n, struct reason *why)
{
    const struct json *v = json_get(obj, key);
    const char *s = json_str(v);

    if (s == NULL || strlen(s) != 2 * n || strspn(s, "0123456789abcdefABCDEF") != 2 * n)
        return missing(why, v, key, "a hexadecimal string of the right length");
    for (size_t i = 0; i < n; i++)
        ret[i] = (uint8_t)(nibble(s[2 * i]) << 4 | nibble(s[2 * i + 1]));
    return 0;
}
