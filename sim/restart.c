/* The coordinator dies and is started again: its ledger in memory, which holds what was written and nothing else, the
 * crash at any moment, also between writing and telling, and the next life. See cluster_impl.h. */
#include <inttypes.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "sim/cluster_impl.h"

#define BREAK_NS (2 * NS_PER_MS) /* from a process's end to those who see its sockets closed */

static struct coord_record *find(struct cluster *c, const struct coord_record *r)
{
    for (uint32_t i = 0; i < c->n_ledger; i++)
        if (c->ledger[i].kind == r->kind && c->ledger[i].key == r->key)
            return &c->ledger[i];
    return NULL;
}

static void put(struct cluster *c, const struct coord_record *r)
{
    struct coord_record *old = find(c, r);

    for (uint32_t i = 0; r->history && i < c->n_ledger; i++)
        if (c->ledger[i].kind == r->kind && c->ledger[i].key >= r->key)
            check_fail(c, "%s %" PRIu64 " is written after %" PRIu64, coord_record_names[r->kind], r->key,
                       c->ledger[i].key);
    if (old) {
        blob_unref(old->data);
        *old = c->ledger[--c->n_ledger];
    }
    if (!r->data)
        return;
    if (c->n_ledger == c->cap_ledger) {
        uint32_t cap = c->cap_ledger ? 2 * c->cap_ledger : 64;

        c->ledger = mem_resize(c->ledger, c->cap_ledger, cap, sizeof *c->ledger);
        c->cap_ledger = cap;
    }
    c->ledger[c->n_ledger] = *r;
    c->ledger[c->n_ledger++].data = blob_ref(r->data);
}

static uint64_t first_u64(const struct blob *b)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < 8; i++)
        n |= (uint64_t)((const uint8_t *)b->data)[i] << 8 * i;
    return n;
}

static void written(struct cluster *c, const struct coord_record *r)
{
    struct msg *m = NULL;

    trace_line(c, "writes %s %" PRIu64 "%s", coord_record_names[r->kind], r->key, r->data ? "" : " (removed)");
    if (r->kind == COORD_RECORD_COMMIT) {
        if (proto_decode(r->data, NULL, &m, NULL) == 0)
            check_commit(c, &m->commit);
        else
            check_fail(c, "a commit is written that cannot be read");
        msg_free(m);
    } else if (r->kind == COORD_RECORD_ROLLBACK) {
        if (!c->rollback_noted) /* a next life's, which begins with it */
            check_rollback(c, first_u64(r->data));
        c->rollback_noted = false;
    }
}

bool restart_write(struct cluster *c, const struct coord_update *u)
{
    bool crash = false;

    for (uint32_t i = 0; i < u->n_records; i++) {
        put(c, &u->records[i]);
        written(c, &u->records[i]);
        crash = crash || c->crash_kind == 1 + (uint32_t)u->records[i].kind;
    }
    return crash;
}

void restart_crash(struct cluster *c)
{
    struct node *self = &c->nodes[0];

    if (!self->alive || self->over)
        return;
    trace_line(c, "the coordinator crashes%s", c->crash_kind ? " between write and tell" : "");
    self->alive = false;
    c->crash_kind = 0;
    c->result.n_crashes++;
    c->coord = coord_free(c->coord);
    coord_update_done(&c->update);
    c->update = (struct coord_update){0};
    cluster_checkpoint_free(c->storing);
    c->storing = NULL;
    c->life++;
    c->term++;
    c->n_admitted = 0;
    memset(c->computed, 0, (size_t)c->model->M * c->model->n_units);
    for (uint32_t i = 1; i < c->n_nodes; i++) {
        c->linked[0][i] = false;
        if (c->linked[i][0])
            cluster_plan_event(c, c->now + BREAK_NS, EVENT_LINK, 0, i)->flag = false;
    }
    if (c->away_ns > 0)
        cluster_plan_event(c, c->now + c->away_ns, EVENT_RESTART, 0, 0);
}

void restart_start(struct cluster *c)
{
    c->nodes[0].alive = true;
    c->rolled_back = c->saved != NULL;
    if (shell_coord_start(c) < 0) {
        check_fail(c, "the coordinator cannot be started again from its ledger");
        return;
    }
    trace_line(c, "the coordinator is back, term %" PRIu64, c->term);
    c->n_admitted = coord_view_keys(c->coord, c->admitted);
    for (uint32_t i = 1; i < c->n_nodes; i++)
        shell_worker_redial(c, i);
}
