/* The coordinator's process, played: tokens for leases, checkpoints in memory, links. See cluster_impl.h. */
#include <string.h>

#include "model/digest.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "sim/cluster_impl.h"

#define SAVE_NS (30 * NS_PER_MS)
#define GONE_NS (1 * NS_PER_S) /* from the end of the run to the process's */

static const uint8_t capability[INVITE_CAPABILITY_BYTES] = {0xca};

int shell_coord_start(struct cluster *c)
{
    struct coord_config config = {.job = c->config.job,
                                  .model = c->model,
                                  .key = &c->nodes[0].key,
                                  .plan_text = c->config.plan_text,
                                  .term = c->term,
                                  .stop_after = c->config.stop_after,
                                  .dead_ns = c->config.dead_ns,
                                  .control_port = 1,
                                  .bulk_port = 2};
    int status = blob_new(4, &config.job_text);

    if (status < 0)
        return status;
    memcpy(config.job_text->data, "job\n", 4);
    memcpy(config.capability, capability, sizeof capability);
    const struct cluster_checkpoint *from = c->rolled_back ? c->saved : c->config.resume;

    if (from) {
        config.resumed = true;
        config.start_version = from->version;
        config.start_updates = from->updates;
        config.start_loss = from->loss;
    }
    config.records = c->ledger;
    config.n_records = c->n_ledger;
    config.reattach = true;
    status = coord_new(&config, &c->coord);
    blob_unref(config.job_text);
    c->update.note = check_note;
    c->update.note_arg = c;
    c->nodes[0].started = true;
    return status;
}

/* What a microbatch holds: determined by (step, microbatch), for an evaluation by the microbatch alone. */
static void fill_tokens(const struct cluster *c, uint64_t step, const struct msg_lease *l, uint32_t which, int32_t *out)
{
    uint64_t key = rng_key(c->config.job->seed, l->mode == MSG_MODE_EVAL ? "eval" : "train");
    uint64_t number = (l->mode == MSG_MODE_EVAL ? 0 : step << 24) + (uint64_t)l->microbatch * 2 + which;

    for (uint32_t i = 0; i < c->model->B * c->model->n_ctx; i++)
        out[i] = (int32_t)(rng_at(key, number * 4096 + i) % c->model->n_vocab);
}

static void fill_leases(struct cluster *c, struct msg *m)
{
    size_t n = (size_t)c->model->B * c->model->n_ctx, arrays = 0;
    int32_t *at;

    for (uint32_t i = 0; i < m->leases.n_leases; i++)
        arrays += (m->leases.leases[i].u0 == 0) + (m->leases.leases[i].u1 == c->model->n_units);
    if (arrays * n * sizeof *at > BODY_BYTES_MAX)
        check_fail(c, "LEASES with %zu bytes of text", arrays * n * sizeof *at);
    if (arrays == 0 || blob_new(arrays * n * sizeof *at, &m->body) < 0)
        return;
    at = m->body->data;
    for (uint32_t i = 0; i < m->leases.n_leases; i++) {
        const struct msg_lease *l = &m->leases.leases[i];

        if (l->u0 == 0) {
            fill_tokens(c, m->leases.step, l, 0, at);
            at += n;
        }
        if (l->u1 == c->model->n_units) {
            fill_tokens(c, m->leases.step, l, 1, at);
            at += n;
        }
    }
}

static struct cluster_checkpoint *checkpoint_new(const struct cluster *c)
{
    struct cluster_checkpoint *k = mem_calloc(1, sizeof *k);

    if (!k)
        return NULL;
    k->n_parts = c->model->n_tensors * PARAMS_PARTS;
    k->parts = mem_calloc(k->n_parts, sizeof *k->parts);
    for (uint32_t i = 0; k->parts && i < k->n_parts; i++)
        k->parts[i] = mem_calloc((size_t)c->model->tensors[i / PARAMS_PARTS].n, sizeof(float));
    return k;
}

static void store(struct cluster *c, const struct task *t)
{
    if (!c->storing)
        c->storing = checkpoint_new(c);
    memcpy(c->storing->parts[t->tensor * PARAMS_PARTS + t->part] + t->offset, t->in->data, t->in->size);
}

/* Serves a piece of the checkpoint resumed from. */
static void serve(struct cluster *c, struct task *t)
{
    t->status = blob_new(t->n * sizeof(float), &t->out);
    if (t->status == 0) {
        memcpy(t->out->data,
               (c->rolled_back ? c->saved : c->config.resume)->parts[t->tensor * PARAMS_PARTS + t->part] + t->offset,
               t->out->size);
        hash_of(t->out->data, t->out->size, t->hash);
    }
    shell_coord_event(c, &(struct coord_event){.kind = COORD_TASK_DONE, .task = t});
}

