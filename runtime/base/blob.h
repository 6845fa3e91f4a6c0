/* A blob: immutable-after-publish bytes with a reference count, the unit in which tensors move between compute, network
 * and kept copies without being copied. Any thread may take or drop references; the last one out releases. */
#ifndef SHOAL_RUNTIME_BASE_BLOB_H
#define SHOAL_RUNTIME_BASE_BLOB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct blob {
    _Atomic uint32_t refs;
    size_t size;                  /* bytes */
    void *data;                   /* 64-byte aligned when made by blob_new; any alignment when wrapped */
    void (*release)(void *owner); /* NULL: data was allocated together with the blob */
    void *owner;
};

/* A new blob of size uninitialised bytes with one reference. -E_NOMEM. */
int blob_new(size_t size, struct blob **ret);

/* A blob over foreign memory: release(owner) is called once when the last reference goes. On failure nothing is called.
 */
int blob_wrap(void *data, size_t size, void (*release)(void *owner), void *owner, struct blob **ret);

/* A blob over bytes [offset, offset + size) of b, which it keeps referenced. -E_INVAL when out of range. */
int blob_slice(struct blob *b, size_t offset, size_t size, struct blob **ret);

struct blob *blob_ref(struct blob *b);   /* NULL gives NULL */
struct blob *blob_unref(struct blob *b); /* returns NULL; NULL is fine */

static inline void blob_unrefp(struct blob **b)
{
    *b = blob_unref(*b);
}

#endif
