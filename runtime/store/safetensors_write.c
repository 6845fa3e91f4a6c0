/* Writing safetensors files. See safetensors.h. The header is padded with spaces to a multiple of 8 bytes, so that the
 * data can be mapped as they are. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/jsonw.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"
#include "runtime/store/safetensors.h"

struct safetensors_writer {
    char *path;
    int fd;
    size_t left; /* bytes still to be put */
    bool finished;
};

static int failed(struct reason *why, const struct safetensors_writer *w, const char *what)
{
    const int e = errno;
    const int status = e == ENOENT ? -E_NOENT : e == EACCES || e == EPERM || e == EROFS ? -E_PERM : -E_IO;

    return reason_set(why, status, "cannot %s %s: %s%s", what, w->path, strerror(e), file_advice(e));
}

static int write_all(struct safetensors_writer *w, const void *data, size_t size, struct reason *why)
{
    for (size_t n = 0; n < size;) {
        const ssize_t put = write(w->fd, (const char *)data + n, size - n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return failed(why, w, "write");
        n += (size_t)put;
    }
    return 0;
}

/* The size that dtype and dims make. */
static size_t tensor_size(const struct safetensors_tensor *t)
{
    size_t size = safetensors_dtype_size(t->dtype);

    assert(t->n_dims <= TENSOR_DIMS_MAX);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        assert(t->dims[i] >= 0);
        const bool fits = size_mul(size, (size_t)t->dims[i], &size);

        assert(fits);
    }
    return size;
}

static void describe_tensor(struct jsonw *j, const struct safetensors_tensor *t, size_t offset)
{
    jsonw_object(j, t->name);
    jsonw_str(j, "dtype", safetensors_dtype_text(t->dtype));
    jsonw_array(j, "shape");
    for (uint32_t i = 0; i < t->n_dims; i++)
        jsonw_int(j, NULL, t->dims[i]);
    jsonw_array_end(j);
    jsonw_array(j, "data_offsets");
    jsonw_int(j, NULL, (int64_t)offset);
    jsonw_int(j, NULL, (int64_t)(offset + t->size));
    jsonw_array_end(j);
    jsonw_object_end(j);
}

/* Length, header and padding go out; w->left is set. */
static int write_header(struct safetensors_writer *w, struct jsonw *j, const struct safetensors_tensor *tensors,
                        size_t n, const char *const *metadata, struct reason *why)
{
    const uint8_t spaces[8] = "        ";
    uint8_t prefix[8];
    size_t len, padded;
    int r;

    jsonw_object(j, NULL);
    if (metadata != NULL) {
        jsonw_object(j, "__metadata__");
        for (size_t i = 0; metadata[i] != NULL; i += 2)
            jsonw_str(j, metadata[i], metadata[i + 1]);
        jsonw_object_end(j);
    }
    for (size_t i = 0; i < n; i++) {
        assert(tensor_size(&tensors[i]) == tensors[i].size);
        if (strlen(tensors[i].name) > SAFETENSORS_NAME_MAX_LEN)
            return reason_set(why, -E_TOOBIG, "a tensor's name has more than %d bytes", SAFETENSORS_NAME_MAX_LEN);
        describe_tensor(j, &tensors[i], w->left);
        w->left += tensors[i].size;
    }
    jsonw_object_end(j);
    if (jsonw_text(j) == NULL)
        return reason_set(why, -E_NOMEM, "no memory for the header of %s", w->path);
    len = strlen(jsonw_text(j));
    padded = (len + 7) / 8 * 8;
    if (padded > SAFETENSORS_HEADER_MAX)
        return reason_set(why, -E_TOOBIG, "the header of %s has more than %u bytes", w->path, SAFETENSORS_HEADER_MAX);
    for (unsigned i = 0; i < sizeof(prefix); i++)
        prefix[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    if ((r = write_all(w, prefix, sizeof(prefix), why)) < 0 || (r = write_all(w, jsonw_text(j), len, why)) < 0)
        return r;
    return write_all(w, spaces, padded - len, why);
}

int safetensors_writer_new(const char *path, const struct safetensors_tensor *tensors, size_t n,
                           const char *const *metadata, struct safetensors_writer **ret, struct reason *why)
{
    struct safetensors_writer *w = mem_calloc(1, sizeof(*w));
    struct jsonw j;
    int r;

    if (n > TENSORS_MAX) {
        mem_free(w);
        return reason_set(why, -E_TOOBIG, "more than %d tensors", TENSORS_MAX);
    }
    if (w == NULL || (w->path = mem_strdup(path)) == NULL) {
        mem_free(w);
        return reason_set(why, -E_NOMEM, "no memory to write %s", path);
    }
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        r = failed(why, w, "create");
        w->finished = true; /* what stands there is not ours to remove */
        safetensors_writer_free(w);
        return r;
    }
    jsonw_init(&j);
    r = write_header(w, &j, tensors, n, metadata, why);
    jsonw_done(&j);
    if (r < 0) {
        safetensors_writer_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

int safetensors_writer_put(struct safetensors_writer *w, const void *data, size_t size, struct reason *why)
{
    int r;

    assert(!w->finished && size <= w->left);
    r = write_all(w, data, size, why);
    if (r < 0)
        return r;
    w->left -= size;
    return 0;
}

int safetensors_writer_finish(struct safetensors_writer *w, struct reason *why)
{
    assert(!w->finished && w->left == 0);
    if (fsync(w->fd) < 0)
        return failed(why, w, "sync");
    if (close(w->fd) < 0) {
        w->fd = -1;
        return failed(why, w, "close");
    }
    w->fd = -1;
    w->finished = true;
    return 0;
}

struct safetensors_writer *safetensors_writer_free(struct safetensors_writer *w)
{
    if (w == NULL)
        return NULL;
    if (w->fd >= 0)
        close(w->fd);
    if (!w->finished)
        unlink(w->path);
    mem_free(w->path);
    mem_free(w);
    return NULL;
}
