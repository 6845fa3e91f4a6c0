/* Steps: leases out, work done, commits (design 5); the reduces between are coord_reduce.c's. See coord_impl.h. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/optimizer.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

#define QUIET_MAX        4
#define STANDSTILL_NS    (60 * NS_PER_S)
#define STANDSTILL_STEPS 10

void coord_free_step(struct coord *c)
{
    routes_done(&c->now);
    routes_done(&c->next);
    c->next_valid = false;
    c->losses = mem_free(c->losses);
    c->eval_losses = mem_free(c->eval_losses);
    c->eval_in = mem_free(c->eval_in);
    c->gone = mem_free(c->gone);
    c->unit_done = mem_free(c->unit_done);
    c->group_of = mem_free(c->group_of);
    c->place_in_group = mem_free(c->place_in_group);
    for (uint32_t g = 0; c->group && g < c->groups.n; g++) {
        mem_free(c->group[g].reported);
        mem_free(c->group[g].sum_squares);
    }
    c->group = mem_free(c->group);
}

static bool eval_due(const struct coord *c, uint64_t step)
{
    const struct job *job = c->config.job;

    if (job->eval.microbatches == 0)
        return false;
    return step == c->config.stop_after || (job->eval.every > 0 && step > 0 && step % job->eval.every == 0);
}

/* The leases of a step; the last "step" has no training, only the final evaluation. */
static int build_routes(struct coord *c, uint64_t step, struct routes *ret)
{
    uint32_t n_train = step < c->config.stop_after ? c->config.model->M : 0;

    return routes_build(&c->plan, c->gone, &c->credit, step, n_train,
                        eval_due(c, step) ? c->config.job->eval.microbatches : 0, ret);
}

/* The peer's leases of that step, or of them those it was not told of yet. */
static void send_leases(struct coord *c, struct routes *r, uint32_t peer, bool changed_only)
{
    struct msg *m = coord_msg(c, MSG_LEASES);
    uint32_t n = 0;

    if (!m)
        return;
    m->leases.leases = mem_calloc(r->n ? r->n : 1, sizeof *m->leases.leases);
    if (!m->leases.leases) {
        coord_oom(c);
        msg_free(m);
        return;
    }
    for (uint32_t i = 0; i < r->n; i++)
        if (r->leases[i].peer == peer && (r->leases[i].changed || !changed_only)) {
            m->leases.leases[n++] = r->leases[i].info;
            r->leases[i].changed = false;
        }
    m->leases.epoch = c->plan.epoch;
    m->leases.step = r->step;
    m->leases.loss_scale = (float)(1.0 / (double)job_step_tokens(c->config.job));
    m->leases.n_leases = n;
    if (n > 0)
        coord_send(c, c->plan_peers[peer], m);
    else
        msg_free(m);
}

static void send_all_leases(struct coord *c, struct routes *r, bool changed_only)
{
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        if (coord_alive(c, i))
            send_leases(c, r, i, changed_only);
}

void coord_send_changed(struct coord *c)
{
    send_all_leases(c, &c->now, true);
    if (c->next_valid)
        send_all_leases(c, &c->next, true);
}

void coord_progress(struct coord *c)
{
    c->progress_at = c->now_ns;
    c->n_quiet = 0;
}

static void begin_step(struct coord *c)
{
    if (c->next_valid) {
        routes_done(&c->now);
        c->now = c->next;
        c->next = (struct routes){0};
        c->next_valid = false;
    } else {
        if (build_routes(c, c->version, &c->now) < 0) {
            coord_oom(c);
            return;
        }
        send_all_leases(c, &c->now, false);
    }
    memset(c->unit_done, 0, c->plan.n_units * sizeof *c->unit_done);
    for (uint32_t g = 0; g < c->groups.n; g++) {
        c->group[g].attempt = 0;
        c->group[g].complete = c->group[g].restart = false;
    }
    memset(c->eval_in, 0, (c->config.job->eval.microbatches + 1) * sizeof(bool));
    c->n_train_done = c->n_eval_done = 0;
    c->flagged = false;
    c->leases_sent_at = c->now_ns;
    coord_progress(c);
    if (c->version < c->config.stop_after) {
        if (build_routes(c, c->version + 1, &c->next) < 0) {
            coord_oom(c);
            return;
        }
        c->next_valid = true;
        send_all_leases(c, &c->next, false);
    }
    coord_try_finish(c); /* a last step without evaluation is done at once */
}

