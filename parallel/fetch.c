/* See fetch.h. Pieces are numbered over all items; a window of them is outstanding at any time. */
#include "parallel/fetch.h"

#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define WINDOW 16
/* A piece is asked for again when no piece came for so long; it may still be queued on a slow link, so each further
 * request waits twice as long. */
#define RETRY_NS  (2 * NS_PER_S)
#define ASKED_MAX 5

struct fetch {
    uint64_t term, version;
    uint32_t n_items;
    struct fetch_item *items;
    uint64_t n_pieces, n_done, next; /* next piece never asked for */
    int64_t heard_at;
    struct {
        uint64_t piece; /* UINT64_MAX = free */
        int64_t asked_at;
        uint32_t n_asked;
    } window[WINDOW];
};

static uint64_t item_pieces(const struct fetch_item *i)
{
    return (i->n_elems + FETCH_PIECE_ELEMS - 1) / FETCH_PIECE_ELEMS;
}

int fetch_new(uint64_t term, uint64_t version, const struct fetch_item *items, uint32_t n_items, struct fetch **ret)
{
    struct fetch *f = mem_calloc(1, sizeof *f);

    if (!f)
        return -E_NOMEM;
    f->term = term;
    f->version = version;
    f->n_items = n_items;
    f->items = mem_dup(items, n_items * sizeof *items);
    if (!f->items) {
        fetch_free(f);
        return -E_NOMEM;
    }
    for (uint32_t i = 0; i < n_items; i++)
        f->n_pieces += item_pieces(&items[i]);
    for (uint32_t i = 0; i < WINDOW; i++)
        f->window[i].piece = UINT64_MAX;
    *ret = f;
    return 0;
}

struct fetch *fetch_free(struct fetch *f)
{
    if (f)
        mem_free(f->items);
    return mem_free(f);
}

bool fetch_finished(const struct fetch *f)
{
    return f->n_done == f->n_pieces;
}
uint64_t fetch_version(const struct fetch *f)
{
    return f->version;
}
double fetch_progress(const struct fetch *f)
{
    return f->n_pieces ? (double)f->n_done / (double)f->n_pieces : 1;
}

/* The item of a piece, and the piece's key. */
static const struct fetch_item *locate(const struct fetch *f, uint64_t piece, struct msg_state_key *ret)
{
    const struct fetch_item *i = f->items;

    while (piece >= item_pieces(i)) {
        piece -= item_pieces(i);
        i++;
    }
    uint64_t offset = piece * FETCH_PIECE_ELEMS;
    uint64_t left = i->n_elems - offset;

    *ret = (struct msg_state_key){f->version, i->tensor, i->part, offset,
                                  left < FETCH_PIECE_ELEMS ? left : FETCH_PIECE_ELEMS};
    return i;
}

static void ask(struct fetch *f, uint32_t slot, int64_t now, struct effects *fx)
{
    struct msg *m = msg_new(MSG_STATE_GET, f->term);
    struct msg_state_key key;
    const struct fetch_item *i = locate(f, f->window[slot].piece, &key);

    f->window[slot].asked_at = now;
    f->window[slot].n_asked += f->window[slot].n_asked < ASKED_MAX;
    if (m)
        m->state_get.key = key;
    effects_send(fx, &i->donor, m);
}

void fetch_tick(struct fetch *f, int64_t now, struct effects *fx)
{
    for (uint32_t i = 0; i < WINDOW; i++) {
        if (f->window[i].piece != UINT64_MAX) {
            int64_t since = f->heard_at > f->window[i].asked_at ? f->heard_at : f->window[i].asked_at;

            if (now - since >= RETRY_NS << (f->window[i].n_asked - 1))
                ask(f, i, now, fx);
        } else if (f->next < f->n_pieces) {
            f->window[i].piece = f->next++;
            f->window[i].n_asked = 0;
            ask(f, i, now, fx);
        }
    }
}

int fetch_chunk(struct fetch *f, const struct key *from, const struct msg *m, int64_t now, struct effects *fx)
{
    const struct msg_state_chunk *c = &m->state_chunk;

    for (uint32_t i = 0; i < WINDOW; i++) {
        struct msg_state_key key;
        uint8_t hash[HASH_BYTES];

        if (f->window[i].piece == UINT64_MAX)
            continue;
        const struct fetch_item *item = locate(f, f->window[i].piece, &key);

        if (key.version != c->key.version || key.tensor != c->key.tensor || key.part != c->key.part ||
            key.offset != c->key.offset || key.n != c->key.n || !key_equal(from, &item->donor))
            continue;
        if (!m->body || m->body->size != key.n * sizeof(float))
            return -E_CORRUPT;
        hash_of(m->body->data, m->body->size, hash);
        if (memcmp(hash, c->hash, HASH_BYTES) != 0) {
            ask(f, i, now, fx);
            return -E_CORRUPT;
        }
        f->window[i].piece = UINT64_MAX;
        f->heard_at = now;
        f->n_done++;
        fetch_tick(f, now, fx);
        return 1;
    }
    return 0;
}

void fetch_redirect(struct fetch *f, bool (*pick)(void *arg, struct fetch_item *item), void *arg, int64_t now,
                    struct effects *fx)
{
    struct msg_state_key key;

    for (uint32_t i = 0; i < f->n_items; i++) {
        if (!pick(arg, &f->items[i]))
            continue;
        for (uint32_t k = 0; k < WINDOW; k++)
            if (f->window[k].piece != UINT64_MAX && locate(f, f->window[k].piece, &key) == &f->items[i])
                ask(f, k, now, fx);
    }
}
