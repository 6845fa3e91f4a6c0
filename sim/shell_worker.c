/* A peer's process, played: joining, links, the profile, and the device behind the worker. See cluster_impl.h. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "sim/cluster_impl.h"

#define ASK_NS    (1 * NS_PER_S)
#define ORPHAN_NS (10 * NS_PER_S)
#define REDIAL_NS (200 * NS_PER_MS)

static void end(struct cluster *c, uint32_t i, int status, const struct reason *why)
{
    struct node *n = &c->nodes[i];

    n->over = true;
    n->status = status;
    if (why)
        n->why = *why;
    trace_line(c, "%u is over: %s", i, reason_text(&n->why, status));
    /* The process ends: its links break. */
    for (uint32_t k = 0; k < c->n_nodes; k++)
        if (c->linked[k][i])
            cluster_plan_event(c, c->now + 2 * NS_PER_MS, EVENT_LINK, i, k)->flag = false;
}

int shell_worker_start(struct cluster *c, uint32_t i)
{
    struct node *n = &c->nodes[i];
    struct worker_config config = {.model = c->model,
                                   .exact = c->config.job->reduction == JOB_REDUCTION_EXACT,
                                   .self = n->key.pub,
                                   .coordinator = c->nodes[0].key.pub};

    n->started = true;
    n->asked_at = -ASK_NS;
    return worker_new(&config, &n->worker);
}

static struct msg *message(struct cluster *c, uint32_t i, enum msg_type type)
{
    struct msg *m = msg_new(type, c->nodes[i].term);

    if (!m)
        __builtin_trap();
    return m;
}

static void step(struct cluster *c, uint32_t i, struct worker_event *e);

static void submit(struct cluster *c, uint32_t i, struct task *t)
{
    struct node *n = &c->nodes[i];

    if (n->n_tasks == n->cap_tasks) {
        uint32_t cap = n->cap_tasks ? 2 * n->cap_tasks : 16;

        n->tasks = mem_resize(n->tasks, n->cap_tasks, cap, sizeof *n->tasks);
        n->cap_tasks = cap;
    }
    n->tasks[n->n_tasks++] = t;
    if (n->n_tasks == 1)
        cluster_plan_event(c, c->now + device_cost(n->device, t), EVENT_TASK, i, i);
}

static void step(struct cluster *c, uint32_t i, struct worker_event *e)
{
    struct node *n = &c->nodes[i];
    struct effects *fx = &n->update.fx;

    e->now = c->now;
    worker_step(n->worker, e, &n->update);
    for (uint32_t k = 0; k < fx->n_sends; k++)
        wire_send(c, i, wire_find(c, i, &fx->sends[k].to), fx->sends[k].msg);
    for (uint32_t k = 0; k < fx->n_tasks; k++) {
        if (fx->tasks[k]->kind == TASK_APPLY)
            check_apply(c, i, fx->tasks[k]);
        submit(c, i, fx->tasks[k]);
    }
    effects_clear(fx);
    if (n->update.over && !n->over)
        end(c, i, n->update.status, &n->update.why);
}

void shell_worker_task(struct cluster *c, uint32_t i)
{
    struct node *n = &c->nodes[i];

    if (!n->alive || n->over || n->n_tasks == 0)
        return;
    struct task *t = n->tasks[0];

    n->n_tasks--;
    memmove(n->tasks, n->tasks + 1, n->n_tasks * sizeof *n->tasks);
    device_run(n->device, t);
    trace_line(c, "%u did %s step %llu mb %u units %u-%u", i, task_name(t->kind), (unsigned long long)t->step,
               t->microbatch, t->u0, t->u1);
    if (device_complaint(n->device) && !c->config.lenient)
        check_fail(c, "the device of node %u: %s", i, device_complaint(n->device));
    if (t->kind == TASK_BACKWARD)
        check_backward(c, i, t);
    n->n_forwards += t->kind == TASK_FORWARD && t->train;
    if (n->n_tasks > 0)
        cluster_plan_event(c, c->now + device_cost(n->device, n->tasks[0]), EVENT_TASK, i, i);
    step(c, i, &(struct worker_event){.kind = WORKER_TASK_DONE, .task = t});
}

