/* Reading safetensors files. See safetensors.h. The header is a stranger's text: nothing in it is believed, and the
 * tensors become visible only when all of them have passed. */
#include "runtime/store/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/mem.h"
#include "runtime/store/json.h"

#define PREFIX_BYTES 8u /* the header's length stands in front of it */

struct safetensors {
    void *map; /* NULL: the caller's memory */
    size_t map_size;
    struct json *header; /* owns the names */
    const struct json *metadata;
    struct safetensors_tensor *tensors; /* by offset */
    size_t n_tensors;
    const struct safetensors_tensor **by_name;
};

static const struct {
    const char *text;
    size_t size;
} dtypes[SAFETENSORS_DTYPES] = {
#define X(name, text, size) {text, size},
    SAFETENSORS_DTYPE_MAP(X)
#undef X
};

const char *safetensors_dtype_text(enum safetensors_dtype dtype)
{
    assert(dtype < SAFETENSORS_DTYPES);
    return dtypes[dtype].text;
}

size_t safetensors_dtype_size(enum safetensors_dtype dtype)
{
    assert(dtype < SAFETENSORS_DTYPES);
    return dtypes[dtype].size;
}

static int corrupt(struct reason *why, const char *name, const char *what)
{
    return reason_set(why, -E_CORRUPT, "tensor \"%.100s\": %s", name, what);
}

static int parse_dtype(const struct json *v, struct safetensors_tensor *t, struct reason *why)
{
    const char *text = json_str(json_get(v, "dtype"));

    if (text == NULL)
        return corrupt(why, t->name, "no dtype");
    for (unsigned d = 0; d < SAFETENSORS_DTYPES; d++) {
        if (strcmp(dtypes[d].text, text) == 0) {
            t->dtype = (enum safetensors_dtype)d;
            return 0;
        }
    }
    return reason_set(why, -E_UNSUPPORTED, "tensor \"%.100s\": unknown dtype \"%.20s\"", t->name, text);
}

/* Sets dims and size, the latter from dtype and dims. */
static int parse_shape(const struct json *v, struct safetensors_tensor *t, struct reason *why)
{
    const struct json *shape = json_get(v, "shape");
    size_t size = dtypes[t->dtype].size;

    if (!json_is_array(shape))
        return corrupt(why, t->name, "no shape");
    for (const struct json *d = json_first(shape); d != NULL; d = json_next(d)) {
        uint64_t dim;

        if (json_str(d) != NULL || !json_u64(d, &dim))
            return corrupt(why, t->name, "a dimension is not a whole number");
        if (t->n_dims == TENSOR_DIMS_MAX)
            return reason_set(why, -E_TOOBIG, "tensor \"%.100s\" has more than %d dimensions", t->name,
                              TENSOR_DIMS_MAX);
        if (!size_mul(size, dim, &size))
            return corrupt(why, t->name, "its shape overflows");
        t->dims[t->n_dims++] = (int64_t)dim;
    }
    t->size = size;
    return 0;
}

/* Checks the range against the n_data bytes behind the header and points t->data into them. */
static int parse_range(const struct json *v, struct safetensors_tensor *t, const uint8_t *data, size_t n_data,
                       struct reason *why)
{
    const struct json *range = json_get(v, "data_offsets");
    const struct json *first = json_is_array(range) ? json_first(range) : NULL;
    const struct json *second = first != NULL ? json_next(first) : NULL;
    uint64_t from, to;

    if (second == NULL || json_next(second) != NULL || json_str(first) != NULL || json_str(second) != NULL ||
        !json_u64(first, &from) || !json_u64(second, &to))
        return corrupt(why, t->name, "data_offsets is not a pair of whole numbers");
    if (from > to || to > n_data)
        return reason_set(why, -E_CORRUPT,
                          "tensor \"%.100s\": bytes %" PRIu64 " to %" PRIu64 " do not lie in the file's %zu", t->name,
                          from, to, n_data);
    if (to - from != t->size)
        return reason_set(why, -E_CORRUPT, "tensor \"%.100s\": %" PRIu64 " bytes, but dtype and shape make %zu",
                          t->name, to - from, t->size);
    if (from % dtypes[t->dtype].size != 0)
        return reason_set(why, -E_UNSUPPORTED, "tensor \"%.100s\" is not aligned to its dtype", t->name);
    t->data = data + from;
    return 0;
}

