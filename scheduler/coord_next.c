/* The next plan, from its announcement until a commit names it: its peers get links and are told, then it waits for a
 * step's end (design 7). Training goes on under the plan in force all the while. See coord_impl.h.
 *
 * Invariant: a commit names a plan only when each of its peers has acknowledged it, and who joined something that the
 * plan counts on has every sum up to that commit. */
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

#define GIVE_UP_NS  (10 * NS_PER_S)   /* links or answers are missing for so long */
#define WAIT_NS     (200 * NS_PER_MS) /* one commit waits so long at most for who joins... */
#define PATIENCE_NS (3 * NS_PER_S)    /* ...and the next such one comes no sooner than that */

static void clear(struct coord_next *n)
{
    plan_groups_done(&n->groups);
    mem_free(n->peers);
    mem_free(n->link_up);
    mem_free(n->link_failed);
    mem_free(n->ready);
    uint64_t epoch = n->plan.epoch;

    plan_done(&n->plan);
    *n = (struct coord_next){.plan = {.epoch = epoch}};
}

void coord_next_cancel(struct coord *c)
{
    for (uint32_t i = 0; i < c->n_peers; i++)
        c->peers[i]->next_peer = UINT32_MAX;
    if (c->next_plan.phase != NEXT_NONE && c->update)
        coord_replan_due(c);
    clear(&c->next_plan);
}

/* Links that are up under the plan in force are up under the next one. */
static void carry_links(struct coord *c)
{
    struct coord_next *n = &c->next_plan;

    for (uint32_t i = 0; i < n->plan.n_peers; i++)
        for (uint32_t j = 0; j < n->plan.n_peers; j++) {
            uint32_t a = n->peers[i]->plan_peer, b = n->peers[j]->plan_peer;

            if (a != UINT32_MAX && b != UINT32_MAX)
                n->link_up[(size_t)i * n->plan.n_peers + j] = c->link_up[(size_t)a * c->plan.n_peers + b];
        }
}

int coord_next_announce(struct coord *c, struct plan *plan, bool joins, struct reason *why)
{
    struct coord_next *n = &c->next_plan;
    uint64_t epoch = (c->plan.epoch > n->plan.epoch ? c->plan.epoch : n->plan.epoch) + 1;
    uint32_t peers = plan->n_peers;
    int status = plan_validate(plan, c->config.model->n_units, why);

    if (status < 0)
        return status;
    plan->epoch = epoch;
    *n = (struct coord_next){.phase = NEXT_CONNECT, .plan = *plan, .joins = joins, .view = c->view};
    *plan = (struct plan){0};
    n->began_at = c->now_ns;
    n->asked_at = c->now_ns - 2 * COORD_RESEND_NS; /* at once, as soon as the views are acknowledged */
    n->peers = mem_calloc(peers, sizeof *n->peers);
    n->link_up = mem_calloc((size_t)peers * peers, sizeof(bool));
    n->link_failed = mem_calloc((size_t)peers * peers, sizeof(bool));
    n->ready = mem_calloc(peers, sizeof(bool));
    if (!n->peers || !n->link_up || !n->link_failed || !n->ready)
        return -E_NOMEM;
    for (uint32_t i = 0; i < peers; i++) {
        n->peers[i] = coord_find(c, &n->plan.peers[i].key);
        n->peers[i]->next_peer = i;
    }
    carry_links(c);
    status = plan_groups(&n->plan, c->config.model, &n->groups);
    if (status < 0)
        coord_next_cancel(c);
    return status;
}

static void send_plan(struct coord *c, struct coord_peer *p)
{
    struct msg *m = coord_msg(c, MSG_PLAN);

    if (!m)
        return;
    m->plan.next = true;
    if (plan_copy(&c->next_plan.plan, &m->plan.plan) < 0) {
        coord_oom(c);
        msg_free(m);
        return;
    }
    coord_send(c, p, m);
}

/* To all of its peers that have not acknowledged it. */
static void tell(struct coord *c)
{
    struct coord_next *n = &c->next_plan;

    n->asked_at = c->now_ns;
    for (uint32_t i = 0; i < n->plan.n_peers; i++)
        if (!n->ready[i])
            send_plan(c, n->peers[i]);
}

static bool views_acked(const struct coord_next *n)
{
    for (uint32_t i = 0; i < n->plan.n_peers; i++)
        if (n->peers[i]->view_acked < n->view)
            return false;
    return true;
}

static void connect_peers(struct coord *c)
{
    struct coord_next *n = &c->next_plan;
    const struct coord_mesh mesh = {n->plan.n_peers, n->peers, n->link_up, n->link_failed};

    if (!views_acked(n))
        return;
    if (coord_mesh_linked(&mesh)) {
        n->phase = NEXT_TOLD;
        tell(c);
    } else if (c->now_ns - n->asked_at > COORD_RESEND_NS) {
        n->asked_at = c->now_ns;
        coord_order_dials(c, &mesh);
    }
}

/* Who is new and held the plan up is left alone for a while. */
static void give_up(struct coord *c, const char *why)
{
    struct coord_next *n = &c->next_plan;

    for (uint32_t i = 0; i < n->plan.n_peers; i++)
        if (n->peers[i]->plan_peer == UINT32_MAX && !n->ready[i])
            coord_shun(c, n->peers[i], why);
    coord_next_cancel(c);
}

