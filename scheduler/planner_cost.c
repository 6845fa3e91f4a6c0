/* What a plan costs by the first scheduler's measure: bytes at a holder, seconds of a step. See planner.h and
 * planner_impl.h. */
#include <math.h>

#include "model/params.h"
#include "model/unit.h"
#include "runtime/base/mem.h"
#include "runtime/base/text.h"
#include "scheduler/planner_impl.h"

/* Bytes a second that an unmeasured link is taken to carry: about a gigabit's worth. */
#define ASSUMED_LINK_BYTES_S 100e6

uint64_t planner_held_bytes(const struct planner_input *in, const bool *held, uint32_t in_flight)
{
    const struct model *m = in->model;
    uint64_t boundary = (uint64_t)model_boundary_elems(m) * sizeof(float), activations = 0, elems = 0, ends = 0;

    for (uint32_t u = 0; u < m->n_units; u++) {
        activations += held[u] ? unit_saved_bytes(m, u) + boundary : 0;
        ends += u > 0 && held[u] != held[u - 1];
    }
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        bool any = false;

        for (uint32_t i = 0; i < m->tensors[t].n_uses; i++)
            any = any || held[m->tensors[t].use_unit[i]];
        elems += any ? (uint64_t)m->tensors[t].n : 0;
    }
    /* Reduced sums, and a snapshot of values and moments while a checkpoint is fetched; what a lease sent is kept until
     * the step commits, and a holder may get every microbatch of the step. */
    return params_bytes(m, in->reduction, held) + elems * (1 + PARAMS_PARTS) * sizeof(float) + unit_scratch_bytes(m) +
           in_flight * activations + ends * boundary * m->M;
}

int planner_check_memory(const struct planner_input *in, const struct plan *plan, const char *const *names,
                         struct reason *why)
{
    cleanup_mem_ bool *held = mem_calloc(plan->n_units, sizeof *held);

    if (!held)
        return -E_NOMEM;
    for (uint32_t p = 0; p < plan->n_peers; p++) {
        char need[TEXT_SIZE_MAX], offer[TEXT_SIZE_MAX];
        uint64_t bytes;

        plan_held(plan, p, held);
        bytes = planner_held_bytes(in, held, plan->in_flight);
        if (bytes <= in->peers[p].memory_bytes)
            continue;
        text_size(bytes, need);
        text_size(in->peers[p].memory_bytes, offer);
        return reason_set(why, -E_FIT,
                          "the plan file gives peer %u (%s) units that need %s, and it offers %s; give it fewer units, "
                          "or more memory (--memory)",
                          p, names[p], need, offer);
    }
    return 0;
}

uint64_t planner_bytes(const struct planner_input *in, uint32_t u0, uint32_t u1, uint32_t in_flight)
{
    cleanup_mem_ bool *held = mem_calloc(in->model->n_units, sizeof *held);

    if (!held)
        return UINT64_MAX;
    for (uint32_t u = u0; u < u1; u++)
        held[u] = true;
    return planner_held_bytes(in, held, in_flight);
}

void planner_tables_done(struct planner_tables *t)
{
    mem_free(t->seconds);
    mem_free(t->in_one);
    mem_free(t->activity);
}

int planner_tables_make(const struct planner_input *in, struct planner_tables *t)
{
    uint32_t U = in->model->n_units;
    uint64_t boundary = (uint64_t)model_boundary_elems(in->model) * sizeof(float);

    *t = (struct planner_tables){.in = in,
                                 .seconds = mem_calloc((size_t)in->n_peers * (U + 1), sizeof(double)),
                                 .in_one = mem_calloc((size_t)(U + 1) * (U + 1), sizeof(uint64_t)),
                                 .activity = mem_calloc(U + 1, sizeof(uint64_t))};
    if (!t->seconds || !t->in_one || !t->activity) {
        planner_tables_done(t);
        return -E_NOMEM;
    }
    for (uint32_t u = 0; u < U; u++) {
        t->activity[u + 1] = t->activity[u] + unit_saved_bytes(in->model, u) + boundary;
        for (uint32_t p = 0; p < in->n_peers; p++)
            t->seconds[p * (U + 1) + u + 1] =
                t->seconds[p * (U + 1) + u] + in->peers[p].forward_s[u] + in->peers[p].backward_s[u];
    }
    return 0;
}

