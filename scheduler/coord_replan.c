/* Whether another plan is better than the one in force, when something changed: a peer came, came back, or is gone
 * (design 7). What a new plan gives to peers that lack it they join first, under a plan that differs in that alone. See
 * coord_impl.h. */
#include <inttypes.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"
#include "scheduler/planner.h"
#include "scheduler/transition.h"

#define SETTLE_NS  (500 * NS_PER_MS)      /* so long after the last change: peers come in groups */
#define GAIN       0.05                   /* a new plan must be faster by this much, or... */
#define STRETCH    PLANNER_SHADOW_STRETCH /* ...leave fewer units with one holder, and be slower by this at most */
#define LOST_MAX   5                      /* who begins joining anew more often than that is too slow for it... */
#define SHUNNED_NS (60 * NS_PER_S)        /* ...and left alone for so long */
#define STEPS_LEFT 3                      /* a transition takes two commits at least */

void coord_replan_due(struct coord *c)
{
    c->replan_at = c->now_ns + SETTLE_NS;
}

void coord_shun(struct coord *c, struct coord_peer *p, const char *why)
{
    char id[KEY_SHORT_LEN + 1];

    key_short(&p->join.key, id);
    coord_warn(c, "peer %s (%s) stands by: %s", id, p->join.name, why);
    p->shunned_until = c->now_ns + SHUNNED_NS;
    p->n_lost = 0;
}

int coord_remember_forced(struct coord *c)
{
    c->forced = mem_free(c->forced);
    c->n_forced = 0;
    if (!c->config.plan_text || c->regather_until > 0)
        return 0;
    c->forced = mem_dup(c->plan_peers, c->plan.n_peers * sizeof *c->forced);
    c->n_forced = c->plan.n_peers;
    return c->forced ? 0 : -E_NOMEM;
}

void coord_drop_join_snapshot(struct coord *c)
{
    uint64_t version = c->join_version;
    bool saved = c->saving.phase != SAVING_NONE && c->saving.what.version == version;

    c->join_version = 0;
    c->join_snapshot_due = false;
    for (uint32_t i = 0; version > 0 && !saved && c->update && i < c->plan.n_peers; i++)
        if (coord_alive(c, i))
            coord_send_snapshot(c, c->plan_peers[i], version, true);
}

void coord_take_join_snapshot(struct coord *c, uint64_t version)
{
    coord_drop_join_snapshot(c);
    c->join_version = version;
}

bool coord_is_joining(const struct coord *c, const struct coord_peer *p)
{
    for (uint32_t h = 0; p->plan_peer != UINT32_MAX && h < c->plan.n_holders; h++)
        if (c->plan.holders[h].peer == p->plan_peer && c->plan.holders[h].joining)
            return true;
    return false;
}

/* Who lost what it had joined waits for another snapshot; who loses it again and again cannot keep up. */
void coord_on_joining(struct coord *c, struct coord_peer *p)
{
    if (c->phase != COORD_RUN || p->heartbeat.joining != MSG_JOINING_LOST || p->heartbeat.epoch != c->plan.epoch ||
        p->heartbeat.version < c->join_version || c->join_snapshot_due || !coord_is_joining(c, p) ||
        c->now_ns < p->shunned_until)
        return;
    if (++p->n_lost > LOST_MAX) {
        coord_shun(c, p, "it cannot keep up with the steps that go on while it fetches the model's state");
        coord_replan_due(c);
        return;
    }
    c->join_snapshot_due = true;
}

static bool has_joined(const struct coord *c, const struct coord_peer *p)
{
    return p->heartbeat.epoch == c->plan.epoch && p->heartbeat.joining == MSG_JOINING_CURRENT;
}

/* Whether somebody is still at it. */
static bool still_joining(const struct coord *c)
{
    for (uint32_t i = 0; i < c->plan.n_peers; i++) {
        const struct coord_peer *p = c->plan_peers[i];

        if (p->admitted && c->now_ns >= p->shunned_until && coord_is_joining(c, p) && !has_joined(c, p))
            return true;
    }
    return false;
}

static struct planner_peer profile_of(const struct coord_peer *p)
{
    return (struct planner_peer){p->forward_s, p->backward_s, p->memory_bytes};
}

/* What the planner makes of the fleet; peers' keys filled in. */
static int plan_freely(struct coord *c, struct plan *ret, struct reason *why)
{
    struct coord_peer *fleet[PEERS_MAX];
    struct planner_peer peers[PEERS_MAX];
    uint32_t kept[PEERS_MAX];
    struct planner_input in = {.model = c->config.model, .reduction = c->config.job->reduction, .peers = peers};
    int status;

    in.n_peers = coord_fleet(c, fleet);
    if (in.n_peers == 0)
        return -E_NOENT;
    for (uint32_t i = 0; i < in.n_peers; i++)
        peers[i] = profile_of(fleet[i]);
    status = planner_make(&in, ret, kept, why);
    for (uint32_t i = 0; status == 0 && i < in.n_peers; i++)
        if (kept[i] != UINT32_MAX)
            ret->peers[kept[i]] = (struct plan_peer){fleet[i]->join.key, fleet[i]->join.incarnation};
    return status;
}