void coord_next_tick(struct coord *c)
{
    struct coord_next *n = &c->next_plan;

    if (n->waiting_since > 0)
        coord_try_finish(c); /* the wait may be over */
    switch (n->phase) {
    case NEXT_NONE:
        coord_replan(c);
        break;
    case NEXT_CONNECT:
        connect_peers(c);
        if (n->phase == NEXT_CONNECT && c->now_ns - n->began_at > GIVE_UP_NS)
            give_up(c, "it has no link to every other peer");
        break;
    case NEXT_TOLD:
        if (c->now_ns - n->began_at > 2 * GIVE_UP_NS)
            give_up(c, "it does not answer");
        else if (c->now_ns - n->asked_at > COORD_RESEND_NS)
            tell(c);
        break;
    case NEXT_READY:
        break;
    }
}

void coord_next_link(struct coord *c, const struct coord_peer *p, const struct msg_link *l)
{
    struct coord_next *n = &c->next_plan;
    int j = n->phase != NEXT_NONE ? plan_find(&n->plan, &l->key) : -E_NOENT;

    if (p->next_peer == UINT32_MAX || j < 0)
        return;
    n->link_up[(size_t)p->next_peer * n->plan.n_peers + (uint32_t)j] = l->up;
    n->link_failed[(size_t)p->next_peer * n->plan.n_peers + (uint32_t)j] = !l->up;
    if (n->phase == NEXT_CONNECT)
        connect_peers(c);
}

void coord_next_ready(struct coord *c, struct coord_peer *p, const struct msg_ready *r)
{
    struct coord_next *n = &c->next_plan;

    if (n->phase != NEXT_TOLD || p->next_peer == UINT32_MAX || r->epoch != n->plan.epoch)
        return;
    n->ready[p->next_peer] = true;
    for (uint32_t i = 0; i < n->plan.n_peers; i++)
        if (!n->ready[i])
            return;
    n->phase = NEXT_READY;
}

/* Whether p, who joins something under the plan in force and has a place in the next one, has all sums up to the
 * present step's. */
static bool has_all_sums(const struct coord *c, const struct coord_peer *p)
{
    if (p->heartbeat.epoch != c->plan.epoch || p->heartbeat.version != c->version)
        return false;
    for (uint32_t g = 0; g < c->groups.n; g++)
        for (uint32_t i = 0; i < c->groups.groups[g].n_members; i++)
            if (c->groups.groups[g].members[i] == p->plan_peer && c->groups.groups[g].joining[i] &&
                !c->group[g].reported[i])
                return false;
    return true;
}

/* Whether the step's commit could name the plan but for who joins; *ret_behind: somebody has not even fetched. */
static bool sums_missing(const struct coord *c, bool *ret_behind)
{
    bool missing = false;

    *ret_behind = false;
    for (uint32_t i = 0; i < c->next_plan.plan.n_peers; i++) {
        const struct coord_peer *p = c->next_plan.peers[i];

        if (!coord_is_joining(c, p) || c->now_ns < p->shunned_until)
            continue;
        *ret_behind = *ret_behind || p->heartbeat.joining != MSG_JOINING_CURRENT;
        missing = missing || *ret_behind || !has_all_sums(c, p);
    }
    return missing;
}

/* Whether this is a step whose commit may name it. Who holds what must not change while holders are asked for the
 * snapshots of a checkpoint. */
static bool may_name(const struct coord *c)
{
    return c->next_plan.phase == NEXT_READY && c->version + 1 < c->config.stop_after &&
           c->saving.phase != SAVING_SNAPSHOT;
}

bool coord_next_due(struct coord *c)
{
    bool behind;

    c->next_plan.waiting_since = 0;
    return may_name(c) && !sums_missing(c, &behind);
}

bool coord_next_wait(struct coord *c)
{
    struct coord_next *n = &c->next_plan;
    bool behind;

    if (!may_name(c) || c->now_ns < n->patience_at || !sums_missing(c, &behind) || behind)
        return false;
    if (n->waiting_since == 0)
        n->waiting_since = c->now_ns;
    if (c->now_ns - n->waiting_since < WAIT_NS)
        return true;
    n->patience_at = c->now_ns + PATIENCE_NS;
    return false;
}

void coord_next_send(struct coord *c)
{
    for (uint32_t i = 0; i < c->next_plan.plan.n_peers; i++)
        if (c->next_plan.peers[i]->plan_peer == UINT32_MAX)
            coord_send_commit(c, c->next_plan.peers[i]);
}

void coord_next_install(struct coord *c)
{
    struct coord_next *n = &c->next_plan;
    bool joins = n->joins;

    if (!joins)
        coord_drop_join_snapshot(c);
    coord_free_step(c);
    routes_credit_done(&c->credit);
    mem_free(c->link_up);
    mem_free(c->link_failed);
    mem_free(c->plan_peers);
    plan_groups_done(&c->groups);
    plan_done(&c->plan);
    c->plan = n->plan;
    c->groups = n->groups;
    c->plan_peers = n->peers;
    c->link_up = n->link_up;
    c->link_failed = n->link_failed;
    c->plan_view = n->view;
    mem_free(n->ready);
    *n = (struct coord_next){.plan = {.epoch = c->plan.epoch}};
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct coord_peer *p = c->peers[i];

        p->plan_peer = p->next_peer;
        p->next_peer = UINT32_MAX;
        p->ready = p->plan_peer != UINT32_MAX;
        p->n_lost = 0;
    }
    if (!coord_alloc_run(c) || routes_credit_init(&c->credit, &c->plan) < 0 ||
        (!joins && c->n_forced > 0 && coord_remember_forced(c) < 0)) {
        coord_oom(c);
        return;
    }
    if (joins)
        c->replan_at = c->now_ns; /* as soon as who joins has joined */
    coord_say_plan(c);
}
