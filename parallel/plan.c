/* The plan as a value: copying it, the rules it must keep, and the questions everyone asks of it. Text forms live in
 * plan_text.c, groups in plan_groups.c. Nothing here decides anything.
 *
 * Invariant: the functions that answer questions are given plans that plan_validate accepted. */
#include "parallel/plan.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "parallel/plan_rules.h"
#include "runtime/base/bounds.h"
#include "runtime/base/mem.h"

void plan_done(struct plan *p)
{
    mem_free(p->peers);
    mem_free(p->stages);
    mem_free(p->holders);
    *p = (struct plan){0};
}

/* *list becomes a copy of itself; an empty list is NULL. false when out of memory. */
static bool dup_list(void *list, size_t n, size_t size)
{
    void **p = list;

    *p = n == 0 ? NULL : mem_dup(*p, n * size);
    return n == 0 || *p != NULL;
}

int plan_copy(const struct plan *p, struct plan *ret)
{
    struct plan copy = *p;
    bool ok = dup_list(&copy.peers, p->n_peers, sizeof(*p->peers));

    /* All three in any case: what is not replaced would be freed as if it were ours. */
    ok = dup_list(&copy.stages, p->n_stages, sizeof(*p->stages)) && ok;
    ok = dup_list(&copy.holders, p->n_holders, sizeof(*p->holders)) && ok;
    if (!ok) {
        plan_done(&copy);
        return -E_NOMEM;
    }
    *ret = copy;
    return 0;
}

static int check_sizes(const struct plan *p, uint32_t n_units, struct reason *why)
{
    if (n_units == 0 || n_units > UNITS_MAX || p->n_units != n_units)
        return reason_set(why, -E_INVAL, "the plan is for %u units, the model has %u (1 to %u are possible)",
                          p->n_units, n_units, UNITS_MAX);
    if (p->n_peers == 0 || p->n_peers > PEERS_MAX || p->peers == NULL)
        return reason_set(why, -E_INVAL, "the plan has %u peers (1 to %u are possible)", p->n_peers, PEERS_MAX);
    if (p->n_stages == 0 || p->n_stages > STAGES_MAX || p->stages == NULL)
        return reason_set(why, -E_INVAL, "the plan has %u stages (1 to %u are possible)", p->n_stages, STAGES_MAX);
    if (p->n_holders == 0 || p->n_holders > HOLDERS_MAX || p->holders == NULL)
        return reason_set(why, -E_INVAL, "the plan has %u holders (1 to %u are possible)", p->n_holders, HOLDERS_MAX);
    if (p->in_flight == 0 || p->in_flight > MICROBATCHES_MAX)
        return reason_set(why, -E_INVAL, "the plan has %u microbatches in flight (1 to %u are possible)", p->in_flight,
                          MICROBATCHES_MAX);
    if (!isfinite(p->predicted_seconds) || p->predicted_seconds < 0)
        return reason_set(why, -E_INVAL, "the plan predicts a step of %g seconds", p->predicted_seconds);
    return 0;
}

/* Stage s must begin where the one before it ended, in units and in holders. */
static int check_place(const struct plan *p, uint32_t s, uint32_t unit, uint32_t holder, struct reason *why)
{
    const struct plan_stage *stage = &p->stages[s];

    if (stage->u0 != unit)
        return reason_set(why, -E_INVAL, "stage %u begins at unit %u, not at unit %u where the one before it ends", s,
                          stage->u0, unit);
    if (stage->u1 <= stage->u0 || stage->u1 > p->n_units)
        return reason_set(why, -E_INVAL, "stage %u holds units [%u, %u) of %u", s, stage->u0, stage->u1, p->n_units);
    if (stage->first_holder != holder || stage->n_holders == 0 || stage->n_holders > p->n_holders - holder)
        return reason_set(why, -E_INVAL, "stage %u has holders [%u, +%u), expected to start at %u of %u", s,
                          stage->first_holder, stage->n_holders, holder, p->n_holders);
    return 0;
}

