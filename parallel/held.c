/* See held.h. */
#include "parallel/held.h"

#include "runtime/base/mem.h"

void held_done(struct held *h)
{
    for (uint32_t i = 0; i < h->n; i++)
        msg_free(h->entries[i].msg);
    mem_free(h->entries);
    mem_free(h->senders);
    *h = (struct held){0};
}

/* The sender's account, opened if need be; NULL when out of memory. */
static struct held_sender *account(struct held *h, const struct key *from)
{
    for (uint32_t i = 0; i < h->n_senders; i++)
        if (key_equal(&h->senders[i].key, from))
            return &h->senders[i];
    if (h->n_senders == h->cap_senders) {
        uint32_t cap = h->cap_senders ? 2 * h->cap_senders : 8;
        struct held_sender *p = mem_resize(h->senders, h->cap_senders, cap, sizeof *p);

        if (!p)
            return NULL;
        h->senders = p;
        h->cap_senders = cap;
    }
    h->senders[h->n_senders] = (struct held_sender){.key = *from};
    return &h->senders[h->n_senders++];
}

int held_add(struct held *h, const struct key *from, struct msg *msg)
{
    uint64_t bytes = sizeof *msg + (msg->body ? msg->body->size : 0);
    struct held_sender *s = account(h, from);

    if (s && (s->count >= HELD_PER_SENDER_MAX || s->bytes + bytes > HELD_BYTES_PER_SENDER_MAX)) {
        h->dropped++;
        msg_free(msg);
        return -E_TOOBIG;
    }
    if (s && h->n == h->cap) {
        uint32_t cap = h->cap ? 2 * h->cap : 16;
        struct held_entry *p = mem_resize(h->entries, h->cap, cap, sizeof *p);

        if (p) {
            h->entries = p;
            h->cap = cap;
        } else {
            s = NULL;
        }
    }
    if (!s) {
        msg_free(msg);
        return -E_NOMEM;
    }
    s->count++;
    s->bytes += bytes;
    h->entries[h->n++] = (struct held_entry){*from, msg};
    return 0;
}

uint32_t held_take(struct held *h, struct held_entry **ret)
{
    uint32_t n = h->n;

    *ret = h->entries;
    h->entries = NULL;
    h->n = h->cap = h->n_senders = 0;
    return n;
}
