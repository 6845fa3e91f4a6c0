/* See held.h. */
#include "parallel/held.h"

#include "runtime/base/mem.h"

void held_done(struct held *h)
{
    for (uint32_t i = 0; i < h->n; i++)
        msg_free(h->entries[i].msg);
    mem_free(h->entries);
    *h = (struct held){0};
}

int held_add(struct held *h, const struct key *from, struct msg *msg)
{
    uint64_t bytes = msg->body ? msg->body->size : 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < h->n; i++)
        if (key_equal(&h->entries[i].from, from)) {
            count++;
            bytes += h->entries[i].msg->body ? h->entries[i].msg->body->size : 0;
        }
    if (count >= HELD_PER_SENDER_MAX || bytes > HELD_BYTES_PER_SENDER_MAX) {
        h->dropped++;
        msg_free(msg);
        return -E_TOOBIG;
    }
    if (h->n == h->cap) {
        uint32_t cap = h->cap ? 2 * h->cap : 16;
        struct held_entry *p = mem_resize(h->entries, h->cap, cap, sizeof *p);

        if (!p) {
            msg_free(msg);
            return -E_NOMEM;
        }
        h->entries = p;
        h->cap = cap;
    }
    h->entries[h->n++] = (struct held_entry){*from, msg};
    return 0;
}

uint32_t held_take(struct held *h, struct held_entry **ret)
{
    uint32_t n = h->n;

    *ret = h->entries;
    h->entries = NULL;
    h->n = h->cap = 0;
    return n;
}
