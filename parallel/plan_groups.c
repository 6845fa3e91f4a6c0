/* Groups: which tensors are reduced together, by whom, and where each lies in the group's flat range. A function of
 * (plan, model) alone, so that every peer and the coordinator derive the same groups without sending them.
 *
 * Invariant: each tensor is in exactly one group; a group's members are all holders, shadows and joining ones included,
 * of all the units that use its tensors (a tied tensor belongs to the holders of both its units). A member is joining a
 * group's tensors if it holds none of the units that use them yet. */
#include "parallel/plan.h"

#include <assert.h>
#include <string.h>

#include "runtime/base/bounds.h"
#include "runtime/base/mem.h"

#define SET_WORDS ((PEERS_MAX + 63) / 64)

struct peer_set {
    uint64_t words[SET_WORDS];
    uint64_t current[SET_WORDS]; /* of them those that are not joining */
};

struct draft {
    uint32_t n;            /* groups so far */
    uint32_t cap;          /* groups that sets and counts have room for */
    struct peer_set *sets; /* [cap] the members of each */
    uint32_t *counts;      /* [cap] its tensors */
    uint32_t *group_of;    /* [n_tensors] */
};

static void draft_done(struct draft *d)
{
    mem_free(d->sets);
    mem_free(d->counts);
    mem_free(d->group_of);
}

static bool set_has(const uint64_t *words, uint32_t peer)
{
    return (words[peer / 64] >> (peer % 64) & 1) != 0;
}

static struct peer_set tensor_holders(const struct plan *p, const struct model_tensor *t)
{
    struct peer_set set = {0};

    for (uint32_t i = 0; i < t->n_uses; i++) {
        const struct plan_stage *stage = &p->stages[plan_stage_of(p, t->use_unit[i])];

        for (uint32_t h = 0; h < stage->n_holders; h++) {
            const struct plan_holder *holder = &p->holders[stage->first_holder + h];
            const uint64_t bit = UINT64_C(1) << (holder->peer % 64);

            set.words[holder->peer / 64] |= bit;
            if (!holder->joining)
                set.current[holder->peer / 64] |= bit;
        }
    }
    return set;
}

/* Which group each tensor belongs to; groups are numbered as their first tensors come. */
static int draft_fill(const struct plan *p, const struct model *m, struct draft *d)
{
    d->cap = m->n_tensors < GROUPS_MAX ? m->n_tensors : GROUPS_MAX;
    d->sets = mem_calloc(d->cap, sizeof(*d->sets));
    d->counts = mem_calloc(d->cap, sizeof(*d->counts));
    d->group_of = mem_calloc(m->n_tensors, sizeof(*d->group_of));
    if (d->sets == NULL || d->counts == NULL || d->group_of == NULL)
        return -E_NOMEM;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const struct peer_set set = tensor_holders(p, &m->tensors[t]);
        uint32_t g = 0;

        while (g < d->n && memcmp(&d->sets[g], &set, sizeof(set)) != 0)
            g++;
        if (g == d->cap)
            return -E_TOOBIG;
        if (g == d->n)
            d->sets[d->n++] = set;
        d->group_of[t] = g;
        d->counts[g]++;
    }
    return 0;
}

static int group_new(struct plan_group *g, const struct peer_set *set, uint32_t n_tensors)
{
    for (uint32_t w = 0; w < SET_WORDS; w++)
        g->n_members += (uint32_t)__builtin_popcountll(set->words[w]);
    g->tensors = mem_calloc(n_tensors, sizeof(*g->tensors));
    g->offsets = mem_calloc(n_tensors, sizeof(*g->offsets));
    g->members = mem_calloc(g->n_members, sizeof(*g->members));
    g->joining = mem_calloc(g->n_members, sizeof(*g->joining));
    if (g->tensors == NULL || g->offsets == NULL || g->members == NULL || g->joining == NULL)
        return -E_NOMEM;
    for (uint32_t peer = 0, i = 0; peer < PEERS_MAX; peer++) {
        if (!set_has(set->words, peer))
            continue;
        g->members[i] = peer;
        g->joining[i++] = !set_has(set->current, peer);
    }
    return 0;
}

int plan_groups(const struct plan *p, const struct model *m, struct plan_groups *ret)
{
    struct draft d = {0};
    struct plan_groups groups = {0};
    int r;

    assert(p->n_units == m->n_units);
    r = draft_fill(p, m, &d);
    if (r == 0) {
        groups.groups = mem_calloc(d.n, sizeof(*groups.groups));
        groups.n = groups.groups == NULL ? 0 : d.n;
        r = groups.groups == NULL ? -E_NOMEM : 0;
    }
    for (uint32_t g = 0; r == 0 && g < groups.n; g++)
        r = group_new(&groups.groups[g], &d.sets[g], d.counts[g]);
    for (uint32_t t = 0; r == 0 && t < m->n_tensors; t++) {
        struct plan_group *g = &groups.groups[d.group_of[t]];

        g->tensors[g->n_tensors] = t;
        g->offsets[g->n_tensors++] = g->n_elems;
        g->n_elems += m->tensors[t].n;
    }
    draft_done(&d);
    if (r < 0) {
        plan_groups_done(&groups);
        return r;
    }
    *ret = groups;
    return 0;
}

void plan_groups_done(struct plan_groups *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        mem_free(g->groups[i].tensors);
        mem_free(g->groups[i].offsets);
        mem_free(g->groups[i].members);
        mem_free(g->groups[i].joining);
    }
    mem_free(g->groups);
    *g = (struct plan_groups){0};
}