bool coord_alloc_run(struct coord *c)
{
    const struct job *job = c->config.job;

    c->losses = mem_calloc(c->config.model->M, sizeof *c->losses);
    c->eval_losses = mem_calloc(job->eval.microbatches + 1, sizeof *c->eval_losses);
    c->eval_in = mem_calloc(job->eval.microbatches + 1, sizeof *c->eval_in);
    c->gone = mem_calloc(c->plan.n_peers, sizeof *c->gone);
    c->unit_done = mem_calloc(c->plan.n_units, sizeof *c->unit_done);
    c->group_of = mem_calloc(c->config.model->n_tensors, sizeof *c->group_of);
    c->place_in_group = mem_calloc(c->config.model->n_tensors, sizeof *c->place_in_group);
    c->group = mem_calloc(c->groups.n, sizeof *c->group);
    if (!c->losses || !c->eval_losses || !c->eval_in || !c->gone || !c->unit_done || !c->group_of ||
        !c->place_in_group || !c->group)
        return false;
    for (uint32_t g = 0; g < c->groups.n; g++) {
        const struct plan_group *group = &c->groups.groups[g];

        c->group[g].reported = mem_calloc(group->n_members, sizeof(bool));
        c->group[g].sum_squares = mem_calloc(group->n_tensors, sizeof(double));
        if (!c->group[g].reported || !c->group[g].sum_squares)
            return false;
        for (uint32_t i = 0; i < group->n_tensors; i++) {
            c->group_of[group->tensors[i]] = g;
            c->place_in_group[group->tensors[i]] = i;
        }
    }
    return true;
}

void coord_begin_run(struct coord *c)
{
    if (!coord_alloc_run(c)) {
        coord_oom(c);
        return;
    }
    c->phase = COORD_RUN;
    c->first_version = c->version;
    c->committed_at = c->now_ns;
    begin_step(c);
}

void coord_on_done(struct coord *c, struct coord_peer *p, const struct msg_done *d)
{
    if (c->phase != COORD_RUN || d->epoch != c->plan.epoch || d->step != c->version || p->plan_peer == UINT32_MAX)
        return;
    struct route_lease *l = routes_find(&c->now, p->plan_peer, d->microbatch, d->mode, d->u0);
    bool last = d->u1 == c->plan.n_units;

    if (!l || l->done || l->info.u1 != d->u1)
        return;
    l->done = true;
    coord_progress(c);
    if (d->mode == MSG_MODE_EVAL) {
        if (last && !c->eval_in[d->microbatch]) {
            c->eval_losses[d->microbatch] = d->loss;
            c->eval_in[d->microbatch] = true;
            c->n_eval_done++;
        }
        coord_try_finish(c);
        return;
    }
    c->n_train_done++;
    c->flagged = c->flagged || d->flagged || (last && !isfinite(d->loss));
    if (last)
        c->losses[d->microbatch] = d->loss;
    for (uint32_t u = d->u0; u < d->u1; u++)
        c->unit_done[u]++;
    coord_start_reduces(c);
    coord_try_finish(c);
}

/* The global gradient norm: sums of squares in tensor order, whatever the plan (design 5). */
static double gradient_norm(const struct coord *c)
{
    double sum = 0;

    for (uint32_t t = 0; t < c->config.model->n_tensors; t++)
        sum += c->group[c->group_of[t]].sum_squares[c->place_in_group[t]];
    return sqrt(sum);
}

void coord_send_commit(struct coord *c, struct coord_peer *p)
{
    struct msg *m = coord_msg(c, MSG_COMMIT);

    if (!m)
        return;
    m->commit = c->last_commit;
    m->commit.groups = NULL;
    if (c->last_commit.n_groups) {
        m->commit.groups = mem_dup(c->last_commit.groups, c->last_commit.n_groups * sizeof *m->commit.groups);
        if (!m->commit.groups) {
            coord_oom(c);
            msg_free(m);
            return;
        }
    }
    coord_send(c, p, m);
}