static int parse_tensor(const struct json *v, const uint8_t *data, size_t n_data, struct safetensors_tensor *ret,
                        struct reason *why)
{
    struct safetensors_tensor t = {.name = json_key(v)};
    int r;

    if (strlen(t.name) > SAFETENSORS_NAME_MAX_LEN)
        return reason_set(why, -E_TOOBIG, "a tensor's name has more than %d bytes", SAFETENSORS_NAME_MAX_LEN);
    if (!json_is_object(v))
        return corrupt(why, t.name, "not described by an object");
    if ((r = parse_dtype(v, &t, why)) < 0 || (r = parse_shape(v, &t, why)) < 0 ||
        (r = parse_range(v, &t, data, n_data, why)) < 0)
        return r;
    *ret = t;
    return 0;
}

static int parse_metadata(struct safetensors *s, const struct json *v, struct reason *why)
{
    if (s->metadata != NULL)
        return reason_set(why, -E_CORRUPT, "__metadata__ stands twice");
    if (!json_is_object(v))
        return reason_set(why, -E_CORRUPT, "__metadata__ is not an object");
    for (const struct json *m = json_first(v); m != NULL; m = json_next(m)) {
        if (json_str(m) == NULL)
            return reason_set(why, -E_CORRUPT, "__metadata__ holds something else than text");
    }
    s->metadata = v;
    return 0;
}

/* By offset; empty tensors before the one that starts where they lie. */
static int compare_data(const void *a, const void *b)
{
    const struct safetensors_tensor *s = a, *t = b;

    if (s->data != t->data)
        return (const uint8_t *)s->data < (const uint8_t *)t->data ? -1 : 1;
    return (s->size > t->size) - (s->size < t->size);
}

static int compare_name(const void *a, const void *b)
{
    return strcmp((*(const struct safetensors_tensor *const *)a)->name,
                  (*(const struct safetensors_tensor *const *)b)->name);
}

/* Sorts by offset and by name; finds overlaps, holes and names that stand twice. */
static int index_tensors(struct safetensors *s, const uint8_t *data, size_t n_data, struct reason *why)
{
    const uint8_t *end = data;

    if (s->n_tensors > 0)
        qsort(s->tensors, s->n_tensors, sizeof(*s->tensors), compare_data);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];

        if ((const uint8_t *)t->data < end)
            return corrupt(why, t->name, "its bytes overlap another tensor's");
        if ((const uint8_t *)t->data > end)
            return corrupt(why, t->name, "bytes in front of it belong to no tensor");
        end = (const uint8_t *)t->data + t->size;
        s->by_name[i] = t;
    }
    if (end != data + n_data)
        return reason_set(why, -E_CORRUPT, "%td bytes at the end belong to no tensor", data + n_data - end);
    if (s->n_tensors > 0)
        qsort(s->by_name, s->n_tensors, sizeof(struct safetensors_tensor *), compare_name);
    for (size_t i = 1; i < s->n_tensors; i++) {
        if (compare_name(&s->by_name[i - 1], &s->by_name[i]) == 0)
            return corrupt(why, s->by_name[i]->name, "stands twice");
    }
    return 0;
}

static int parse_tensors(struct safetensors *s, const uint8_t *data, size_t n_data, struct reason *why)
{
    size_t n = 0;
    int r;

    if (!json_is_object(s->header))
        return reason_set(why, -E_CORRUPT, "the header is not a JSON object");
    for (const struct json *v = json_first(s->header); v != NULL; v = json_next(v))
        n++;
    if (n > TENSORS_MAX + 1u) /* one of them may be __metadata__ */
        return reason_set(why, -E_TOOBIG, "more than %d tensors", TENSORS_MAX);
    s->tensors = mem_calloc(n, sizeof(*s->tensors));
    s->by_name = mem_calloc(n, sizeof(*s->by_name));
    if (s->tensors == NULL || s->by_name == NULL)
        return reason_set(why, -E_NOMEM, "no memory for %zu tensors", n);
    for (const struct json *v = json_first(s->header); v != NULL; v = json_next(v)) {
        if (strcmp(json_key(v), "__metadata__") == 0)
            r = parse_metadata(s, v, why);
        else
            r = parse_tensor(v, data, n_data, &s->tensors[s->n_tensors++], why);
        if (r < 0)
            return r;
    }
    return index_tensors(s, data, n_data, why);
}

