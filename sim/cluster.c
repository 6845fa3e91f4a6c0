/* See cluster.h. Virtual time: one heap of events, taken in order of (time, sequence); nodes; deeds. */
#include "sim/cluster.h"

#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "sim/cluster_impl.h"

#define TICK_NS   (50 * NS_PER_MS)
#define BREAK_NS  (50 * NS_PER_MS)  /* from a broken link to those who notice */
#define REJOIN_NS (100 * NS_PER_MS) /* from a healed link to those who use it */

void cluster_checkpoint_free(struct cluster_checkpoint *k)
{
    if (!k)
        return;
    for (uint32_t i = 0; k->parts && i < k->n_parts; i++)
        mem_free(k->parts[i]);
    mem_free(k->parts);
    mem_free(k);
}

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

struct event *cluster_plan_event(struct cluster *c, int64_t at, enum event_kind kind, uint32_t from, uint32_t to)
{
    if (c->n_heap == c->cap_heap) {
        uint32_t cap = c->cap_heap ? 2 * c->cap_heap : 256;
        struct event *grown = mem_resize(c->heap, c->cap_heap, cap, sizeof *grown);

        if (!grown)
            __builtin_trap(); /* a simulator that ran out of memory has nothing to say */
        c->heap = grown;
        c->cap_heap = cap;
    }
    struct event e = {.at = at, .sequence = c->n_events++, .kind = kind, .from = from, .to = to};
    uint32_t i = c->n_heap++;

    for (; i > 0 && before(&e, &c->heap[(i - 1) / 2]); i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = e;
    return &c->heap[i];
}

static struct event take_event(struct cluster *c)
{
    struct event first = c->heap[0], last = c->heap[--c->n_heap];
    uint32_t i = 0;

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child >= c->n_heap)
            break;
        if (child + 1 < c->n_heap && before(&c->heap[child + 1], &c->heap[child]))
            child++;
        if (!before(&c->heap[child], &last))
            break;
        c->heap[i] = c->heap[child];
        i = child;
    }
    c->heap[i] = last;
    return first;
}

static int make_nodes(struct cluster *c)
{
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        struct node *n = &c->nodes[i];
        uint32_t same = i ? c->config.workers[i - 1].same_key_as : 0;
        uint8_t seed[32] = {1, (uint8_t)(same ? same : i)};
        int status = key_from_seed(seed, &n->key);

        if (status < 0)
            return status;
        n->alive = true;
        if (i == 0)
            continue;
        const struct cluster_worker *w = &c->config.workers[i - 1];

        struct device_fault fault = c->config.fault;

        fault.lie = w->lies;
        n->incarnation = w->incarnation ? w->incarnation : (uint64_t)w->starts_at + 1;
        status = device_new(c->model, &fault, w->speed > 0 ? w->speed : 1, &n->device);
        if (status < 0)
            return status;
        cluster_plan_event(c, w->starts_at, EVENT_TICK, i, i);
        if (w->hostile_hz > 0)
            cluster_plan_event(c, w->starts_at, EVENT_HOSTILE, i, i);
    }
    return 0;
}

int cluster_new(const struct cluster_config *config, struct cluster **ret)
{
    struct cluster *c = mem_calloc(1, sizeof *c);
    int status = c ? model_new(config->job, &c->model, NULL) : -E_NOMEM;

    if (status < 0)
        goto fail;
    c->config = *config;
    if (c->config.stop_after == 0)
        c->config.stop_after = config->job->train.steps;
    c->rng = rng_make(config->seed, "network");
    c->hostile_rng = rng_make(config->seed, "hostile");
    c->n_nodes = config->n_workers + 1;
    c->term = config->resume ? 2 : 1;
    c->joiner = NODES_MAX;
    c->committed = c->most_committed = config->resume ? config->resume->version : 0;
    c->computed = mem_calloc((size_t)c->model->M * c->model->n_units, 1);
    status = c->computed ? make_nodes(c) : -E_NOMEM;
    if (status == 0)
        status = shell_coord_start(c);
    if (status < 0)
        goto fail;
    cluster_plan_event(c, 0, EVENT_TICK, 0, 0);
    *ret = c;
    return 0;
fail:
    cluster_free(c);
    return status;
}

