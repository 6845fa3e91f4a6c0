/* What is checked outside the engines after every event, and the trace of what happened. See cluster_impl.h. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "sim/cluster_impl.h"

/* Work that a worker may have open: the present step's and two steps' ahead, evaluation included, a lease a unit. */
#define STEPS_OPEN 3

void trace_line(struct cluster *c, const char *fmt, ...)
{
    char *line = c->trace[c->n_trace++ % TRACE_LINES];
    int n = snprintf(line, TRACE_LINE_LEN, "[%10.3f ms] ", (double)c->now / NS_PER_MS);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line + n, TRACE_LINE_LEN - (size_t)n, fmt, ap);
    va_end(ap);
}

const char *cluster_trace(struct cluster *c)
{
    uint64_t first = c->n_trace > TRACE_LINES ? c->n_trace - TRACE_LINES : 0;
    size_t at = 0;

    c->trace_text[0] = 0;
    for (uint64_t i = first; i < c->n_trace; i++) {
        int n = snprintf(c->trace_text + at, sizeof c->trace_text - at, "%s\n", c->trace[i % TRACE_LINES]);

        at += (size_t)n < sizeof c->trace_text - at ? (size_t)n : 0;
    }
    return c->trace_text;
}

void check_fail(struct cluster *c, const char *fmt, ...)
{
    va_list ap;

    if (c->broken.text[0])
        return;
    va_start(ap, fmt);
    vsnprintf(c->broken.text, sizeof c->broken.text, fmt, ap);
    va_end(ap);
    trace_line(c, "BROKEN: %s", c->broken.text);
}

void check_backward(struct cluster *c, uint32_t i, const struct task *t)
{
    if (c->config.lenient || t->epoch < c->epoch)
        return;
    if (t->step != c->committed) {
        check_fail(c, "node %u computed step %" PRIu64 ", %" PRIu64 " is being trained", i, t->step, c->committed);
        return;
    }
    if (c->nodes[i].removed)
        return; /* it does not know yet */
    for (uint32_t u = t->u0; u < t->u1; u++) {
        uint8_t *who = &c->computed[t->microbatch * c->model->n_units + u];

        if (*who && !c->nodes[*who].removed)
            check_fail(c, "node %u computed step %" PRIu64 ", microbatch %u, unit %u, which node %u has computed", i,
                       t->step, t->microbatch, u, *who);
        *who = (uint8_t)i;
    }
}

static void plan_deeds(struct cluster *c)
{
    for (uint32_t i = 0; i < c->n_pending; i++) {
        const struct pending_deed *p = &c->pending[i];

        if (p->version == c->committed)
            cluster_at(c, c->now + p->after, p->deed, p->a, p->b);
    }
}

/* A commit is about to be told, perhaps again. */
void check_commit(struct cluster *c, const struct msg_commit *k)
{
    if (k->step + 1 == c->committed)
        return;
    if (k->step != c->committed) {
        check_fail(c, "step %" PRIu64 " is committed after %" PRIu64 " steps", k->step, c->committed);
        return;
    }
    for (uint32_t m = 0; m < c->model->M && !c->config.lenient; m++)
        for (uint32_t u = 0; u < c->model->n_units; u++)
            if (c->computed[m * c->model->n_units + u] == 0)
                check_fail(c, "step %" PRIu64 " is committed, and microbatch %u of unit %u was not computed", k->step,
                           m, u);
    memset(c->computed, 0, (size_t)c->model->M * c->model->n_units);
    c->result.n_skipped += k->skipped;
    c->committed++;
    if (c->committed_at && c->now - c->committed_at > c->result.longest_step_ns)
        c->result.longest_step_ns = c->now - c->committed_at;
    c->committed_at = c->now;
    if (c->committed > c->most_committed) {
        c->most_committed = c->committed;
        plan_deeds(c);
    }
}

void check_apply(struct cluster *c, uint32_t i, const struct task *t)
{
    if (t->step >= c->committed && t->epoch >= c->epoch)
        check_fail(c, "node %u applies step %" PRIu64 ", which is not committed", i, t->step);
}

void check_worker(struct cluster *c, uint32_t i)
{
    struct node *n = &c->nodes[i];
    struct worker_stats s;

    if (!n->worker || n->over)
        return;
    worker_stats(n->worker, &s);
    if (s.ready && s.version < n->version && s.epoch == n->epoch)
        check_fail(c, "node %u went from version %" PRIu64 " back to %" PRIu64, i, n->version, s.version);
    if (s.ready && s.version > c->committed && s.epoch >= c->epoch)
        check_fail(c, "node %u has version %" PRIu64 ", %" PRIu64 " are committed", i, s.version, c->committed);
    if (s.leases_open > STEPS_OPEN * c->model->n_units * (c->model->M + c->config.job->eval.microbatches))
        check_fail(c, "node %u has %u leases open", i, s.leases_open);
    if (s.ready) {
        n->version = s.version;
        n->epoch = s.epoch;
    }
}

/* A key that joins is its newest process; one that is lost is all of its processes so far. */
static void mark_removed(struct cluster *c, const struct note *n)
{
    for (uint32_t i = c->config.n_workers; i >= 1; i--) {
        struct node *node = &c->nodes[i];

        if (!node->started || !key_equal(&node->key.pub, &n->key))
            continue;
        node->removed = n->peer_state != NOTE_PEER_JOINED;
        if (!node->removed)
            return;
    }
}

void check_note(void *cluster, const struct note *n)
{
    struct cluster *c = cluster;

    switch (n->kind) {
    case NOTE_PLAN:
        c->result.n_plans++;
        c->epoch = n->epoch;
        break;
    case NOTE_STEP:
        if (n->step != c->committed + 1)
            check_fail(c, "step %" PRIu64 " is told after %" PRIu64, n->step, c->committed);
        c->result.loss = n->loss;
        break;
    case NOTE_EVAL:
        c->result.n_evals++;
        c->result.eval_loss = n->loss;
        break;
    case NOTE_ROLLBACK:
        c->result.n_rollbacks++;
        c->committed = n->step;
        c->committed_at = 0;
        c->epoch++; /* the next plan's */
        memset(c->computed, 0, (size_t)c->model->M * c->model->n_units);
        break;
    case NOTE_PEER:
        mark_removed(c, n);
        break;
    case NOTE_WARNING:
        c->result.n_warnings++;
        break;
    default:
        break;
    }
    trace_line(c, "note %d step %" PRIu64 ": %s", (int)n->kind, n->step, n->text ? n->text : "");
}