double planner_span_seconds(const struct planner_tables *t, uint32_t peer, uint32_t u0, uint32_t u1)
{
    const double *s = &t->seconds[(size_t)peer * (t->in->model->n_units + 1)];

    return s[u1] - s[u0];
}

uint64_t planner_span_bytes(const struct planner_tables *t, uint32_t u0, uint32_t u1, uint32_t in_flight)
{
    uint64_t *known = &t->in_one[(size_t)u0 * (t->in->model->n_units + 1) + u1];

    if (*known == 0)
        *known = planner_bytes(t->in, u0, u1, 0);
    return *known + in_flight * (t->activity[u1] - t->activity[u0]);
}

/* Whether the peer has a share in one of the units whose tensors are in the group. */
static bool works(const struct model *m, const struct plan *plan, const struct plan_group *g, uint32_t peer)
{
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct model_tensor *t = &m->tensors[g->tensors[i]];

        for (uint32_t u = 0; u < t->n_uses; u++) {
            const struct plan_stage *st = &plan->stages[plan_stage_of(plan, t->use_unit[u])];

            for (uint32_t h = 0; h < st->n_holders; h++)
                if (plan->holders[st->first_holder + h].peer == peer && plan->holders[st->first_holder + h].weight > 0)
                    return true;
        }
    }
    return false;
}

/* The most bytes that any plan peer sends or receives to reduce: a partial sum (8 bytes an element in exact, 4 in fast)
 * to each range's owner and the fp32 sums back; a group with one contributor only hands its sums to the shadows. */
static double most_reduced(const struct planner_input *in, const struct plan *plan)
{
    struct plan_groups g = {0};
    double bytes[PEERS_MAX] = {0}, most = 0;
    double partial = in->reduction == JOB_REDUCTION_EXACT ? 8 : 4;

    if (plan_groups(plan, in->model, &g) < 0)
        return 0;
    for (uint32_t i = 0; i < g.n; i++) {
        const struct plan_group *group = &g.groups[i];
        double n = (double)group->n_elems, c = 0, r = group->n_members;

        for (uint32_t k = 0; k < group->n_members; k++)
            c += works(in->model, plan, group, group->members[k]);
        for (uint32_t k = 0; k < group->n_members; k++)
            bytes[group->members[k]] += works(in->model, plan, group, group->members[k])
                                            ? (partial + 4) * n * (c - 1) / c + 4 * n / c * (r - c)
                                            : 4 * n;
    }
    plan_groups_done(&g);
    for (uint32_t p = 0; p < plan->n_peers; p++)
        most = fmax(most, bytes[p]);
    return most;
}

/* The busiest peer's compute, the fill of the longest route, and the longest reduce. fleet_of[i]: plan peer i's place
 * in the fleet. */
double planner_seconds(const struct planner_tables *t, const struct plan *plan, const uint32_t *fleet_of)
{
    double busy[PEERS_MAX] = {0}, busiest = 0, fill = 0;

    for (uint32_t s = 0; s < plan->n_stages; s++) {
        const struct plan_stage *st = &plan->stages[s];
        double total = 0, slowest = 0;

        for (uint32_t h = 0; h < st->n_holders; h++)
            total += plan->holders[st->first_holder + h].weight;
        for (uint32_t h = 0; h < st->n_holders; h++) {
            const struct plan_holder *holder = &plan->holders[st->first_holder + h];
            double one = planner_span_seconds(t, fleet_of[holder->peer], st->u0, st->u1);

            busy[holder->peer] += holder->weight / total * t->in->model->M * one;
            slowest = fmax(slowest, one);
        }
        fill += s > 0 ? slowest : 0; /* a microbatch passes the other stages before the last one is busy */
    }
    for (uint32_t p = 0; p < plan->n_peers; p++)
        busiest = fmax(busiest, busy[p]);
    return busiest + fill + most_reduced(t->in, plan) / ASSUMED_LINK_BYTES_S;
}

double planner_predict(const struct planner_input *in, const struct plan *plan)
{
    uint32_t fleet_of[PEERS_MAX];
    struct planner_tables t;
    double seconds;

    if (planner_tables_make(in, &t) < 0)
        return 0;
    for (uint32_t i = 0; i < plan->n_peers; i++)
        fleet_of[i] = i;
    seconds = planner_seconds(&t, plan, fleet_of);
    planner_tables_done(&t);
    return seconds;
}