struct cluster *cluster_free(struct cluster *c)
{
    if (!c)
        return NULL;
    for (uint32_t i = 0; i < c->n_heap; i++) {
        blob_unref(c->heap[i].head);
        blob_unref(c->heap[i].body);
    }
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        struct node *n = &c->nodes[i];

        worker_free(n->worker);
        device_free(n->device);
        effects_done(&n->update.fx);
        for (uint32_t t = 0; t < n->n_tasks; t++)
            task_free(n->tasks[t]);
        mem_free(n->tasks);
    }
    coord_free(c->coord);
    effects_done(&c->update.fx);
    cluster_checkpoint_free(c->storing);
    cluster_checkpoint_free(c->saved);
    mem_free(c->computed);
    mem_free(c->heap);
    model_free(c->model);
    return mem_free(c);
}

void cluster_at(struct cluster *c, int64_t at_ns, enum cluster_deed deed, uint32_t a, uint32_t b)
{
    cluster_plan_event(c, at_ns, EVENT_DEED, a, b)->deed = deed;
}

void cluster_when(struct cluster *c, uint64_t version, int64_t after_ns, enum cluster_deed deed, uint32_t a, uint32_t b)
{
    if (c->n_pending < sizeof c->pending / sizeof c->pending[0])
        c->pending[c->n_pending++] = (struct pending_deed){version, after_ns, deed, a, b};
}

static void kill_node(struct cluster *c, uint32_t a)
{
    c->nodes[a].alive = false;
    for (uint32_t i = 0; i < c->n_nodes; i++)
        if (c->linked[i][a])
            cluster_plan_event(c, c->now + BREAK_NS, EVENT_LINK, a, i)->flag = false;
}

void cluster_deed(struct cluster *c, enum cluster_deed deed, uint32_t a, uint32_t b)
{
    static const char *const names[] = {"kill", "exit", "cut", "heal", "leave", "stop"};

    trace_line(c, "%s %u %u", names[deed], a, b);
    switch (deed) {
    case CLUSTER_KILL:
        kill_node(c, a);
        break;
    case CLUSTER_EXIT:
        kill_node(c, a);
        shell_coord_event(c, &(struct coord_event){
                                 .kind = COORD_EXITED, .key = c->nodes[a].key.pub, .text = "its process was killed"});
        break;
    case CLUSTER_CUT:
        c->cut[a][b] = c->cut[b][a] = true;
        wire_link(c, a, b, false, BREAK_NS);
        break;
    case CLUSTER_HEAL:
        c->cut[a][b] = c->cut[b][a] = false;
        wire_link(c, a, b, true, REJOIN_NS);
        break;
    case CLUSTER_LEAVE:
        shell_worker_leave(c, a);
        break;
    case CLUSTER_STOP:
        shell_coord_event(c, &(struct coord_event){.kind = COORD_STOP});
        break;
    }
}

static void tick(struct cluster *c, uint32_t i)
{
    struct node *n = &c->nodes[i];

    if (!n->alive || n->over)
        return;
    cluster_plan_event(c, c->now + TICK_NS, EVENT_TICK, i, i);
    if (i == 0)
        shell_coord_event(c, &(struct coord_event){.kind = COORD_TICK});
    else
        shell_worker_tick(c, i);
}

