/* See planner.h. A chain is a run of the sorted fleet; spans inside a chain come from a dynamic program that minimises
 * the slowest peer's time per microbatch under each peer's memory. */
#include "scheduler/planner.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "model/params.h"
#include "model/unit.h"
#include "runtime/base/mem.h"

/* Bytes a second that an unmeasured link is taken to carry: a gigabit's worth. Only ranks candidates; printed plans
 * call it assumed. */
#define ASSUMED_LINK_BYTES_S 100e6

struct chain_span {
    uint32_t peer, u0, u1; /* fleet peer */
};

struct candidate {
    uint32_t n_chains, n_spans;
    uint32_t *chain_first; /* [n_chains + 1] into spans */
    struct chain_span *spans;
    double *slowest; /* per chain: seconds of its slowest peer for one microbatch */
    uint32_t *share; /* per chain: microbatches of one step */
};

/* What the search looks up again and again. */
struct tables {
    const struct planner_input *in;
    double *seconds;    /* [peer * (U+1) + u]: of units [0,u) */
    uint64_t *in_one;   /* [u0 * (U+1) + u1]: planner_bytes without microbatches in flight, 0 = not asked yet */
    uint64_t *activity; /* [u]: bytes of one microbatch in flight in units [0,u) */
};

uint64_t planner_bytes(const struct planner_input *in, uint32_t u0, uint32_t u1, uint32_t in_flight)
{
    const struct model *m = in->model;
    uint64_t boundary = (uint64_t)model_boundary_elems(m) * sizeof(float), activations = 0, elems = 0, kept;
    cleanup_mem_ bool *held = mem_calloc(m->n_units, sizeof *held);

    if (!held)
        return UINT64_MAX;
    for (uint32_t u = u0; u < u1; u++) {
        held[u] = true;
        activations += unit_saved_bytes(m, u) + boundary;
    }
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        bool any = false;

        for (uint32_t i = 0; i < m->tensors[t].n_uses; i++)
            any = any || held[m->tensors[t].use_unit[i]];
        elems += any ? (uint64_t)m->tensors[t].n : 0;
    }
    /* What a lease sent is kept until the step commits, and a chain may get every microbatch of the step. */
    kept = ((u0 > 0) + (u1 < m->n_units)) * boundary * m->M;
    /* Reduced sums, and a snapshot of values and moments while a checkpoint is fetched. */
    return params_bytes(m, in->reduction, held) + elems * (1 + PARAMS_PARTS) * sizeof(float) + unit_scratch_bytes(m) +
           in_flight * activations + kept;
}

static void tables_done(struct tables *t)
{
    mem_free(t->seconds);
    mem_free(t->in_one);
    mem_free(t->activity);
}