static int parse_file(struct safetensors *s, const uint8_t *bytes, size_t size, struct reason *why)
{
    uint64_t n_header = 0;
    int r;

    if (size < PREFIX_BYTES)
        return reason_set(why, -E_CORRUPT, "%zu bytes are too few", size);
    for (unsigned i = 0; i < PREFIX_BYTES; i++)
        n_header |= (uint64_t)bytes[i] << (8 * i);
    if (n_header > size - PREFIX_BYTES)
        return reason_set(why, -E_CORRUPT, "a header of %" PRIu64 " bytes does not lie in the file's %zu", n_header,
                          size);
    if (n_header > SAFETENSORS_HEADER_MAX)
        return reason_set(why, -E_TOOBIG, "a header of %" PRIu64 " bytes, more than %u", n_header,
                          SAFETENSORS_HEADER_MAX);
    if (n_header % 8 != 0)
        return reason_set(why, -E_UNSUPPORTED, "a header of %" PRIu64 " bytes leaves the data unaligned", n_header);
    r = json_parse((const char *)bytes + PREFIX_BYTES, (size_t)n_header, &s->header, why);
    if (r < 0)
        return reason_wrap(why, r, "the header");
    return parse_tensors(s, bytes + PREFIX_BYTES + n_header, size - PREFIX_BYTES - (size_t)n_header, why);
}

int safetensors_parse(const void *data, size_t size, struct safetensors **ret, struct reason *why)
{
    struct safetensors *s;
    int r;

    assert((uintptr_t)data % 8 == 0);
    s = mem_calloc(1, sizeof(*s));
    if (s == NULL)
        return reason_set(why, -E_NOMEM, "no memory");
    r = parse_file(s, data, size, why);
    if (r < 0) {
        safetensors_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

/* Maps the whole regular file at path. *ret_map is NULL for an empty file. */
static int map_file(const char *path, void **ret_map, size_t *ret_size, struct reason *why)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    void *map = NULL;
    struct stat st;
    int r = 0;

    if (fd < 0)
        return reason_set(why, errno == ENOENT ? -E_NOENT : -E_IO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0) {
        r = reason_set(why, -E_IO, "cannot look at %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        r = reason_set(why, -E_INVAL, "%s is not a regular file", path);
    } else if (st.st_size > 0) {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            r = reason_set(why, -E_IO, "cannot map %s: %s", path, strerror(errno));
    }
    close(fd);
    if (r < 0)
        return r;
    *ret_map = map;
    *ret_size = (size_t)st.st_size;
    return 0;
}

int safetensors_open(const char *path, struct safetensors **ret, struct reason *why)
{
    struct safetensors *s;
    size_t size = 0;
    void *map = NULL;
    int r = map_file(path, &map, &size, why);

    if (r < 0)
        return r;
    r = safetensors_parse(map, size, &s, why);
    if (r < 0) {
        if (map != NULL)
            munmap(map, size);
        return reason_wrap(why, r, "%s", path);
    }
    s->map = map;
    s->map_size = size;
    *ret = s;
    return 0;
}

struct safetensors *safetensors_free(struct safetensors *s)
{
    if (s == NULL)
        return NULL;
    if (s->map != NULL)
        munmap(s->map, s->map_size);
    json_free(s->header);
    mem_free(s->tensors);
    mem_free(s->by_name);
    mem_free(s);
    return NULL;
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->n_tensors;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t i)
{
    assert(i < s->n_tensors);
    return &s->tensors[i];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    const struct safetensors_tensor key = {.name = name}, *p = &key;
    const struct safetensors_tensor **hit = NULL;

    if (s->n_tensors > 0)
        hit = bsearch(&p, s->by_name, s->n_tensors, sizeof(struct safetensors_tensor *), compare_name);
    return hit != NULL ? *hit : NULL;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    return json_str(json_get(s->metadata, key));
}