/* A peer that stands by and may take the place of a lost one: a new life of it, if there is one. */
static struct coord_peer *substitute(struct coord *c, const struct coord_peer *lost, struct coord_peer **taken,
                                     uint32_t n_taken)
{
    struct coord_peer *fleet[PEERS_MAX], *best = NULL;
    uint32_t n = coord_fleet(c, fleet);

    for (uint32_t i = 0; i < n; i++) {
        bool busy = false;

        for (uint32_t k = 0; k < c->n_forced; k++)
            busy = busy || c->forced[k] == fleet[i] || (k < n_taken && taken[k] == fleet[i]);
        if (!busy && (!best || key_equal(&fleet[i]->join.key, &lost->join.key)))
            best = fleet[i];
    }
    return best;
}

/* Predicted seconds of a plan over peers that have been in the view. */
static double predict(const struct coord *c, const struct plan *plan)
{
    struct planner_peer peers[PEERS_MAX];
    struct planner_input in = {
        .model = c->config.model, .reduction = c->config.job->reduction, .n_peers = plan->n_peers, .peers = peers};

    for (uint32_t i = 0; i < plan->n_peers; i++)
        peers[i] = profile_of(coord_find(c, &plan->peers[i].key));
    return planner_predict(&in, plan);
}

/* The forced plan with others in the place of who is lost. -E_NOENT: nobody is lost, or nobody can take the place. */
static int plan_as_told(struct coord *c, struct plan *ret, struct reason *why)
{
    struct coord_peer *with[PEERS_MAX];
    bool changed = false;

    for (uint32_t h = 0; h < c->plan.n_holders; h++)
        changed = changed || c->plan.holders[h].joining;
    for (uint32_t i = 0; i < c->n_forced; i++) {
        with[i] = c->forced[i]->admitted ? c->forced[i] : substitute(c, c->forced[i], with, i);
        if (!with[i])
            return -E_NOENT;
        changed = changed || with[i] != c->forced[i];
    }
    if (!changed)
        return -E_NOENT;
    int status = plan_parse(c->config.plan_text, c->config.model->n_units, ret, why);

    for (uint32_t i = 0; status == 0 && i < c->n_forced; i++)
        ret->peers[i] = (struct plan_peer){with[i]->join.key, with[i]->join.incarnation};
    if (status == 0)
        ret->predicted_seconds = predict(c, ret);
    return status;
}

static bool is_better(const struct coord *c, const struct plan *present, const struct plan *target)
{
    double now, then = target->predicted_seconds;

    if (c->n_forced > 0)
        return true;
    now = predict(c, present);
    return then < now * (1 - GAIN) ||
           (transition_alone(target) < transition_alone(present) && then <= now * (1 + STRETCH));
}

/* Announces what comes next on the way to the target: the target, or that who lacks something joins first. */
static int go_for(struct coord *c, const bool *alive, const bool *current, struct plan *target, struct reason *why)
{
    struct plan with = {0};
    uint32_t n_joining = 0;
    int status = transition_make(&c->plan, alive, current, target, &with, &n_joining);

    if (status == 0)
        status = coord_next_announce(c, n_joining > 0 ? &with : target, n_joining > 0, why);
    plan_done(&with);
    return status;
}

/* Who came and got no place is told of, once. */
static void say_standing_by(struct coord *c)
{
    struct coord_peer *fleet[PEERS_MAX];
    uint32_t n = coord_fleet(c, fleet);
    char id[KEY_SHORT_LEN + 1];

    for (uint32_t i = 0; i < n; i++) {
        if (fleet[i]->plan_peer != UINT32_MAX || fleet[i]->told_of)
            continue;
        fleet[i]->told_of = true;
        key_short(&fleet[i]->join.key, id);
        coord_warn(c, "peer %s (%s) stands by: %s", id, fleet[i]->join.name,
                   c->n_forced > 0 ? "the plan file has no place for it; it takes the first one that gets free"
                                   : "no plan with it is faster or safer; it takes part when one is");
    }
}

static void consider(struct coord *c)
{
    bool alive[PEERS_MAX] = {0}, current[PEERS_MAX] = {0}, hopeless = false;
    struct plan present = {0}, target = {0};
    struct reason why = {0};
    uint32_t none;
    int status;

    for (uint32_t i = 0; i < c->plan.n_peers; i++) {
        const struct coord_peer *p = c->plan_peers[i];

        alive[i] = p->admitted;
        current[i] = has_joined(c, p);
        hopeless = hopeless || (alive[i] && coord_is_joining(c, p) && !current[i]);
    }
    coord_drop_join_snapshot(c); /* who could has fetched it */
    status = transition_make(&c->plan, alive, current, NULL, &present, &none);
    if (status == 0)
        status = c->n_forced > 0 ? plan_as_told(c, &target, &why) : plan_freely(c, &target, &why);
    if (status == 0 && is_better(c, &present, &target))
        status = go_for(c, alive, current, &target, &why);
    else if (hopeless) /* who cannot keep up gets nothing more to fetch */
        status = coord_next_announce(c, &present, false, &why);
    if (c->next_plan.phase == NEXT_NONE)
        say_standing_by(c);
    if (status == -E_NOMEM)
        coord_oom(c);
    else if (status < 0 && status != -E_NOENT && status != -E_TOOBIG)
        coord_warn(c, "no new plan: %s", reason_text(&why, status));
    plan_done(&present);
    plan_done(&target);
}

void coord_replan(struct coord *c)
{
    if (c->replan_at == 0 || c->now_ns < c->replan_at || c->version + STEPS_LEFT > c->config.stop_after ||
        still_joining(c) || !coord_covered(c, NULL))
        return;
    c->replan_at = 0;
    consider(c);
}