/* seen[peer] is 1 + the last stage where the peer was met. */
static int check_holders(const struct plan *p, uint32_t s, uint32_t *seen, struct reason *why)
{
    const struct plan_stage *stage = &p->stages[s];
    bool works = false;

    for (uint32_t i = 0; i < stage->n_holders; i++) {
        const struct plan_holder *h = &p->holders[stage->first_holder + i];

        if (h->peer >= p->n_peers)
            return reason_set(why, -E_INVAL, "stage %u is held by peer %u, but the plan has %u peers", s, h->peer,
                              p->n_peers);
        if (h->weight > PLAN_WEIGHT_MAX)
            return reason_set(why, -E_INVAL, "peer %u has weight %u in stage %u (at most %u)", h->peer, h->weight, s,
                              PLAN_WEIGHT_MAX);
        if (h->joining > 1 || (h->joining && h->weight > 0))
            return reason_set(why, -E_INVAL, "peer %u is joining stage %u and has a share in it", h->peer, s);
        if (seen[h->peer] == s + 1)
            return reason_set(why, -E_INVAL, "peer %u stands twice in stage %u", h->peer, s);
        seen[h->peer] = s + 1;
        works = works || h->weight > 0;
    }
    if (!works)
        return reason_set(why, -E_INVAL, "nobody works on stage %u: each stage needs a holder with a weight above 0",
                          s);
    return 0;
}

int plan_check_form(const struct plan *p, uint32_t n_units, struct reason *why)
{
    uint32_t seen[PEERS_MAX] = {0};
    uint32_t unit = 0, holder = 0;
    int r = check_sizes(p, n_units, why);

    for (uint32_t s = 0; r == 0 && s < p->n_stages; s++) {
        r = check_place(p, s, unit, holder, why);
        if (r == 0)
            r = check_holders(p, s, seen, why);
        unit = p->stages[s].u1;
        holder += p->stages[s].n_holders;
    }
    if (r < 0)
        return r;
    if (unit != n_units)
        return reason_set(why, -E_INVAL, "the stages end at unit %u of %u", unit, n_units);
    if (holder != p->n_holders)
        return reason_set(why, -E_INVAL, "the stages use %u of %u holders", holder, p->n_holders);
    for (uint32_t i = 0; i < p->n_peers; i++) {
        if (seen[i] == 0)
            return reason_set(why, -E_INVAL, "peer %u holds nothing", i);
    }
    return 0;
}

int plan_validate(const struct plan *p, uint32_t n_units, struct reason *why)
{
    int r = plan_check_form(p, n_units, why);

    for (uint32_t i = 0; r == 0 && i < p->n_peers; i++) {
        for (uint32_t j = 0; r == 0 && j < i; j++) {
            if (memcmp(p->peers[i].key.bytes, p->peers[j].key.bytes, KEY_BYTES) == 0)
                r = reason_set(why, -E_INVAL, "peers %u and %u have the same key", j, i);
        }
    }
    return r;
}

uint32_t plan_stage_of(const struct plan *p, uint32_t u)
{
    uint32_t s = 0;

    assert(u < p->n_units);
    while (u >= p->stages[s].u1) {
        s++;
        assert(s < p->n_stages);
    }
    return s;
}

int plan_find(const struct plan *p, const struct key *key)
{
    for (uint32_t i = 0; i < p->n_peers; i++) {
        if (memcmp(p->peers[i].key.bytes, key->bytes, KEY_BYTES) == 0)
            return (int)i;
    }
    return -E_NOENT;
}

static void mark_held(const struct plan *p, uint32_t peer, bool joining_too, bool *held)
{
    assert(peer < p->n_peers);
    memset(held, 0, p->n_units * sizeof(*held));
    for (uint32_t s = 0; s < p->n_stages; s++) {
        const struct plan_stage *stage = &p->stages[s];

        for (uint32_t i = 0; i < stage->n_holders; i++) {
            const struct plan_holder *h = &p->holders[stage->first_holder + i];

            if (h->peer == peer && (joining_too || !h->joining))
                memset(held + stage->u0, 1, (stage->u1 - stage->u0) * sizeof(*held));
        }
    }
}

void plan_held(const struct plan *p, uint32_t peer, bool *held)
{
    mark_held(p, peer, true, held);
}

void plan_current(const struct plan *p, uint32_t peer, bool *held)
{
    mark_held(p, peer, false, held);
}

bool plan_counts(const struct plan *p, uint32_t peer)
{
    for (uint32_t i = 0; i < p->n_holders; i++) {
        if (p->holders[i].peer == peer && !p->holders[i].joining)
            return true;
    }
    return false;
}
