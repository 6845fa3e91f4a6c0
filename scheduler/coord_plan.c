/* From measured peers to a plan in force: planning, connecting the holders, setting up their state. See coord_impl.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"
#include "scheduler/planner.h"

#define PARTED_LIMIT_NS  (30 * NS_PER_S)
#define CONNECT_LIMIT_NS (30 * NS_PER_S) /* the same before the first step */
#define TOO_FEW_SAID_NS  (10 * NS_PER_S)

void coord_forget_plan(struct coord *c)
{
    coord_next_cancel(c);
    coord_drop_join_snapshot(c);
    c->replan_at = 0;
    coord_abort_saving(c);
    coord_free_step(c);
    routes_credit_done(&c->credit);
    c->link_up = mem_free(c->link_up);
    c->link_failed = mem_free(c->link_failed);
    c->plan_peers = mem_free(c->plan_peers);
    plan_groups_done(&c->groups);
    uint64_t epoch = c->plan.epoch;

    plan_done(&c->plan);
    c->plan.epoch = epoch; /* epochs never repeat within a term */
    for (uint32_t i = 0; i < c->n_peers; i++) {
        c->peers[i]->plan_peer = UINT32_MAX;
        c->peers[i]->ready = false;
    }
}

bool coord_covered(const struct coord *c, uint32_t *ret_unit)
{
    for (uint32_t s = 0; s < c->plan.n_stages; s++) {
        const struct plan_stage *st = &c->plan.stages[s];
        bool held = false;

        for (uint32_t h = 0; h < st->n_holders; h++)
            held = held || (!c->plan.holders[st->first_holder + h].joining &&
                            c->plan_peers[c->plan.holders[st->first_holder + h].peer]->admitted);
        if (!held) {
            if (ret_unit)
                *ret_unit = st->u0;
            return false;
        }
    }
    return c->plan.n_stages > 0;
}

bool coord_can_spare(struct coord *c, struct coord_peer *p)
{
    bool admitted = p->admitted, can;

    p->admitted = false;
    can = c->phase == COORD_RUN && coord_covered(c, NULL);
    p->admitted = admitted;
    return can;
}

/* The scheduler's plan over the measured peers, or the forced one over the first to join. fleet[i] is who planner peer
 * i is; kept[i] its plan peer. */
static int make_plan(struct coord *c, struct coord_peer **fleet, uint32_t n, uint32_t *kept, struct plan *ret,
                     struct reason *why)
{
    struct planner_peer peers[PEERS_MAX];
    struct planner_input in = {
        .model = c->config.model, .reduction = c->config.job->reduction, .n_peers = n, .peers = peers};
    int status;

    for (uint32_t i = 0; i < n; i++)
        peers[i] = (struct planner_peer){fleet[i]->forward_s, fleet[i]->backward_s, fleet[i]->memory_bytes};
    if (!c->config.plan_text)
        return planner_make(&in, ret, kept, why);
    status = plan_parse(c->config.plan_text, c->config.model->n_units, ret, why);
    if (status < 0)
        return status;
    if (ret->n_peers > n && c->regather_until > 0) { /* the forced plan's fleet is no more */
        plan_done(ret);
        return planner_make(&in, ret, kept, why);
    }
    if (ret->n_peers > n) {
        status = reason_set(why, -E_CONFIG, "the plan file speaks of %u peers, there are %u", ret->n_peers, n);
        plan_done(ret);
        return status;
    }
    for (uint32_t i = 0; i < n; i++)
        kept[i] = i < ret->n_peers ? i : UINT32_MAX;
    in.n_peers = ret->n_peers;
    ret->predicted_seconds = planner_predict(&in, ret);
    return 0;
}