/* Writes the commit of the present step into last_commit. */
static bool write_commit(struct coord *c, bool skipped)
{
    struct msg_commit *k = &c->last_commit;
    double sum = 0, norm = skipped ? NAN : gradient_norm(c);
    const struct job *job = c->config.job;

    skipped = skipped || !isfinite(norm);
    for (uint32_t m = 0; m < c->config.model->M; m++)
        sum += c->losses[m];
    mem_free(k->groups);
    *k = (struct msg_commit){.epoch = c->plan.epoch, .step = c->version, .skipped = skipped};
    k->loss = sum / (double)job_step_tokens(job);
    k->norm = skipped ? 0 : norm;
    if (!isfinite(k->loss))
        k->loss = 0; /* the commit is skipped; the wire carries finite numbers only */
    if (skipped)
        return true;
    k->update = optimizer_step(job, c->version, c->updates, norm);
    k->n_groups = c->groups.n;
    k->groups = mem_calloc(c->groups.n, sizeof *k->groups);
    for (uint32_t g = 0; k->groups && g < c->groups.n; g++) {
        k->groups[g].attempt = c->group[g].attempt;
        memcpy(k->groups[g].hash, c->group[g].hash, HASH_BYTES);
    }
    return k->groups != NULL;
}

static void note_step(struct coord *c)
{
    const struct msg_commit *k = &c->last_commit;

    c->seconds = (double)(c->now_ns - c->committed_at) / (double)NS_PER_S;
    c->tokens_per_s = (double)job_step_tokens(c->config.job) / c->seconds;
    coord_note(c, &(struct note){.kind = NOTE_STEP,
                                 .step = c->version,
                                 .steps_total = c->config.stop_after,
                                 .epoch = c->plan.epoch,
                                 .n_peers = coord_admitted(c),
                                 .skipped = k->skipped,
                                 .loss = k->loss,
                                 .norm = k->norm,
                                 .lr = (double)k->update.lr,
                                 .seconds = c->seconds,
                                 .tokens_per_s = c->tokens_per_s});
}

static void commit(struct coord *c, bool skipped)
{
    const struct job *job = c->config.job;
    bool named = !skipped && coord_next_due(c), joining, saving;

    if (!write_commit(c, skipped)) {
        coord_oom(c);
        return;
    }
    uint64_t version = c->version + 1;

    c->save_due = c->save_due || version == c->config.stop_after ||
                  (job->checkpoint.every > 0 && version % job->checkpoint.every == 0);
    named = named && !c->last_commit.skipped;
    joining = c->join_snapshot_due || (named && c->next_plan.joins);
    saving = c->save_due && c->saving.phase == SAVING_NONE && !named; /* who holds what is about to change */
    c->last_commit.next_epoch = named ? c->next_plan.plan.epoch : 0;
    c->last_commit.snapshot = saving || joining;
    if (joining)
        coord_take_join_snapshot(c, version);
    c->has_commit = true;
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        if (coord_alive(c, i))
            coord_send_commit(c, c->plan_peers[i]);
    if (named)
        coord_next_send(c);
    c->version = version;
    c->updates += !c->last_commit.skipped;
    if (!c->last_commit.skipped || c->last_commit.loss != 0)
        c->loss = c->last_commit.loss;
    note_step(c);
    c->committed_at = c->now_ns;
    if (saving) {
        c->save_due = false;
        coord_saving_snapshots_due(c, version);
    }
    if (named)
        coord_next_install(c);
    begin_step(c);
}

static void finish_eval(struct coord *c)
{
    const struct model *m = c->config.model;
    uint32_t n = c->config.job->eval.microbatches;
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += c->eval_losses[i];
    c->eval_loss = sum / ((double)n * m->B * m->n_ctx);
    coord_note(c,
               &(struct note){
                   .kind = NOTE_EVAL, .step = c->version, .steps_total = c->config.stop_after, .loss = c->eval_loss});
}

/* A skipped step has no reduce that would show that everybody is at it; a holder left behind would miss a commit. */
static bool all_at_step(const struct coord *c)
{
    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        if (c->plan_peers[i]->admitted && c->version > c->first_version && plan_counts(&c->plan, i) &&
            (c->plan_peers[i]->heartbeat.epoch != c->plan.epoch || c->plan_peers[i]->heartbeat.version < c->version))
            return false;
    return true;
}