static void send_one(struct cluster *c, const struct effects_send *s)
{
    uint32_t to = coord_on_lobby(s->msg->type) ? c->joiner : wire_find(c, 0, &s->to);

    if (s->msg->type == MSG_LEASES)
        fill_leases(c, s->msg);
    if (s->msg->type == MSG_COMMIT)
        check_told(c, &s->msg->commit);
    wire_send(c, 0, to, s->msg);
}

static void end(struct cluster *c)
{
    struct node *self = &c->nodes[0];

    self->over = true;
    self->status = c->update.status;
    c->result.over = true;
    c->result.status = c->update.status;
    c->result.why = c->update.why;
    c->result.ended_at = c->now;
    for (uint32_t i = 1; i < c->n_nodes; i++)
        cluster_plan_event(c, c->now + GONE_NS, EVENT_LINK, 0, i)->flag = false;
}

void shell_coord_event(struct cluster *c, struct coord_event *e)
{
    struct coord_update *u = &c->update;

    if (c->nodes[0].over || !c->nodes[0].alive) {
        msg_free(e->msg);
        task_free(e->task);
        return;
    }
    e->now = c->now;
    coord_step(c->coord, e, u);
    if (restart_write(c, u)) {
        restart_crash(c);
        return;
    }
    coord_records_clear(u);
    /* Effects are moved out first: serving a piece is the engine's next event. */
    struct effects fx = u->fx;

    u->fx = (struct effects){0};
    if (u->view_changed)
        c->n_admitted = coord_view_keys(c->coord, c->admitted);
    if (u->save) {
        c->saving = u->save_what;
        cluster_plan_event(c, c->now + SAVE_NS, EVENT_SAVED, 0, 0)->life = c->life;
    }
    c->rolled_back = c->rolled_back || u->rollback;
    u->view_changed = u->save = u->rollback = false;
    for (uint32_t i = 0; i < fx.n_sends; i++)
        send_one(c, &fx.sends[i]);
    for (uint32_t i = 0; i < fx.n_tasks; i++) {
        if (fx.tasks[i]->kind == TASK_STATE_WRITE) {
            if (c->nodes[0].alive)
                store(c, fx.tasks[i]);
            task_free(fx.tasks[i]);
        } else {
            serve(c, fx.tasks[i]);
        }
    }
    effects_clear(&fx);
    effects_done(&fx);
    if (u->over && !c->nodes[0].over)
        end(c);
}

void shell_coord_message(struct cluster *c, uint32_t from, struct msg *m, enum lane lane)
{
    struct coord_event e = {
        .kind = lane == LANE_LOBBY ? COORD_JOIN : COORD_MESSAGE, .key = c->nodes[from].key.pub, .msg = m};

    c->joiner = from;
    shell_coord_event(c, &e);
}

void shell_coord_link(struct cluster *c, uint32_t from, bool up)
{
    shell_coord_event(
        c, &(struct coord_event){
               .kind = COORD_LINK, .key = c->nodes[from].key.pub, .up = up, .text = up ? NULL : "connection lost"});
}

/* The checkpoint is whole and says what the engine says that it is. */
static void check_checkpoint(struct cluster *c, const struct cluster_checkpoint *k)
{
    const struct model *m = c->model;
    uint8_t(*digests)[HASH_BYTES] = mem_calloc(m->n_tensors, sizeof *digests);
    uint8_t hash[HASH_BYTES];

    for (uint32_t t = 0; digests && t < m->n_tensors; t++)
        digest_tensor(k->parts[t * PARAMS_PARTS + PARAMS_VALUE], m->tensors[t].n, digests[t]);
    digest_model((const uint8_t(*)[HASH_BYTES])digests, m->n_tensors, hash);
    mem_free(digests);
    if (memcmp(hash, k->hash, HASH_BYTES) != 0 && !c->config.lenient)
        check_fail(c, "the checkpoint of step %llu has another hash than its holders said",
                   (unsigned long long)k->version);
}

void shell_coord_saved(struct cluster *c)
{
    if (c->nodes[0].over || !c->storing)
        return;
    cluster_checkpoint_free(c->saved);
    c->saved = TAKE_PTR(c->storing);
    c->saved->version = c->saving.version;
    c->saved->updates = c->saving.updates;
    c->saved->loss = c->saving.loss;
    memcpy(c->saved->hash, c->saving.hash, HASH_BYTES);
    c->result.n_saved++;
    trace_line(c, "saved %llu", (unsigned long long)c->saved->version);
    check_checkpoint(c, c->saved);
    shell_coord_event(c, &(struct coord_event){.kind = COORD_SAVED, .text = "memory"});
}
