/* safetensors files: 8 bytes of little-endian header length, a JSON header that names each tensor's dtype, shape and
 * bytes, then the bytes. The reader maps the file and checks every field before anyone sees a pointer: shapes and
 * offsets cannot overflow, ranges lie in the file, do not overlap and leave no hole, names are unique, the header is
 * bounded. The writer streams tensors in the order in which it was told of them.
 *
 * A mapped file must not be cut short by others while it is open; ours are never changed once they have their name. */
#ifndef SHOAL_RUNTIME_STORE_SAFETENSORS_H
#define SHOAL_RUNTIME_STORE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/bounds.h"
#include "runtime/base/status.h"

/* X(name, text in the file, bytes of one element) */
#define SAFETENSORS_DTYPE_MAP(X)                                                                                       \
    X(F64, "F64", 8)                                                                                                   \
    X(F32, "F32", 4)                                                                                                   \
    X(F16, "F16", 2)                                                                                                   \
    X(BF16, "BF16", 2)                                                                                                 \
    X(I64, "I64", 8)                                                                                                   \
    X(I32, "I32", 4)                                                                                                   \
    X(I16, "I16", 2)                                                                                                   \
    X(I8, "I8", 1)                                                                                                     \
    X(U64, "U64", 8)                                                                                                   \
    X(U32, "U32", 4)                                                                                                   \
    X(U16, "U16", 2)                                                                                                   \
    X(U8, "U8", 1)                                                                                                     \
    X(BOOL, "BOOL", 1)

enum safetensors_dtype {
#define X(name, text, size) SAFETENSORS_##name,
    SAFETENSORS_DTYPE_MAP(X)
#undef X
        SAFETENSORS_DTYPES
};

const char *safetensors_dtype_text(enum safetensors_dtype dtype);
size_t safetensors_dtype_size(enum safetensors_dtype dtype); /* bytes of one element */

/* One tensor: row-major, dense, little-endian. n_dims = 0 is a scalar, a dimension may be 0. */
struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype;
    uint32_t n_dims;
    int64_t dims[TENSOR_DIMS_MAX];
    size_t size;      /* bytes */
    const void *data; /* aligned for its dtype; set by the reader, not looked at by the writer */
};

struct safetensors;

/* Maps and checks the file at path. -E_CORRUPT: a field breaks the format; -E_UNSUPPORTED: a dtype we do not know or
 * data that are not aligned; -E_TOOBIG: header, tensor count, name or dimensions beyond our bounds; -E_NOENT, -E_IO,
 * -E_NOMEM. */
int safetensors_open(const char *path, struct safetensors **ret, struct reason *why);

/* The same over size bytes that the caller keeps in place until safetensors_free; data must be 8-byte aligned. */
int safetensors_parse(const void *data, size_t size, struct safetensors **ret, struct reason *why);
struct safetensors *safetensors_free(struct safetensors *s); /* NULL ok; returns NULL */

size_t safetensors_count(const struct safetensors *s);

/* Tensor i < safetensors_count, in the order in which they lie in the file. Lives until safetensors_free. */
const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t i);
const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name); /* NULL: none */

/* The value of key in __metadata__, NULL if there is none. */
const char *safetensors_metadata(const struct safetensors *s, const char *key);

struct safetensors_writer;

/* Creates (or overwrites) the file at path and writes its header. tensors: n of them, in the order in which their bytes
 * will follow; name, dtype, n_dims, dims and size are looked at (size must agree with dtype and dims: asserted).
 * metadata: key, value, key, value, ..., NULL; may be NULL. The arguments are not kept. -E_NOENT, -E_PERM, -E_IO,
 * -E_NOMEM; -E_TOOBIG (what our own reader would refuse). */
int safetensors_writer_new(const char *path, const struct safetensors_tensor *tensors, size_t n,
                           const char *const *metadata, struct safetensors_writer **ret, struct reason *why);

/* The next size bytes of the data; the cut into calls is the caller's choice. */
int safetensors_writer_put(struct safetensors_writer *w, const void *data, size_t size, struct reason *why);

/* Syncs and closes a file whose bytes have all been put (asserted). The writer is still to be freed. */
int safetensors_writer_finish(struct safetensors_writer *w, struct reason *why);

/* NULL ok; returns NULL. A file that was not finished is removed. */
struct safetensors_writer *safetensors_writer_free(struct safetensors_writer *w);

#endif