void coord_try_finish(struct coord *c)
{
    bool eval = eval_due(c, c->version);

    if (c->phase != COORD_RUN || c->now.step != c->version ||
        (eval && c->n_eval_done < c->config.job->eval.microbatches) || c->n_train_done < c->now.n_train)
        return;
    if (c->version < c->config.stop_after) {
        for (uint32_t g = 0; g < c->groups.n && !c->flagged; g++)
            if (!c->group[g].complete)
                return;
        if (c->flagged && !all_at_step(c))
            return;
        if (!c->flagged && coord_next_wait(c))
            return;
        if (eval)
            finish_eval(c);
        commit(c, c->flagged);
        return;
    }
    if (eval)
        finish_eval(c);
    coord_end(c, 0, NULL);
}

void coord_resend_commit(struct coord *c)
{
    for (uint32_t i = 0; i < c->plan.n_peers; i++) {
        struct coord_peer *p = c->plan_peers[i];

        if (!c->has_commit || !p->admitted || p->heartbeat.version >= c->version ||
            (p->heartbeat.epoch != c->plan.epoch && p->heartbeat.epoch != c->last_commit.epoch) ||
            c->now_ns - c->committed_at <= COORD_RESEND_NS || c->now_ns - p->told_at <= COORD_RESEND_NS)
            continue;
        p->told_at = c->now_ns;
        coord_send_commit(c, p);
    }
}

static bool has_leases(const struct routes *r, uint32_t peer)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->leases[i].peer == peer)
            return true;
    return false;
}

/* Leases again to who says that it has none, and to all when nothing was heard for a while, then for twice as long (a
 * microbatch may take its time), and so on: who did its work already says so again. */
static void resend_leases(struct coord *c)
{
    int64_t since = c->progress_at > c->leases_sent_at ? c->progress_at : c->leases_sent_at;
    bool quiet = c->now_ns - since > 2 * COORD_RESEND_NS << c->n_quiet;

    if (quiet) {
        c->leases_sent_at = c->now_ns;
        c->n_quiet += c->n_quiet < QUIET_MAX;
    }
    for (uint32_t i = 0; i < c->plan.n_peers; i++) {
        struct coord_peer *p = c->plan_peers[i];
        bool lacks = p->heartbeat.version == c->version && p->heartbeat.step_leases < c->now.step + 1 &&
                     c->now_ns - c->committed_at > COORD_RESEND_NS && c->now_ns - p->told_at > COORD_RESEND_NS &&
                     has_leases(&c->now, i);

        if ((!quiet && !lacks) || !p->admitted)
            continue;
        p->told_at = c->now_ns;
        send_leases(c, &c->now, i, false);
        if (c->next_valid)
            send_leases(c, &c->next, i, false);
    }
}

/* A device that hangs behind a live process would hold the run up for ever: nothing of the step done for this long ends
 * it. */
static void check_standstill(struct coord *c)
{
    int64_t limit = STANDSTILL_NS + (int64_t)(STANDSTILL_STEPS * c->plan.predicted_seconds * NS_PER_S);
    const struct coord_peer *owes = NULL;
    struct reason why = {0};
    char id[KEY_SHORT_LEN + 1];

    if (c->now_ns - c->progress_at < limit)
        return;
    for (uint32_t i = 0; i < c->now.n && !owes; i++)
        if (!c->now.leases[i].done)
            owes = c->plan_peers[c->now.leases[i].peer];
    for (uint32_t g = 0; g < c->groups.n && !owes; g++)
        for (uint32_t i = 0; i < c->groups.groups[g].n_members && !owes; i++)
            if (!c->group[g].reported[i] && !c->groups.groups[g].joining[i] &&
                coord_alive(c, c->groups.groups[g].members[i]))
                owes = c->plan_peers[c->groups.groups[g].members[i]];
    if (!owes)
        return;
    key_short(&owes->join.key, id);
    coord_end(c,
              reason_set(&why, -E_PEER, "nothing of step %" PRIu64 " got done for %d s: peer %s (%s) owes its part",
                         c->version, (int)(limit / NS_PER_S), id, owes->join.name),
              &why);
}

void coord_resend_step(struct coord *c)
{
    check_standstill(c);
    if (c->phase != COORD_RUN)
        return;
    coord_resend_commit(c);
    resend_leases(c);
    coord_resend_reduces(c);
}
