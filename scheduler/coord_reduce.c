/* Reducing the gradients: a group's members are told to as soon as every lease that contributes to it is done, and
 * again where their answer is missing; members that report other sums start another attempt (design 5.3). See
 * coord_impl.h. */
#include <inttypes.h>
#include <string.h>

#include "parallel/reduce.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

#define ATTEMPTS_MAX 4 /* at the sums of a group; who then still disagrees will go on to */

/* Whether the peer has a gradient to give to the group in this step. */
static bool contributes(const struct coord *c, const struct plan_group *g, uint32_t peer)
{
    for (uint32_t i = 0; i < c->now.n; i++) {
        const struct route_lease *l = &c->now.leases[i];

        if (l->peer != peer || l->info.mode != MSG_MODE_TRAIN)
            continue;
        for (uint32_t t = 0; t < g->n_tensors; t++) {
            const struct model_tensor *tensor = &c->config.model->tensors[g->tensors[t]];

            for (uint32_t u = 0; u < tensor->n_uses; u++)
                if (tensor->use_unit[u] >= l->info.u0 && tensor->use_unit[u] < l->info.u1)
                    return true;
        }
    }
    return false;
}

/* Who contributes reduces a range; who only receives the sums, a shadow, has an empty one. */
static void share_ranges(uint64_t n_elems, struct msg_reduce *r)
{
    struct msg_reduce_member workers[PEERS_MAX];
    uint32_t n = 0, at = 0;
    uint64_t lo = 0;

    for (uint32_t i = 0; i < r->n_members; i++)
        n += r->members[i].contributes;
    reduce_ranges(n_elems, NULL, n, workers);
    for (uint32_t i = 0; i < r->n_members; i++) {
        r->members[i].lo = r->members[i].hi = lo;
        if (r->members[i].contributes)
            r->members[i].hi = lo = workers[at++].hi;
    }
}

static void send_reduce(struct coord *c, uint32_t group, uint32_t member)
{
    const struct plan_group *g = &c->groups.groups[group];
    struct msg *m = coord_msg(c, MSG_REDUCE);

    if (!m)
        return;
    m->reduce.epoch = c->plan.epoch;
    m->reduce.step = c->version;
    m->reduce.group = group;
    m->reduce.attempt = c->group[group].attempt;
    m->reduce.members = mem_calloc(g->n_members, sizeof *m->reduce.members);
    if (!m->reduce.members) {
        coord_oom(c);
        msg_free(m);
        return;
    }
    for (uint32_t i = 0; i < g->n_members; i++) {
        if (!coord_alive(c, g->members[i]))
            continue;
        m->reduce.members[m->reduce.n_members++] =
            (struct msg_reduce_member){.peer = g->members[i], .contributes = contributes(c, g, g->members[i])};
    }
    share_ranges((uint64_t)g->n_elems, &m->reduce);
    coord_send(c, c->plan_peers[g->members[member]], m);
}

static void start_reduce(struct coord *c, uint32_t group)
{
    const struct plan_group *g = &c->groups.groups[group];
    struct coord_group *s = &c->group[group];

    s->attempt++;
    s->complete = s->restart = false;
    s->n_reports = 0;
    s->asked_at = c->now_ns;
    memset(s->reported, 0, g->n_members * sizeof(bool));
    for (uint32_t i = 0; i < g->n_members; i++)
        if (coord_alive(c, g->members[i]))
            send_reduce(c, group, i);
}

/* Every lease that contributes to the group is done. */
static bool group_ready(const struct coord *c, const struct plan_group *g)
{
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        const struct model_tensor *tensor = &c->config.model->tensors[g->tensors[t]];

        for (uint32_t u = 0; u < tensor->n_uses; u++)
            if (c->unit_done[tensor->use_unit[u]] < c->config.model->M)
                return false;
    }
    return true;
}

void coord_on_reduced(struct coord *c, struct coord_peer *p, const struct msg_reduced *r)
{
    if (c->phase != COORD_RUN || r->epoch != c->plan.epoch || r->step != c->version || r->group >= c->groups.n)
        return;
    const struct plan_group *g = &c->groups.groups[r->group];
    struct coord_group *s = &c->group[r->group];
    uint32_t member = 0;

    while (member < g->n_members && g->members[member] != p->plan_peer)
        member++;
    if (member == g->n_members || r->attempt != s->attempt || s->attempt == 0 || s->restart || s->reported[member] ||
        r->n_tensors != g->n_tensors)
        return;
    if (g->joining[member]) { /* all sums are there: of interest to who wants to name the next plan */
        s->reported[member] = true;
        coord_try_finish(c);
        return;
    }
    if (s->n_reports == 0) {
        memcpy(s->hash, r->hash, HASH_BYTES);
        memcpy(s->sum_squares, r->sum_squares, g->n_tensors * sizeof(double));
    } else if (memcmp(s->hash, r->hash, HASH_BYTES) != 0 ||
               memcmp(s->sum_squares, r->sum_squares, g->n_tensors * sizeof(double)) != 0) {
        char id[KEY_SHORT_LEN + 1];

        key_short(&p->join.key, id);
        if (s->attempt >= ATTEMPTS_MAX) {
            struct reason why = {0};

            coord_end(c,
                      reason_set(&why, -E_CORRUPT,
                                 "the peers do not agree on the sums of group %u of step %" PRIu64
                                 ", after %u attempts: peer %s (%s) has others than those before it",
                                 r->group, c->version, s->attempt, id, p->join.name),
                      &why);
            return;
        }
        coord_warn(
            c, "peer %s (%s) has other sums for group %u of step %" PRIu64 " than the peers before it: reducing again",
            id, p->join.name, r->group, c->version);
        start_reduce(c, r->group);
        return;
    }
    s->reported[member] = true;
    coord_progress(c);
    s->n_reports++;
    s->complete = true;
    for (uint32_t i = 0; i < g->n_members; i++)
        s->complete = s->complete && (s->reported[i] || g->joining[i] || !coord_alive(c, g->members[i]));
    coord_try_finish(c);
}

void coord_start_reduces(struct coord *c)
{
    for (uint32_t g = 0; g < c->groups.n && !c->flagged; g++)
        if ((c->group[g].attempt == 0 || c->group[g].restart) && group_ready(c, &c->groups.groups[g]))
            start_reduce(c, g);
}

void coord_resend_reduces(struct coord *c)
{
    for (uint32_t g = 0; g < c->groups.n; g++) {
        struct coord_group *s = &c->group[g];

        if (s->attempt == 0 || s->complete || s->restart || c->now_ns - s->asked_at < COORD_RESEND_NS)
            continue;
        s->asked_at = c->now_ns;
        for (uint32_t i = 0; i < c->groups.groups[g].n_members; i++)
            if (!s->reported[i] && coord_alive(c, c->groups.groups[g].members[i]))
                send_reduce(c, g, i);
    }
}