void coord_say_plan(struct coord *c)
{
    const char *names[PEERS_MAX];
    char ids[PEERS_MAX][KEY_SHORT_LEN + 1];
    char *text = NULL;

    for (uint32_t i = 0; i < c->plan.n_peers; i++) {
        key_short(&c->plan.peers[i].key, ids[i]);
        names[i] = ids[i];
    }
    if (plan_print(&c->plan, names, &text) < 0)
        return;
    coord_note(c, &(struct note){.kind = NOTE_PLAN,
                                 .epoch = c->plan.epoch,
                                 .n_peers = c->plan.n_peers,
                                 .seconds = c->plan.predicted_seconds,
                                 .text = text});
    mem_free(text);
}

static int adopt_plan(struct coord *c, struct coord_peer **fleet, uint32_t n, const uint32_t *kept, struct plan *plan,
                      struct reason *why)
{
    uint64_t used = c->next_plan.plan.epoch, epoch = (c->plan.epoch > used ? c->plan.epoch : used) + 1;

    for (uint32_t i = 0; i < n; i++)
        if (kept[i] != UINT32_MAX)
            plan->peers[kept[i]] = (struct plan_peer){fleet[i]->join.key, fleet[i]->join.incarnation};
    plan->epoch = epoch;
    int status = plan_validate(plan, c->config.model->n_units, why);

    if (status < 0)
        return status;
    c->plan = *plan;
    *plan = (struct plan){0};
    c->plan_peers = mem_calloc(c->plan.n_peers, sizeof(struct coord_peer *));
    c->link_up = mem_calloc((size_t)c->plan.n_peers * c->plan.n_peers, sizeof(bool));
    c->link_failed = mem_calloc((size_t)c->plan.n_peers * c->plan.n_peers, sizeof(bool));
    c->plan_view = c->view;
    if (!c->plan_peers || !c->link_up || !c->link_failed || plan_groups(&c->plan, c->config.model, &c->groups) < 0 ||
        routes_credit_init(&c->credit, &c->plan) < 0)
        return -E_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (kept[i] != UINT32_MAX) {
            fleet[i]->plan_peer = kept[i];
            c->plan_peers[kept[i]] = fleet[i];
        }
    return coord_remember_forced(c);
}

static uint32_t rank(const struct coord *c, const struct coord_peer *p)
{
    for (uint32_t i = 0; i < c->config.n_order; i++)
        if (key_equal(&c->config.order[i], &p->join.key))
            return i;
    return c->config.n_order;
}

/* The peers whose order the configuration gives come first, in that order; the others stay as they joined. */
static void sort_fleet(const struct coord *c, struct coord_peer **fleet, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        struct coord_peer *p = fleet[i];
        uint32_t j = i;

        for (; j > 0 && rank(c, fleet[j - 1]) > rank(c, p); j--)
            fleet[j] = fleet[j - 1];
        fleet[j] = p;
    }
}

uint32_t coord_fleet(struct coord *c, struct coord_peer **ret)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_peers && n < PEERS_MAX; i++) {
        struct coord_peer *p = c->peers[i];

        if (p->admitted && p->profiled && p->linked && !p->leaving && c->now_ns >= p->shunned_until)
            ret[n++] = p;
    }
    sort_fleet(c, ret, n);
    return n;
}

/* After a rollback a fleet that is too small waits for more peers. */
static void say_too_few(struct coord *c, const struct reason *why)
{
    char text[REASON_TEXT_MAX + 64];

    if (c->now_ns - c->too_few_said_at < TOO_FEW_SAID_NS)
        return;
    c->too_few_said_at = c->now_ns;
    snprintf(text, sizeof text, "waiting for more peers: %s", why->text);
    coord_note(c, &(struct note){.kind = NOTE_WAITING, .text = text});
}