static void join(struct cluster *c, uint32_t i)
{
    const struct cluster_worker *w = &c->config.workers[i - 1];
    struct node *n = &c->nodes[i];
    struct msg *m = message(c, i, MSG_JOIN);
    struct msg_join *j = &m->join;

    n->asked_at = c->now;
    j->capability[0] = w->wrong_capability ? 0xcb : 0xca;
    j->key = n->key.pub;
    j->incarnation = n->incarnation;
    snprintf(j->software, sizeof j->software, "sim");
    snprintf(j->name, sizeof j->name, "worker%u", i);
    snprintf(j->device, sizeof j->device, "counter");
    snprintf(j->fingerprint, sizeof j->fingerprint, "0123456789abcdef");
    j->memory_bytes = w->memory_bytes ? w->memory_bytes : UINT64_C(1) << 50;
    j->n_threads = 1;
    j->n_addrs = 1;
    snprintf(j->addrs[0], sizeof j->addrs[0], "worker%u", i);
    j->control_port = w->no_port ? 0 : (uint16_t)(1000 + i);
    j->bulk_port = w->no_port ? 0 : (uint16_t)(2000 + i);
    wire_send(c, i, 0, m);
}

static void leave(struct cluster *c, uint32_t i)
{
    struct msg *m = message(c, i, MSG_LEAVE);

    c->nodes[i].asked_at = c->now;
    snprintf(m->leave.text, sizeof m->leave.text, "asked to leave");
    wire_send(c, i, 0, m);
}

void shell_worker_leave(struct cluster *c, uint32_t i)
{
    if (!c->nodes[i].alive || c->nodes[i].over || !c->nodes[i].welcomed)
        return;
    c->nodes[i].leaving = true;
    leave(c, i);
}

static void profile(struct cluster *c, uint32_t i)
{
    const struct cluster_worker *w = &c->config.workers[i - 1];
    struct msg *m = message(c, i, MSG_PROFILE);
    struct task unit = {.kind = TASK_FORWARD, .u0 = 0, .u1 = 1};
    uint32_t n = c->model->n_units;

    m->profile.memory_bytes = w->memory_bytes ? w->memory_bytes : UINT64_C(1) << 50;
    m->profile.n_units = n;
    m->profile.forward_s = mem_calloc(n, sizeof(double));
    m->profile.backward_s = mem_calloc(n, sizeof(double));
    for (uint32_t u = 0; u < n && m->profile.forward_s && m->profile.backward_s; u++) {
        m->profile.forward_s[u] = (double)device_cost(c->nodes[i].device, &unit) / (double)NS_PER_S;
        m->profile.backward_s[u] = 2 * m->profile.forward_s[u];
    }
    wire_send(c, i, 0, m);
}

static void report_link(struct cluster *c, uint32_t i, uint32_t other, bool up)
{
    struct msg *m = message(c, i, MSG_LINK);

    m->link.key = c->nodes[other].key.pub;
    m->link.up = up;
    if (!up)
        snprintf(m->link.text, sizeof m->link.text, "connection lost");
    wire_send(c, i, 0, m);
}

static void introduce(struct cluster *c, uint32_t i)
{
    profile(c, i);
    for (uint32_t k = 1; k < c->n_nodes; k++)
        if (c->linked[i][k])
            report_link(c, i, k, true);
}

void shell_worker_link(struct cluster *c, uint32_t i, uint32_t from, bool up)
{
    struct node *n = &c->nodes[i];

    if (from != 0) {
        report_link(c, i, from, up);
        return;
    }
    if (up) {
        n->orphaned_at = 0;
        introduce(c, i);
    } else if (c->nodes[0].over) {
        struct reason why = {0};

        end(c, i, reason_set(&why, -E_PEER, "the coordinator is gone"), &why);
    } else if (n->orphaned_at == 0) {
        n->orphaned_at = c->now;
    }
}

