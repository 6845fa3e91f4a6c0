/* The hash table behind key and routing-id look-ups: chained, nodes inside the objects, so that adding never fails.
 * Callers compare what they find: equal hashes are offered in turn. The hash is seeded by a secret per net, because
 * strangers choose their keys. */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <string.h>

#define MAP_START 64

int net_map_init(struct net_map *m)
{
    *m = (struct net_map){.n_buckets = MAP_START};
    m->buckets = mem_calloc(MAP_START, sizeof *m->buckets);
    return m->buckets ? 0 : -E_NOMEM;
}

void net_map_done(struct net_map *m)
{
    m->buckets = mem_free(m->buckets);
    m->n_buckets = m->count = 0;
}

static void map_grow(struct net_map *m)
{
    struct net_map_node **wider = mem_calloc(m->n_buckets * 2, sizeof *wider);
    if (!wider)
        return; /* longer chains, nothing worse */
    size_t mask = m->n_buckets * 2 - 1;
    for (size_t i = 0; i < m->n_buckets; i++) {
        for (struct net_map_node *x = m->buckets[i], *next; x; x = next) {
            next = x->next;
            x->next = wider[x->hash & mask];
            wider[x->hash & mask] = x;
        }
    }
    mem_free(m->buckets);
    m->buckets = wider;
    m->n_buckets *= 2;
}

void net_map_add(struct net_map *m, struct net_map_node *x, uint64_t hash)
{
    assert(!x->in_map);
    if (m->count >= m->n_buckets)
        map_grow(m);
    struct net_map_node **bucket = &m->buckets[hash & (m->n_buckets - 1)];
    *x = (struct net_map_node){.next = *bucket, .hash = hash, .in_map = true};
    *bucket = x;
    m->count++;
}

void net_map_remove(struct net_map *m, struct net_map_node *x)
{
    if (!x->in_map)
        return;
    struct net_map_node **at = &m->buckets[x->hash & (m->n_buckets - 1)];
    while (*at && *at != x)
        at = &(*at)->next;
    assert(*at);
    *at = x->next;
    *x = (struct net_map_node){0};
    m->count--;
}

struct net_map_node *net_map_first(const struct net_map *m, uint64_t hash)
{
    struct net_map_node *x = m->buckets[hash & (m->n_buckets - 1)];
    while (x && x->hash != hash)
        x = x->next;
    return x;
}

struct net_map_node *net_map_next(const struct net_map_node *x)
{
    struct net_map_node *y = x->next;
    while (y && y->hash != x->hash)
        y = y->next;
    return y;
}

/* The finalizer of MurmurHash3 over 8-byte words: with an unknown seed good enough against chosen keys. */
uint64_t net_hash(uint64_t seed, const void *bytes, size_t n)
{
    uint64_t h = seed;
    for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)bytes + at, n - at < sizeof word ? n - at : sizeof word);
        h ^= word;
        h = (h ^ (h >> 33)) * UINT64_C(0xff51afd7ed558ccd);
        h = (h ^ (h >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
        h ^= h >> 33;
    }
    return h;
}