void coord_try_plan(struct coord *c)
{
    struct coord_peer *fleet[PEERS_MAX];
    uint32_t kept[PEERS_MAX], n = 0;
    struct plan plan = {0};
    struct reason why = {0};

    if (c->phase != COORD_GATHER)
        return;
    n = coord_fleet(c, fleet);
    if (n == 0 || n < coord_wanted(c))
        return;

    int status = make_plan(c, fleet, n, kept, &plan, &why);

    if (status == 0)
        status = adopt_plan(c, fleet, n, kept, &plan, &why);
    plan_done(&plan);
    if (status < 0 && c->regather_until > 0 && status != -E_NOMEM) {
        say_too_few(c, &why);
        return;
    }
    if (status < 0) {
        coord_end(c, status, &why);
        return;
    }
    c->phase = COORD_CONNECT;
    c->connect_began_at = c->now_ns;
    c->connect_asked_at = c->now_ns - 2 * COORD_RESEND_NS; /* at once, as soon as the views are acknowledged */
    coord_say_plan(c);
    coord_connect(c);
}

static bool *link_between(struct coord *c, uint32_t i, uint32_t j)
{
    return &c->link_up[(size_t)i * c->plan.n_peers + j];
}

/* Orders dialler i to dial the peers that it has no link to yet. A dial is ordered only after both acknowledged the
 * view that has the other. Where there is a link the order means: say so again. So whose report is missing while the
 * other end's is here gets one, too: it may be lost, or of a plan before. */
static void order_dials(struct coord *c, const struct coord_mesh *mesh, uint32_t i)
{
    struct msg *m = coord_msg(c, MSG_DIAL);

    if (!m)
        return;
    m->dial.view = c->view;
    m->dial.keys = mem_calloc(mesh->n, sizeof(struct key));
    for (uint32_t j = 0; m->dial.keys && j < mesh->n; j++) {
        const struct coord_peer *a = mesh->peers[i], *b = mesh->peers[j];
        bool here = mesh->up[(size_t)i * mesh->n + j], there = mesh->up[(size_t)j * mesh->n + i];

        if (j == i || (here && there))
            continue;
        /* Of two that can be dialled the smaller key dials; one that cannot be dialled dials. */
        bool dials = a->join.control_port && b->join.control_port ? key_compare(&a->join.key, &b->join.key) < 0
                                                                  : b->join.control_port != 0;
        bool unsaid = there && !here;

        dials = dials || (b->join.control_port && mesh->failed[(size_t)j * mesh->n + i]);

        if (dials || unsaid)
            m->dial.keys[m->dial.n_keys++] = b->join.key;
    }
    if (m->dial.keys && m->dial.n_keys > 0) {
        coord_send(c, mesh->peers[i], m);
        return;
    }
    if (!m->dial.keys)
        coord_oom(c);
    msg_free(m);
}

void coord_order_dials(struct coord *c, const struct coord_mesh *mesh)
{
    for (uint32_t i = 0; i < mesh->n; i++)
        order_dials(c, mesh, i);
}

bool coord_mesh_linked(const struct coord_mesh *m)
{
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t j = 0; j < m->n; j++)
            if (i != j && !m->up[(size_t)i * m->n + j])
                return false;
    return true;
}

void coord_send_plan(struct coord *c, struct coord_peer *p)
{
    struct msg *m = coord_msg(c, MSG_PLAN);

    if (!m)
        return;
    m->plan.version = c->version;
    m->plan.seed = c->config.job->seed;
    m->plan.fetch = c->config.resumed;
    if (plan_copy(&c->plan, &m->plan.plan) < 0) {
        coord_oom(c);
        msg_free(m);
        return;
    }
    p->asked_at = c->now_ns;
    coord_send(c, p, m);
}

/* Whether some plan peer says that it has no link to another one, and which. */
static bool find_parted(struct coord *c, uint32_t *ret_i, uint32_t *ret_j)
{
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        for (uint32_t j = 0; j < c->plan.n_peers; j++)
            if (i != j && coord_alive(c, i) && coord_alive(c, j) && !*link_between(c, i, j)) {
                *ret_i = i;
                *ret_j = j;
                return true;
            }
    return false;
}