static void deliver(struct cluster *c, const struct event *e)
{
    struct reason why = {0};
    struct msg *m = NULL;
    const struct node *n = &c->nodes[e->to];

    if (!n->alive || n->over || !n->started || c->cut[e->from][e->to])
        return;
    if (e->lane != LANE_LOBBY && !c->linked[e->to][e->from])
        return;
    int status = proto_decode(e->head, e->body, &m, &why);

    if (status < 0) {
        if (e->from == 0 || c->config.workers[e->from - 1].hostile_hz <= 0)
            check_fail(c, "a message of node %u cannot be decoded: %s", e->from, reason_text(&why, status));
        return;
    }
    c->n_messages++;
    if (m->type != MSG_HEARTBEAT)
        trace_line(c, "%u > %u %s", e->from, e->to, msg_name(m->type));
    if (e->to == 0)
        shell_coord_message(c, e->from, m, e->lane);
    else
        shell_worker_message(c, e->from, e->to, m);
}

/* A link that breaks when there is one to a newer process with the same key is not missed. */
static bool replaced(const struct cluster *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = 1; i < c->n_nodes; i++)
        if (i != from && c->linked[to][i] && key_equal(&c->nodes[i].key.pub, &c->nodes[from].key.pub))
            return true;
    return false;
}

static void handle(struct cluster *c, struct event *e)
{
    switch (e->kind) {
    case EVENT_TICK:
        tick(c, e->to);
        break;
    case EVENT_MESSAGE:
        deliver(c, e);
        break;
    case EVENT_LINK:
        if (e->flag && (!c->nodes[e->from].alive || c->cut[e->from][e->to]))
            break;
        c->linked[e->to][e->from] = e->flag;
        if (!c->nodes[e->to].alive || c->nodes[e->to].over)
            break;
        if (!e->flag && replaced(c, e->from, e->to))
            break;
        trace_line(c, "%u sees %u %s", e->to, e->from, e->flag ? "up" : "down");
        if (e->to == 0)
            shell_coord_link(c, e->from, e->flag);
        else
            shell_worker_link(c, e->to, e->from, e->flag);
        break;
    case EVENT_TASK:
        shell_worker_task(c, e->to);
        break;
    case EVENT_SAVED:
        shell_coord_saved(c);
        break;
    case EVENT_HOSTILE:
        hostile_say(c, e->to);
        break;
    case EVENT_DEED:
        cluster_deed(c, e->deed, e->from, e->to);
        break;
    }
    blob_unref(e->head);
    blob_unref(e->body);
}

static bool all_over(const struct cluster *c)
{
    for (uint32_t i = 0; i < c->n_nodes; i++)
        if (c->nodes[i].alive && !c->nodes[i].over)
            return false;
    return true;
}

int cluster_run(struct cluster *c, int64_t limit_ns, struct reason *why)
{
    while (!all_over(c)) {
        if (c->n_heap == 0 || c->heap[0].at > limit_ns)
            return reason_set(why, -E_TIMEOUT, "not over after %.3f virtual seconds, at step %llu",
                              (double)c->now / NS_PER_S, (unsigned long long)c->committed);
        struct event e = take_event(c);

        c->now = e.at;
        handle(c, &e);
        for (uint32_t i = 1; i < c->n_nodes; i++)
            check_worker(c, i);
        if (c->broken.text[0])
            return reason_set(why, -E_INTERNAL, "%s", c->broken.text);
    }
    return 0;
}

void cluster_result(const struct cluster *c, struct cluster_result *ret)
{
    *ret = c->result;
    ret->n_messages = c->n_messages;
    ret->version = c->committed;
    ret->saved = c->saved;
    for (uint32_t i = 1; i < c->n_nodes; i++) {
        struct worker_stats s;

        if (c->nodes[i].worker) {
            worker_stats(c->nodes[i].worker, &s);
            ret->dropped += s.dropped;
        }
    }
}

int cluster_worker_status(const struct cluster *c, uint32_t worker, const char **ret_text)
{
    const struct node *n = &c->nodes[worker];

    *ret_text = reason_text(&n->why, n->status);
    return n->over ? n->status : 1;
}

uint64_t cluster_worker_forwards(const struct cluster *c, uint32_t worker)
{
    return c->nodes[worker].n_forwards;
}
