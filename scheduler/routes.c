/* See routes.h. */
#include "scheduler/routes.h"

#include <assert.h>
#include <string.h>

#include "runtime/base/mem.h"

int routes_credit_init(struct routes_credit *c, const struct plan *plan)
{
    c->owed = mem_calloc(plan->n_holders, sizeof *c->owed);
    c->n = plan->n_holders;
    return c->owed ? 0 : -E_NOMEM;
}

void routes_credit_done(struct routes_credit *c)
{
    mem_free(c->owed);
    *c = (struct routes_credit){0};
}

void routes_done(struct routes *r)
{
    mem_free(r->leases);
    *r = (struct routes){0};
}

/* A holder's weight in the division; of shadows alone each counts one. Who is joining has nothing to work with yet. */
static uint32_t weight_of(const struct plan *plan, const bool *gone, const struct plan_stage *s, uint32_t i,
                          bool shadows)
{
    const struct plan_holder *h = &plan->holders[s->first_holder + i];

    return (gone && gone[h->peer]) || h->joining ? 0 : shadows ? 1 : h->weight;
}

/* How many of n microbatches each holder of the stage gets: largest remainders of what it is owed; counts[i] for holder
 * first + i. */
static void divide(const struct plan *plan, const bool *gone, const struct plan_stage *s, struct routes_credit *credit,
                   uint32_t n, uint32_t *counts)
{
    int64_t total = 0, given = 0;
    bool shadows;

    for (uint32_t i = 0; i < s->n_holders; i++)
        total += weight_of(plan, gone, s, i, false);
    shadows = total == 0;
    for (uint32_t i = 0; shadows && i < s->n_holders; i++)
        total += weight_of(plan, gone, s, i, true);
    assert(total > 0);
    for (uint32_t i = 0; i < s->n_holders; i++) {
        int64_t *owed = &credit->owed[s->first_holder + i];

        *owed += (int64_t)n * weight_of(plan, gone, s, i, shadows);
        counts[i] = *owed > 0 && weight_of(plan, gone, s, i, shadows) > 0 ? (uint32_t)(*owed / total) : 0;
        *owed -= (int64_t)counts[i] * total;
        given += counts[i];
    }
    while (given != n) { /* at most n_holders rounds: remainders are below one microbatch each */
        bool more = given < n;
        uint32_t best = UINT32_MAX;

        for (uint32_t i = 0; i < s->n_holders; i++) {
            int64_t owed = credit->owed[s->first_holder + i];

            if (weight_of(plan, gone, s, i, shadows) == 0 || (!more && counts[i] == 0))
                continue;
            if (best == UINT32_MAX ||
                (more ? owed > credit->owed[s->first_holder + best] : owed < credit->owed[s->first_holder + best]))
                best = i;
        }
        counts[best] += more ? 1 : -1;
        credit->owed[s->first_holder + best] += more ? -total : total;
        given += more ? 1 : -1;
    }
}

/* Who of the stage takes microbatch m: the holder furthest behind its even pace; among equals the peer that has the
 * microbatch already, then the first. */
static uint32_t next_holder(const struct plan *plan, const struct plan_stage *s, const uint32_t *counts,
                            const uint32_t *given, uint32_t n, uint32_t m, uint32_t before)
{
    uint32_t best = UINT32_MAX;
    int64_t best_lag = 0;

    for (uint32_t i = 0; i < s->n_holders; i++) {
        if (given[i] >= counts[i])
            continue;
        int64_t lag = (int64_t)counts[i] * (m + 1) - (int64_t)given[i] * n;
        bool same = plan->holders[s->first_holder + i].peer == before;

        if (best == UINT32_MAX || lag > best_lag || (lag == best_lag && same)) {
            best = i;
            best_lag = lag;
        }
    }
    assert(best != UINT32_MAX);
    return best;
}

/* assign[m * n_stages + s] = plan peer. */
static int assign_all(const struct plan *plan, const bool *gone, struct routes_credit *credit, uint32_t n,
                      uint32_t *assign)
{
    uint32_t *counts = mem_calloc((size_t)plan->n_holders * 2, sizeof *counts);
    uint32_t *given = counts + plan->n_holders;

    if (!counts)
        return -E_NOMEM;
    for (uint32_t s = 0; s < plan->n_stages; s++) {
        const struct plan_stage *stage = &plan->stages[s];

        divide(plan, gone, stage, credit, n, counts + stage->first_holder);
        for (uint32_t m = 0; m < n; m++) {
            uint32_t before = s ? assign[m * plan->n_stages + s - 1] : MSG_NO_PEER;
            uint32_t i =
                next_holder(plan, stage, counts + stage->first_holder, given + stage->first_holder, n, m, before);

            given[stage->first_holder + i]++;
            assign[m * plan->n_stages + s] = plan->holders[stage->first_holder + i].peer;
        }
    }
    mem_free(counts);
    return 0;
}

/* Turns one microbatch's assignment into leases, neighbouring stages of one peer merged. Returns how many (written if
 * out is not NULL). */
static uint32_t cut_route(const struct plan *plan, const uint32_t *assign, uint32_t m, uint32_t mode,
                          struct route_lease *out)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < plan->n_stages;) {
        uint32_t end = s + 1;

        while (end < plan->n_stages && assign[end] == assign[s])
            end++;
        if (out)
            out[n] = (struct route_lease){.info = {.microbatch = m,
                                                   .mode = mode,
                                                   .u0 = plan->stages[s].u0,
                                                   .u1 = plan->stages[end - 1].u1,
                                                   .prev = s ? assign[s - 1] : MSG_NO_PEER,
                                                   .next = end < plan->n_stages ? assign[end] : MSG_NO_PEER},
                                          .peer = assign[s]};
        n++;
        s = end;
    }
    return n;
}

int routes_build(const struct plan *plan, const bool *gone, struct routes_credit *credit, uint64_t step,
                 uint32_t n_train, uint32_t n_eval, struct routes *ret)
{
    cleanup_mem_ uint32_t *assign = mem_calloc((size_t)(n_train + n_eval) * plan->n_stages, sizeof *assign);
    uint32_t n = 0, n_of_train = 0;
    struct route_lease *leases;

    if (!assign || assign_all(plan, gone, credit, n_train, assign) < 0 ||
        assign_all(plan, gone, credit, n_eval, assign + (size_t)n_train * plan->n_stages) < 0)
        return -E_NOMEM;
    for (uint32_t m = 0; m < n_train + n_eval; m++) {
        n += cut_route(plan, assign + (size_t)m * plan->n_stages, 0, 0, NULL);
        if (m + 1 == n_train)
            n_of_train = n;
    }
    leases = mem_calloc(n ? n : 1, sizeof *leases);
    if (!leases)
        return -E_NOMEM;
    n = 0;
    for (uint32_t m = 0; m < n_train + n_eval; m++) {
        bool train = m < n_train;

        n += cut_route(plan, assign + (size_t)m * plan->n_stages, train ? m : m - n_train,
                       train ? MSG_MODE_TRAIN : MSG_MODE_EVAL, leases + n);
    }
    *ret = (struct routes){.step = step, .n = n, .n_train = n_of_train, .leases = leases};
    return 0;
}

struct route_lease *routes_find(const struct routes *r, uint32_t peer, uint32_t microbatch, uint32_t mode, uint32_t u0)
{
    for (uint32_t i = 0; i < r->n; i++) {
        struct route_lease *l = &r->leases[i];

        if (l->peer == peer && l->info.microbatch == microbatch && l->info.mode == mode && l->info.u0 == u0)
            return l;
    }
    return NULL;
}
