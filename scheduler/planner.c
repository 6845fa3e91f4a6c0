/* See planner.h. A chain is a run of the sorted fleet; spans inside a chain come from a dynamic program that minimises
 * the slowest peer's time per microbatch under each peer's memory. */

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "runtime/base/mem.h"
#include "scheduler/planner_impl.h"

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

/* Spans of one chain: best[j][u] = the least "slowest peer" time when the first j peers hold units [0,u). Infinity
 * where memory forbids. */
static double cut_chain(const struct planner_tables *t, const uint32_t *peers, uint32_t n, uint32_t in_flight,
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
                double own = planner_span_seconds(t, peers[j - 1], v, u);
                double worst = before > own ? before : own;

                if (worst < best[j * (U + 1) + u] &&
                    planner_span_bytes(t, v, u, in_flight) <= t->in->peers[peers[j - 1]].memory_bytes) {
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
static bool candidate_build(const struct planner_tables *t, const uint32_t *order, uint32_t n,
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
                    p.holders[p.n_holders++] =
                        (struct plan_holder){.peer = kept[c->spans[j].peer], .weight = c->share[k]};
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

/* Builds and scores one way to cut; keeps it in *best if it is better. */
static int try_cut(const struct planner_tables *t, const uint32_t *order, uint32_t n,
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
            plan.predicted_seconds = planner_seconds(t, &plan, fleet_of);
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

static void sort_by_speed(const struct planner_tables *t, uint32_t *order)
{
    for (uint32_t i = 0; i < t->in->n_peers; i++) {
        uint32_t at = i;
        double s = planner_span_seconds(t, i, 0, t->in->model->n_units);

        for (; at > 0 && planner_span_seconds(t, order[at - 1], 0, t->in->model->n_units) > s; at--)
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
    struct planner_tables t;
    int status = planner_tables_make(in, &t);

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
    if (status == 0 && best.n_stages > 0) {
        uint32_t fleet_of[PEERS_MAX];

        for (uint32_t i = 0; i < in->n_peers; i++)
            if (kept[i] != UINT32_MAX)
                fleet_of[kept[i]] = i;
        status = planner_add_shadows(&t, fleet_of, &best);
    }
    planner_tables_done(&t);
    if (status < 0) {
        plan_done(&best);
        return status;
    }
    if (best.n_stages == 0)
        return too_big(in, why);
    *ret = best;
    return 0;
}