/* Ends a run in which two holders have no link: nothing is sent around a broken pair yet. */
static void end_parted(struct coord *c, int64_t after_ns)
{
    uint32_t i = 0, j = 0;
    struct reason why = {0};

    if (!find_parted(c, &i, &j))
        return;
    coord_end(c,
              reason_set(&why, -E_PEER, "%s and %s cannot reach each other: no link for %d s",
                         c->plan_peers[i]->join.name, c->plan_peers[j]->join.name, (int)(after_ns / NS_PER_S)),
              &why);
}

void coord_connect(struct coord *c)
{
    const struct coord_mesh mesh = {c->plan.n_peers, c->plan_peers, c->link_up, c->link_failed};
    bool again = c->now_ns - c->connect_asked_at > COORD_RESEND_NS, linked;

    if (c->phase == COORD_SETUP) {
        for (uint32_t i = 0; i < c->plan.n_peers; i++)
            if (!c->plan_peers[i]->ready && c->now_ns - c->plan_peers[i]->asked_at > COORD_RESEND_NS)
                coord_send_plan(c, c->plan_peers[i]);
        return;
    }
    if (c->phase != COORD_CONNECT)
        return;
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        if (c->plan_peers[i]->view_acked < c->plan_view)
            return;
    linked = coord_mesh_linked(&mesh);
    if (!linked && c->now_ns - c->connect_began_at > CONNECT_LIMIT_NS) {
        end_parted(c, CONNECT_LIMIT_NS);
        return;
    }
    if (!linked && again) {
        c->connect_asked_at = c->now_ns;
        coord_order_dials(c, &mesh);
    }
    if (!linked)
        return;
    c->phase = COORD_SETUP;
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        coord_send_plan(c, c->plan_peers[i]);
}

/* A run that stands still while two holders have no link is ended. */
void coord_check_parted(struct coord *c)
{
    uint32_t i = 0, j = 0;

    if (!find_parted(c, &i, &j)) {
        c->parted_at = 0;
        return;
    }
    if (c->parted_at == 0)
        c->parted_at = c->now_ns;
    if (c->now_ns - c->parted_at < PARTED_LIMIT_NS || c->now_ns - c->progress_at < PARTED_LIMIT_NS)
        return;
    end_parted(c, PARTED_LIMIT_NS);
}

void coord_on_link_report(struct coord *c, struct coord_peer *p, const struct msg_link *l)
{
    int j = plan_find(&c->plan, &l->key);
    char from[KEY_SHORT_LEN + 1], to[KEY_SHORT_LEN + 1];

    coord_next_link(c, p, l);
    if (p->plan_peer == UINT32_MAX || j < 0 || (uint32_t)j == p->plan_peer)
        return;
    bool *up = link_between(c, p->plan_peer, (uint32_t)j),
         *failed = &c->link_failed[(size_t)p->plan_peer * c->plan.n_peers + (uint32_t)j];
    bool news = *up || !*failed;

    *up = l->up;
    *failed = !l->up;
    if (!l->up && news && c->plan_peers[j]->admitted && c->phase <= COORD_RUN) {
        key_short(&p->join.key, from);
        key_short(&l->key, to);
        coord_warn(c, "peer %s (%s) has no link to %s: %s", from, p->join.name, to, l->text);
    }
    coord_connect(c);
}

void coord_on_ready(struct coord *c, struct coord_peer *p, const struct msg_ready *r)
{
    coord_next_ready(c, p, r);
    if (c->phase != COORD_SETUP || p->plan_peer == UINT32_MAX || r->epoch != c->plan.epoch)
        return;
    if (!r->ok) {
        char id[KEY_SHORT_LEN + 1];
        struct reason why = {0};

        key_short(&p->join.key, id);
        coord_end(
            c,
            reason_set(&why, -E_PEER, "peer %s (%s) cannot hold what the plan gives it: %s", id, p->join.name, r->text),
            &why);
        return;
    }
    p->ready = true;
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        if (!c->plan_peers[i]->ready)
            return;
    coord_begin_run(c);
}
