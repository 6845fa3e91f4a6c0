/* Second holders: a unit that one peer holds alone would be lost with it, so another one keeps its state up to date as
 * a shadow, with no share of the work, where memory and the predicted step allow (design 7). See planner_impl.h. */
#include <string.h>

#include "runtime/base/mem.h"
#include "scheduler/planner_impl.h"

/* Seconds of a step that the plan gives to each plan peer. */
static void load(const struct planner_tables *t, const struct plan *plan, const uint32_t *fleet_of, double *ret)
{
    for (uint32_t p = 0; p < plan->n_peers; p++)
        ret[p] = 0;
    for (uint32_t s = 0; s < plan->n_stages; s++) {
        const struct plan_stage *st = &plan->stages[s];

        for (uint32_t h = 0; h < st->n_holders; h++) {
            const struct plan_holder *holder = &plan->holders[st->first_holder + h];

            ret[holder->peer] += holder->weight * planner_span_seconds(t, fleet_of[holder->peer], st->u0, st->u1);
        }
    }
}

/* Whether plan peer p has memory for the units of stage s beside what it holds. */
static bool has_room(const struct planner_tables *t, const struct plan *plan, const uint32_t *fleet_of, uint32_t p,
                     uint32_t s)
{
    cleanup_mem_ bool *held = mem_calloc(plan->n_units, sizeof *held);

    if (!held)
        return false;
    plan_held(plan, p, held);
    for (uint32_t u = plan->stages[s].u0; u < plan->stages[s].u1; u++)
        held[u] = true;
    return planner_held_bytes(t->in, held, plan->in_flight) <= t->in->peers[fleet_of[p]].memory_bytes;
}

/* The least busy peer with room for stage s that does not hold it, UINT32_MAX if there is none. */
static uint32_t pick_shadow(const struct planner_tables *t, const struct plan *plan, const uint32_t *fleet_of,
                            uint32_t s)
{
    double busy[PEERS_MAX];
    uint32_t best = UINT32_MAX;

    load(t, plan, fleet_of, busy);
    for (uint32_t p = 0; p < plan->n_peers; p++)
        if (p != plan->holders[plan->stages[s].first_holder].peer && (best == UINT32_MAX || busy[p] < busy[best]) &&
            has_room(t, plan, fleet_of, p, s))
            best = p;
    return best;
}

static int add_holder(struct plan *plan, uint32_t s, uint32_t peer)
{
    struct plan_holder *grown = mem_resize(plan->holders, plan->n_holders, plan->n_holders + 1, sizeof *grown);
    uint32_t at = plan->stages[s].first_holder + plan->stages[s].n_holders;

    if (!grown)
        return -E_NOMEM;
    memmove(&grown[at + 1], &grown[at], (plan->n_holders - at) * sizeof *grown);
    grown[at] = (struct plan_holder){.peer = peer};
    plan->holders = grown;
    plan->n_holders++;
    plan->stages[s].n_holders++;
    for (uint32_t k = s + 1; k < plan->n_stages; k++)
        plan->stages[k].first_holder++;
    return 0;
}

int planner_add_shadows(const struct planner_tables *t, const uint32_t *fleet_of, struct plan *plan)
{
    double alone = plan->predicted_seconds;

    for (uint32_t s = 0; s < plan->n_stages; s++) {
        struct plan with = {0};
        uint32_t shadow = plan->stages[s].n_holders == 1 ? pick_shadow(t, plan, fleet_of, s) : UINT32_MAX;
        int status;

        if (shadow == UINT32_MAX)
            continue;
        status = plan_copy(plan, &with);
        if (status == 0)
            status = add_holder(&with, s, shadow);
        if (status < 0) {
            plan_done(&with);
            return status;
        }
        with.predicted_seconds = planner_seconds(t, &with, fleet_of);
        if (with.predicted_seconds <= alone * (1 + PLANNER_SHADOW_STRETCH)) {
            plan_done(plan);
            *plan = with;
        } else {
            plan_done(&with);
        }
    }
    return 0;
}
