/* Reference-counted bytes. Not a cache and not a parser. Invariant: data is valid while one reference is held; whoever
 * drops the last one sees all that others wrote before dropping theirs (the decrement is acquire-release). */
#include "runtime/base/blob.h"

#include "runtime/base/mem.h"
#include "runtime/base/status.h"

#include <assert.h>

/* A blob made here is one allocation: the header fills the first cache line, the bytes follow aligned. */
#define HEADER_BYTES 64
_Static_assert(sizeof(struct blob) <= HEADER_BYTES, "the header fits one cache line");

int blob_new(size_t size, struct blob **ret)
{
    if (size > SIZE_MAX - HEADER_BYTES)
        return -E_NOMEM;
    struct blob *b = mem_alloc(HEADER_BYTES + size);
    if (!b)
        return -E_NOMEM;
    *b = (struct blob){.size = size, .data = (char *)b + HEADER_BYTES};
    atomic_init(&b->refs, 1);
    *ret = b;
    return 0;
}

int blob_wrap(void *data, size_t size, void (*release)(void *owner), void *owner, struct blob **ret)
{
    assert(data || size == 0);
    struct blob *b = mem_alloc(sizeof(*b));
    if (!b)
        return -E_NOMEM;
    *b = (struct blob){.size = size, .data = data, .release = release, .owner = owner};
    atomic_init(&b->refs, 1);
    *ret = b;
    return 0;
}

static void release_slice(void *owner)
{
    blob_unref(owner);
}

int blob_slice(struct blob *b, size_t offset, size_t size, struct blob **ret)
{
    assert(b);
    if (offset > b->size || size > b->size - offset)
        return -E_INVAL;
    int r = blob_wrap(size ? (char *)b->data + offset : b->data, size, release_slice, b, ret);
    if (r == 0)
        blob_ref(b);
    return r;
}

struct blob *blob_ref(struct blob *b)
{
    if (b) {
        uint32_t before = atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
        assert(before > 0 && before < UINT32_MAX);
        (void)before;
    }
    return b;
}

struct blob *blob_unref(struct blob *b)
{
    if (!b)
        return NULL;
    uint32_t before = atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) {
        if (b->release)
            b->release(b->owner);
        mem_free(b);
    }
    return NULL;
}