void shell_worker_tick(struct cluster *c, uint32_t i)
{
    struct node *n = &c->nodes[i];

    if (!n->started && shell_worker_start(c, i) < 0)
        __builtin_trap();
    if (!n->welcomed && c->now - n->asked_at >= ASK_NS)
        join(c, i);
    if (n->leaving && c->now - n->asked_at >= ASK_NS)
        leave(c, i);
    step(c, i, &(struct worker_event){.kind = WORKER_TICK});
    if (!n->over && ((n->orphaned_at && c->now - n->orphaned_at > ORPHAN_NS) || (!n->welcomed && c->nodes[0].over))) {
        struct reason why = {0};

        end(c, i, reason_set(&why, -E_PEER, "the coordinator is gone"), &why);
    }
}

/* Dials, and says so again where there is a link already. */
static void dial(struct cluster *c, uint32_t i, const struct msg_dial *d)
{
    for (uint32_t k = 0; k < d->n_keys; k++) {
        uint32_t other = wire_find(c, i, &d->keys[k]);

        if (other == NODES_MAX || other == i || !c->nodes[other].alive || c->cut[i][other])
            continue;
        if (c->linked[i][other])
            report_link(c, i, other, true);
        else
            wire_link(c, i, other, true, 0);
    }
}

static void on_welcome(struct cluster *c, uint32_t i, const struct msg *m)
{
    struct node *n = &c->nodes[i];

    if (n->welcomed)
        return;
    n->welcomed = true;
    n->term = m->term;
    wire_link(c, 0, i, true, 0);
}

static void on_refuse(struct cluster *c, uint32_t i, const struct msg_refuse *r)
{
    struct reason why = {0};

    if (!c->nodes[i].welcomed)
        end(c, i, reason_set(&why, -E_AUTH, "%s", r->text), &why);
}

static void on_view(struct cluster *c, uint32_t i, const struct msg *m)
{
    bool again = m->term > c->nodes[i].term;

    if (again)
        c->nodes[i].term = m->term;
    struct msg *ack = message(c, i, MSG_VIEW_ACK);

    if (!msg_view_verify(&m->view, &c->nodes[0].key.pub))
        check_fail(c, "a view with a wrong signature");
    ack->view_ack.number = m->view.number;
    wire_send(c, i, 0, ack);
    if (again) /* what was said in the old term counts for nothing */
        introduce(c, i);
}

void shell_worker_redial(struct cluster *c, uint32_t i)
{
    struct node *n = &c->nodes[i];
    bool admitted = false;

    if (!n->alive || n->over || !n->welcomed || c->cut[0][i])
        return;
    for (uint32_t k = 0; k < c->n_admitted; k++)
        admitted = admitted || key_equal(&c->admitted[k], &n->key.pub);
    if (admitted) {
        wire_link(c, 0, i, true, (int64_t)rng_below(&c->rng, REDIAL_NS));
    } else {
        struct reason why = {0};

        end(c, i, reason_set(&why, -E_AUTH, "its key is not admitted any more"), &why);
    }
}

void shell_worker_message(struct cluster *c, uint32_t from, uint32_t i, struct msg *m)
{
    switch (m->type) {
    case MSG_WELCOME:
        on_welcome(c, i, m);
        break;
    case MSG_REFUSE:
        on_refuse(c, i, &m->refuse);
        break;
    case MSG_DIAL:
        if (from == 0)
            dial(c, i, &m->dial);
        break;
    case MSG_VIEW:
        if (from == 0)
            on_view(c, i, m);
        goto engine;
    default:
    engine:
        step(c, i, &(struct worker_event){.kind = WORKER_MESSAGE, .from = c->nodes[from].key.pub, .msg = TAKE_PTR(m)});
    }
    msg_free(m);
}