static int tables_make(const struct planner_input *in, struct tables *t)
{
    uint32_t U = in->model->n_units;
    uint64_t boundary = (uint64_t)model_boundary_elems(in->model) * sizeof(float);

    *t = (struct tables){.in = in,
                         .seconds = mem_calloc((size_t)in->n_peers * (U + 1), sizeof(double)),
                         .in_one = mem_calloc((size_t)(U + 1) * (U + 1), sizeof(uint64_t)),
                         .activity = mem_calloc(U + 1, sizeof(uint64_t))};
    if (!t->seconds || !t->in_one || !t->activity) {
        tables_done(t);
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

static double span_seconds(const struct tables *t, uint32_t peer, uint32_t u0, uint32_t u1)
{
    const double *s = &t->seconds[(size_t)peer * (t->in->model->n_units + 1)];

    return s[u1] - s[u0];
}

static uint64_t span_bytes(const struct tables *t, uint32_t u0, uint32_t u1, uint32_t in_flight)
{
    uint64_t *known = &t->in_one[(size_t)u0 * (t->in->model->n_units + 1) + u1];

    if (*known == 0)
        *known = planner_bytes(t->in, u0, u1, 0);
    return *known + in_flight * (t->activity[u1] - t->activity[u0]);
}

/* Spans of one chain: best[j][u] = the least "slowest peer" time when the first j peers hold units [0,u). Infinity
 * where memory forbids. */
static double cut_chain(const struct tables *t, const uint32_t *peers, uint32_t n, uint32_t in_flight,
                        struct chain_span *spans)
{
    uint32_t U = t->in->model->n_units;
    double *best = mem_calloc((size_t)(n + 1) * (U + 1), sizeof *best);
    uint32_t *from = mem_calloc((size_t)(n + 1) * (U + 1), sizeof *from);
    double result = INFINITY;

    if (!best || !from || n > U)
        goto out;
    for (uint32_t i = 0; i < (n + 1) * (U + 1); i++)
        best[i] = INFINITY;
    best[0] = 0;
    for (uint32_t j = 1; j <= n; j++)
        for (uint32_t u = j; u <= U; u++)
            for (uint32_t v = j - 1; v < u; v++) {
                double before = best[(j - 1) * (U + 1) + v];
                double own = span_seconds(t, peers[j - 1], v, u);
                double worst = before > own ? before : own;

                if (worst < best[j * (U + 1) + u] &&
                    span_bytes(t, v, u, in_flight) <= t->in->peers[peers[j - 1]].memory_bytes) {
                    best[j * (U + 1) + u] = worst;
                    from[j * (U + 1) + u] = v;
                }
            }
    result = best[n * (U + 1) + U];
    for (uint32_t j = n, u = U; j > 0 && isfinite(result); j--) {
        uint32_t v = from[j * (U + 1) + u];

        spans[j - 1] = (struct chain_span){peers[j - 1], v, u};
        u = v;
    }
out:
    mem_free(best);
    mem_free(from);
    return result;
}

/* In-flight microbatches of a chain of n peers: enough to fill it, and one more so that a transfer hides behind
 * compute. */
static uint32_t chain_in_flight(uint32_t n)
{
    return n == 1 ? 1 : n + 1;
}

static void candidate_done(struct candidate *c)
{
    mem_free(c->chain_first);
    mem_free(c->spans);
    mem_free(c->slowest);
    mem_free(c->share);
    *c = (struct candidate){0};
}

/* Whole microbatches for each chain so that the last one to finish finishes soonest: one after another to whoever would
 * have it done first, the faster chain among equals. A chain that gets none still holds the model. */
static void divide_step(const struct planner_input *in, struct candidate *c)
{
    for (uint32_t m = 0; m < in->model->M; m++) {
        uint32_t best = 0;

        for (uint32_t k = 1; k < c->n_chains; k++) {
            double now = (c->share[k] + 1) * c->slowest[k], then = (c->share[best] + 1) * c->slowest[best];

            if (now < then * (1 - 1e-3) || (now < then * (1 + 1e-3) && c->slowest[k] < c->slowest[best]))
                best = k;
        }
        c->share[best]++;
    }
}

/* Cuts the sorted fleet into chains: bit i of cuts set = a new chain begins after the i-th peer. false when some chain
 * cannot hold the model. */
static bool candidate_build(const struct tables *t, const uint32_t *order, uint32_t n,
                            uint32_t (*length)(const void *, uint32_t), const void *arg, struct candidate *c)
{
    c->chain_first = mem_calloc(n + 1, sizeof *c->chain_first);
    c->spans = mem_calloc(n, sizeof *c->spans);
    c->slowest = mem_calloc(n, sizeof *c->slowest);
    c->share = mem_calloc(n, sizeof *c->share);
    if (!c->chain_first || !c->spans || !c->slowest || !c->share)
        return false;
    for (uint32_t at = 0; at < n;) {
        uint32_t len = length(arg, at);

        c->slowest[c->n_chains] = cut_chain(t, order + at, len, chain_in_flight(len), c->spans + at);
        if (!isfinite(c->slowest[c->n_chains]))
            return false;
        at += len;
        c->chain_first[++c->n_chains] = at;
    }
    c->n_spans = n;
    divide_step(t->in, c);
    return true;
}

static uint32_t length_by_cuts(const void *arg, uint32_t at)
{
    uint32_t cuts = *(const uint32_t *)arg, len = 1;

    while (!(cuts >> (at + len - 1) & 1))
        len++;
    return len;
}

struct equal_chains {
    uint32_t n, length;
};

static uint32_t length_equal(const void *arg, uint32_t at)
{
    const struct equal_chains *e = arg;
    uint32_t left = e->n - at;

    return left < 2 * e->length ? left : e->length;
}

static int compare_cut(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* All chains' borders together make the stages; every chain's peer is a holder of the stages inside its span. */
static int candidate_plan(const struct planner_input *in, const struct candidate *c, uint32_t n_fleet, struct plan *ret,
                          uint32_t *kept)
{
    cleanup_mem_ uint32_t *cuts = mem_calloc(c->n_spans + 1, sizeof *cuts);
    uint32_t n = 0;
    struct plan p = {.n_units = in->model->n_units, .n_peers = c->n_spans};

    if (!cuts)
        return -E_NOMEM;
    for (uint32_t i = 0; i < n_fleet; i++)
        kept[i] = UINT32_MAX;
    for (uint32_t i = 0; i < c->n_spans; i++) {
        cuts[i] = c->spans[i].u1;
        kept[c->spans[i].peer] = 0;
    }
    for (uint32_t i = 0; i < n_fleet; i++)
        if (kept[i] == 0)
            kept[i] = n++;
    qsort(cuts, c->n_spans, sizeof *cuts, compare_cut);
    p.peers = mem_calloc(c->n_spans, sizeof *p.peers);
    p.stages = mem_calloc(c->n_spans, sizeof *p.stages);
    p.holders = mem_calloc((size_t)c->n_spans * c->n_chains, sizeof *p.holders);
    if (!p.peers || !p.stages || !p.holders) {
        plan_done(&p);
        return -E_NOMEM;
    }
    for (uint32_t i = 0, u = 0; i < c->n_spans; i++) {
        if (cuts[i] == u)
            continue;
        struct plan_stage *s = &p.stages[p.n_stages++];

        *s = (struct plan_stage){u, cuts[i], p.n_holders, 0};
        u = cuts[i];
        for (uint32_t k = 0; k < c->n_chains; k++)
            for (uint32_t j = c->chain_first[k]; j < c->chain_first[k + 1]; j++)
                if (c->spans[j].u0 <= s->u0 && s->u1 <= c->spans[j].u1) {
                    p.holders[p.n_holders++] = (struct plan_holder){kept[c->spans[j].peer], c->share[k]};
                    s->n_holders++;
                }
    }
    for (uint32_t k = 0; k < c->n_chains; k++) {
        uint32_t f = chain_in_flight(c->chain_first[k + 1] - c->chain_first[k]);

        p.in_flight = f > p.in_flight ? f : p.in_flight;
    }
    *ret = p;
    return 0;
}

/* The most elements that any plan peer reduces with others. */
static double most_shared(const struct planner_input *in, const struct plan *plan)
{
    struct plan_groups g = {0};
    double shared[PEERS_MAX] = {0}, most = 0;

    if (plan_groups(plan, in->model, &g) < 0)
        return 0;
    for (uint32_t i = 0; i < g.n; i++)
        for (uint32_t k = 0; k < g.groups[i].n_members && g.groups[i].n_members > 1; k++)
            shared[g.groups[i].members[k]] += (double)g.groups[i].n_elems;
    plan_groups_done(&g);
    for (uint32_t p = 0; p < plan->n_peers; p++)
        most = fmax(most, shared[p]);
    return most;
}

/* The busiest peer's compute, the fill of the longest route, and the longest reduce. fleet_of[i]: plan peer i's place
 * in the fleet. */
static double predict(const struct tables *t, const struct plan *plan, const uint32_t *fleet_of)
{
    double busy[PEERS_MAX] = {0}, busiest = 0, fill = 0;
    double bytes = most_shared(t->in, plan) * (t->in->reduction == JOB_REDUCTION_EXACT ? 12 : 8);

    for (uint32_t s = 0; s < plan->n_stages; s++) {
        const struct plan_stage *st = &plan->stages[s];
        double total = 0, slowest = 0;

        for (uint32_t h = 0; h < st->n_holders; h++)
            total += plan->holders[st->first_holder + h].weight;
        for (uint32_t h = 0; h < st->n_holders; h++) {
            const struct plan_holder *holder = &plan->holders[st->first_holder + h];
            double one = span_seconds(t, fleet_of[holder->peer], st->u0, st->u1);

            busy[holder->peer] += holder->weight / total * t->in->model->M * one;
            slowest = fmax(slowest, one);
        }
        fill += s > 0 ? slowest : 0; /* a microbatch passes the other stages before the last one is busy */
    }
    for (uint32_t p = 0; p < plan->n_peers; p++)
        busiest = fmax(busiest, busy[p]);
    return busiest + fill + bytes / ASSUMED_LINK_BYTES_S;
}

double planner_predict(const struct planner_input *in, const struct plan *plan)
{
    uint32_t fleet_of[PEERS_MAX];
    struct tables t;
    double seconds;

    if (tables_make(in, &t) < 0)
        return 0;
    for (uint32_t i = 0; i < plan->n_peers; i++)
        fleet_of[i] = i;
    seconds = predict(&t, plan, fleet_of);
    tables_done(&t);
    return seconds;
}

/* Builds and scores one way to cut; keeps it in *best if it is better. */
static int try_cut(const struct tables *t, const uint32_t *order, uint32_t n,
                   uint32_t (*length)(const void *, uint32_t), const void *arg, struct plan *best, uint32_t *kept)
{
    struct candidate c = {0};
    struct plan plan = {0};
    uint32_t now_kept[PEERS_MAX], fleet_of[PEERS_MAX];
    int status = 0;

    if (candidate_build(t, order, n, length, arg, &c)) {
        status = candidate_plan(t->in, &c, t->in->n_peers, &plan, now_kept);
        if (status == 0) {
            for (uint32_t i = 0; i < t->in->n_peers; i++)
                if (now_kept[i] != UINT32_MAX)
                    fleet_of[now_kept[i]] = i;
            plan.predicted_seconds = predict(t, &plan, fleet_of);
            if (best->n_stages == 0 || plan.predicted_seconds < best->predicted_seconds * (1 - 1e-9)) {
                plan_done(best);
                *best = plan;
                plan = (struct plan){0};
                for (uint32_t i = 0; i < t->in->n_peers; i++)
                    kept[i] = now_kept[i];
            }
        }
    }
    plan_done(&plan);
    candidate_done(&c);
    return status;
}

static void sort_by_speed(const struct tables *t, uint32_t *order)
{
    for (uint32_t i = 0; i < t->in->n_peers; i++) {
        uint32_t at = i;
        double s = span_seconds(t, i, 0, t->in->model->n_units);

        for (; at > 0 && span_seconds(t, order[at - 1], 0, t->in->model->n_units) > s; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static int too_big(const struct planner_input *in, struct reason *why)
{
    uint64_t most = 0;
    uint64_t need = planner_bytes(in, 0, in->model->n_units, 1);

    for (uint32_t i = 0; i < in->n_peers; i++)
        most += in->peers[i].memory_bytes;
    return reason_set(
        why, -E_TOOBIG,
        "the model does not fit: one holder of all of it needs %.1f MiB, the %u peers together offer %.1f MiB and no "
        "way to "
        "cut it into %u spans fits each; add peers or memory, or make the model or the microbatch smaller",
        (double)need / 1048576, in->n_peers, (double)most / 1048576, in->n_peers);
}

int planner_make(const struct planner_input *in, struct plan *ret, uint32_t *kept, struct reason *why)
{
    uint32_t order[PEERS_MAX];
    struct plan best = {0};
    struct tables t;
    int status = tables_make(in, &t);

    assert(in->n_peers >= 1 && in->n_peers <= PEERS_MAX);
    if (status < 0)
        return status;
    sort_by_speed(&t, order);
    /* The slowest peers may be left out: try the first n of the sorted fleet, most first. */
    for (uint32_t n = in->n_peers; n >= 1 && status == 0; n--) {
        if (n <= PLANNER_EXHAUSTIVE) {
            for (uint32_t cuts = 0; cuts < 1u << (n - 1) && status == 0; cuts++) {
                uint32_t with_end = cuts | 1u << (n - 1);

                status = try_cut(&t, order, n, length_by_cuts, &with_end, &best, kept);
            }
        } else {
            for (uint32_t length = 1; length <= n && length <= in->model->n_units && status == 0; length++)
                status = try_cut(&t, order, n, length_equal, &(struct equal_chains){n, length}, &best, kept);
        }
    }
    tables_done(&t);
    if (status < 0) {
        plan_done(&best);
        return status;
    }
    if (best.n_stages == 0)
        return too_big(in, why);
    *ret = best;
    return 0;
}
