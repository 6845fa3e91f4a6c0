/* See transition.h. */
#include "scheduler/transition.h"

#include <string.h>

#include "runtime/base/bounds.h"
#include "runtime/base/mem.h"

struct making {
    const struct plan *now, *target;
    const bool *alive, *current;
    uint32_t of_now[PEERS_MAX], of_target[PEERS_MAX]; /* peer of the result, UINT32_MAX = none */
    uint32_t n_joining;
};

static bool counts(const struct making *m, const struct plan_holder *h)
{
    return m->alive[h->peer] && (!h->joining || m->current[h->peer]);
}

static uint32_t add_peer(struct plan *p, const struct plan_peer *peer)
{
    p->peers[p->n_peers] = *peer;
    return p->n_peers++;
}

static void map_peers(struct making *m, struct plan *ret)
{
    for (uint32_t i = 0; i < m->now->n_peers; i++)
        m->of_now[i] = UINT32_MAX;
    for (uint32_t h = 0; h < m->now->n_holders; h++) {
        uint32_t *to = &m->of_now[m->now->holders[h].peer];

        if (*to == UINT32_MAX && counts(m, &m->now->holders[h]))
            *to = 0;
    }
    for (uint32_t i = 0; i < m->now->n_peers; i++)
        if (m->of_now[i] == 0)
            m->of_now[i] = add_peer(ret, &m->now->peers[i]);
    for (uint32_t i = 0; m->target && i < m->target->n_peers; i++) {
        int known = plan_find(ret, &m->target->peers[i].key);

        if (known >= 0 && ret->peers[known].incarnation != m->target->peers[i].incarnation)
            known = -1; /* an older life of it: not alive, and not in the result */
        m->of_target[i] = known >= 0 ? (uint32_t)known : add_peer(ret, &m->target->peers[i]);
    }
}

static int add_holder(struct plan *p, struct plan_stage *s, struct plan_holder h)
{
    if (p->n_holders == HOLDERS_MAX)
        return -E_TOOBIG;
    p->holders[p->n_holders++] = h;
    s->n_holders++;
    return 0;
}

static int fill_stage(struct making *m, struct plan *ret, struct plan_stage *s)
{
    const struct plan_stage *a = &m->now->stages[plan_stage_of(m->now, s->u0)], *b;
    uint64_t total = 0;
    int status = 0;

    for (uint32_t i = 0; i < a->n_holders && status == 0; i++) {
        const struct plan_holder *h = &m->now->holders[a->first_holder + i];

        if (!counts(m, h))
            continue;
        status = add_holder(ret, s, (struct plan_holder){.peer = m->of_now[h->peer], .weight = h->weight});
        total += h->weight;
    }
    for (uint32_t i = 0; i < s->n_holders && total == 0; i++)
        ret->holders[s->first_holder + i].weight = 1;
    if (!m->target)
        return status;
    b = &m->target->stages[plan_stage_of(m->target, s->u0)];
    for (uint32_t i = 0; i < b->n_holders && status == 0; i++) {
        uint32_t peer = m->of_target[m->target->holders[b->first_holder + i].peer];
        bool held = false;

        for (uint32_t k = 0; k < s->n_holders; k++)
            held = held || ret->holders[s->first_holder + k].peer == peer;
        if (held)
            continue;
        status = add_holder(ret, s, (struct plan_holder){.peer = peer, .joining = 1});
        m->n_joining++;
    }
    return status;
}

/* Where the stage that begins at unit u ends in both plans. */
static uint32_t stage_end(const struct making *m, uint32_t u)
{
    uint32_t a = m->now->stages[plan_stage_of(m->now, u)].u1;
    uint32_t b = m->target ? m->target->stages[plan_stage_of(m->target, u)].u1 : a;

    return a < b ? a : b;
}

int transition_make(const struct plan *now, const bool *alive, const bool *current, const struct plan *target,
                    struct plan *ret, uint32_t *ret_n_joining)
{
    struct making m = {.now = now, .target = target, .alive = alive, .current = current};
    struct plan p = {.epoch = now->epoch,
                     .n_units = now->n_units,
                     .in_flight = now->in_flight,
                     .predicted_seconds = now->predicted_seconds};
    int status = 0;

    p.peers = mem_calloc(now->n_peers + (target ? target->n_peers : 0), sizeof *p.peers);
    p.stages = mem_calloc(now->n_units, sizeof *p.stages);
    p.holders = mem_calloc(HOLDERS_MAX, sizeof *p.holders);
    if (!p.peers || !p.stages || !p.holders) {
        plan_done(&p);
        return -E_NOMEM;
    }
    map_peers(&m, &p);
    for (uint32_t u = 0; u < now->n_units && status == 0; u = p.stages[p.n_stages - 1].u1) {
        struct plan_stage *s = &p.stages[p.n_stages++];

        *s = (struct plan_stage){.u0 = u, .u1 = stage_end(&m, u), .first_holder = p.n_holders};
        status = fill_stage(&m, &p, s);
    }
    if (status < 0) {
        plan_done(&p);
        return status;
    }
    *ret = p;
    *ret_n_joining = m.n_joining;
    return 0;
}

uint32_t transition_alone(const struct plan *p)
{
    uint32_t alone = 0;

    for (uint32_t s = 0; s < p->n_stages; s++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < p->stages[s].n_holders; i++)
            n += !p->holders[p->stages[s].first_holder + i].joining;
        alone += n <= 1 ? p->stages[s].u1 - p->stages[s].u0 : 0;
    }
    return alone;
}
