/* Messages as a peer may send them. The first four bytes, little-endian, say how much of the rest is the head; what
 * remains, if anything, is the body. Whatever decodes must encode, and the encoding must decode to the same message:
 * the same bytes once more. */
#include <stdlib.h>
#include <string.h>

#include "parallel/proto.h"
#include "tests/fuzz/fuzz.h"

/* The bytes in a block of exactly their size. */
static struct blob *exact(const uint8_t *data, size_t n)
{
    struct blob *b = NULL;
    uint8_t *block = malloc(n > 0 ? n : 1);

    if (block == NULL)
        abort();
    if (n > 0)
        memcpy(block, data, n);
    if (blob_wrap(block, n, free, block, &b) < 0)
        abort();
    return b;
}

static void check_again(const struct msg *m)
{
    struct blob *first = NULL, *second = NULL;
    struct msg *again = NULL;

    if (proto_encode(m, &first) < 0 || proto_decode(first, m->body, &again, NULL) < 0 ||
        proto_encode(again, &second) < 0)
        abort();
    if (again->type != m->type || again->term != m->term || again->body != m->body)
        abort();
    if (first->size != second->size || memcmp(first->data, second->data, first->size) != 0)
        abort();
    msg_free(again);
    blob_unref(first);
    blob_unref(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reason why = {0};
    struct blob *head, *body;
    struct msg *m = NULL;
    uint32_t split;
    int r;

    if (size < sizeof(split))
        return 0;
    memcpy(&split, data, sizeof(split));
    data += sizeof(split);
    size -= sizeof(split);
    if (split > size)
        split = (uint32_t)size;
    head = exact(data, split);
    body = split < size ? exact(data + split, size - split) : NULL;
    r = proto_decode(head, body, &m, &why);
    if (r == 0)
        check_again(m);
    else if ((r != -E_PROTO && r != -E_VERSION && r != -E_UNSUPPORTED) || m != NULL || why.text[0] == '\0')
        abort();
    msg_free(m);
    blob_unref(head);
    blob_unref(body);
    return 0;
}
