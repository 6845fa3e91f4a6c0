/* The worker against a coordinator and a device played by the test, for what whole runs seldom meet. The runs
 * themselves are in tests/sim. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "crypto/key.h"
#include "peer/worker.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define TERM 3

struct rig {
    struct model *model;
    struct key coordinator, self, other;
    struct worker *worker;
    struct worker_update update;
    int64_t now;
    struct plan plan;
};

static void open_rig(struct rig *r, const char *plan)
{
    struct job job = {
        .model = {.arch = JOB_ARCH_GPT2, .n_layer = 1, .n_head = 1, .n_embd = 4, .n_ctx = 2, .n_vocab = 8},
        .train = {.steps = 4, .microbatches = 2, .sequences = 1}};

    *r = (struct rig){.coordinator = {{1}}, .self = {{2}}, .other = {{3}}, .now = NS_PER_S};
    assert_int_equal(model_new(&job, &r->model, NULL), 0);
    assert_int_equal(worker_new(&(struct worker_config){r->model, true, r->self, r->coordinator}, &r->worker), 0);
    assert_int_equal(plan_parse(plan, r->model->n_units, &r->plan, NULL), 0);
    r->plan.epoch = 1;
    r->plan.peers[0].key = r->self;
    if (r->plan.n_peers > 1)
        r->plan.peers[1].key = r->other;
}

static void close_rig(struct rig *r)
{
    worker_free(r->worker);
    effects_done(&r->update.fx);
    plan_done(&r->plan);
    model_free(r->model);
}

/* Frees what the last step wanted sent; tasks stay for take_task. */
static void drop_sends(struct rig *r)
{
    for (uint32_t i = 0; i < r->update.fx.n_sends; i++)
        msg_free(r->update.fx.sends[i].msg);
    r->update.fx.n_sends = 0;
}

static uint32_t count_sent(const struct rig *r, enum msg_type type)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->update.fx.n_sends; i++)
        n += r->update.fx.sends[i].msg->type == type;
    return n;
}

static void say(struct rig *r, const struct key *from, struct msg *m)
{
    worker_step(r->worker, &(struct worker_event){.kind = WORKER_MESSAGE, .now = r->now, .from = *from, .msg = m},
                &r->update);
}

static void tick(struct rig *r, int64_t later)
{
    r->now += later;
    worker_step(r->worker, &(struct worker_event){.kind = WORKER_TICK, .now = r->now}, &r->update);
}

static struct task *take_task(struct rig *r, enum task_kind kind)
{
    assert_true(r->update.fx.n_tasks > 0);
    struct task *t = r->update.fx.tasks[0];

    assert_string_equal(task_name(t->kind), task_name(kind));
    memmove(r->update.fx.tasks, r->update.fx.tasks + 1, --r->update.fx.n_tasks * sizeof(struct task *));
    return t;
}

static void done(struct rig *r, struct task *t)
{
    worker_step(r->worker, &(struct worker_event){.kind = WORKER_TASK_DONE, .now = r->now, .task = t}, &r->update);
}

static struct msg *plan_message(const struct rig *r)
{
    struct msg *m = msg_new(MSG_PLAN, TERM);

    assert_int_equal(plan_copy(&r->plan, &m->plan.plan), 0);
    return m;
}

static void make_ready(struct rig *r)
{
    say(r, &r->coordinator, plan_message(r));
    done(r, take_task(r, TASK_SETUP));
    assert_int_equal(count_sent(r, MSG_READY), 1);
    drop_sends(r);
}

static struct msg *skip_commit(uint64_t step)
{
    struct msg *m = msg_new(MSG_COMMIT, TERM);

    m->commit.epoch = 1;
    m->commit.step = step;
    m->commit.skipped = true;
    return m;
}

static uint64_t version(const struct rig *r)
{
    struct worker_stats s;

    worker_stats(r->worker, &s);
    return s.version;
}

static void a_plan_told_again_during_a_commit_changes_nothing(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "units 0-2: 0\n");
    make_ready(&r);
    say(&r, &r.coordinator, skip_commit(0));
    say(&r, &r.coordinator, plan_message(&r));
    assert_int_equal(count_sent(&r, MSG_READY), 1); /* the first one may be lost */
    done(&r, take_task(&r, TASK_APPLY));
    assert_int_equal(version(&r), 1);
    assert_int_equal(r.update.fx.n_tasks, 0);
    close_rig(&r);
}

static void a_commit_is_applied_once_and_in_order(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "units 0-2: 0\n");
    make_ready(&r);
    say(&r, &r.coordinator, skip_commit(1)); /* before its turn: held */
    assert_int_equal(r.update.fx.n_tasks, 0);
    say(&r, &r.coordinator, skip_commit(0));
    say(&r, &r.coordinator, skip_commit(0));
    struct task *t = take_task(&r, TASK_APPLY);

    assert_int_equal(t->step, 0);
    assert_int_equal(r.update.fx.n_tasks, 0);
    done(&r, t);
    t = take_task(&r, TASK_APPLY);
    assert_int_equal(t->step, 1);
    done(&r, t);
    assert_int_equal(version(&r), 2);
    say(&r, &r.coordinator, skip_commit(0));
    assert_int_equal(r.update.fx.n_tasks, 0);
    close_rig(&r);
}

static void a_commit_from_a_peer_is_dropped(void **state)
{
    (void)state;
    struct rig r;
    struct worker_stats s;

    open_rig(&r, "units 0-2: 0 1\n");
    make_ready(&r);
    say(&r, &r.other, skip_commit(0));
    assert_int_equal(r.update.fx.n_tasks, 0);
    worker_stats(r.worker, &s);
    assert_int_equal(s.dropped, 1);
    close_rig(&r);
}

static void a_message_of_another_term_is_dropped(void **state)
{
    (void)state;
    struct rig r;
    struct msg *m = skip_commit(0);

    open_rig(&r, "units 0-2: 0\n");
    make_ready(&r);
    m->term = TERM - 1;
    say(&r, &r.coordinator, m);
    assert_int_equal(r.update.fx.n_tasks, 0);
    close_rig(&r);
}

/* The second holder of a pipeline waits for an activation. */
static void wait_for_activation(struct rig *r)
{
    struct msg *m = msg_new(MSG_LEASES, TERM);
    size_t size = (size_t)r->model->B * r->model->n_ctx * sizeof(int32_t);

    m->leases.epoch = 1;
    m->leases.n_leases = 1;
    m->leases.leases = mem_calloc(1, sizeof *m->leases.leases);
    m->leases.leases[0] =
        (struct msg_lease){.microbatch = 0, .mode = MSG_MODE_TRAIN, .u0 = 1, .u1 = 3, .prev = 1, .next = MSG_NO_PEER};
    assert_int_equal(blob_new(size, &m->body), 0);
    memset(m->body->data, 0, size);
    say(r, &r->coordinator, m);
}

static uint32_t needs_within(struct rig *r, int seconds)
{
    uint32_t n = 0;

    for (int i = 0; i < seconds * 10; i++) {
        tick(r, 100 * NS_PER_MS);
        n += count_sent(r, MSG_NEED);
        drop_sends(r);
    }
    return n;
}

/* A tensor may be queued on a slow link: asking every second would only make the queue longer. */
static void requests_for_a_tensor_wait_longer_each_time(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "units 0-0: 1\nunits 1-2: 0\n");
    make_ready(&r);
    wait_for_activation(&r);
    assert_int_equal(needs_within(&r, 60), 5);   /* after 1, 3, 7, 15, 31 s */
    assert_in_range(needs_within(&r, 64), 1, 2); /* and on */
    close_rig(&r);
}

static void nobody_asks_while_tensors_keep_coming(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "units 0-0: 1\nunits 1-2: 0\n");
    make_ready(&r);
    wait_for_activation(&r);
    for (int i = 0; i < 20; i++) {
        struct msg *m = msg_new(MSG_BOUNDARY, TERM); /* of another microbatch */

        m->boundary.key = (struct msg_boundary_key){1, 0, 1, MSG_MODE_TRAIN, 1, MSG_FORWARD};
        m->boundary.n = m->boundary.total = (uint64_t)model_boundary_elems(r.model);
        assert_int_equal(blob_new(m->boundary.n * sizeof(float), &m->body), 0);
        memset(m->body->data, 0, m->body->size);
        say(&r, &r.other, m);
        tick(&r, 900 * NS_PER_MS);
        assert_int_equal(count_sent(&r, MSG_NEED), 0);
        drop_sends(&r);
    }
    close_rig(&r);
}

static void a_failed_task_is_said_and_ends_the_worker(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "units 0-2: 0\n");
    say(&r, &r.coordinator, plan_message(&r));
    struct task *t = take_task(&r, TASK_SETUP);

    t->status = reason_set(&t->why, -E_NOMEM, "no room for 12 units");
    done(&r, t);
    assert_true(r.update.over);
    assert_int_equal(r.update.status, -E_NOMEM);
    assert_int_equal(count_sent(&r, MSG_LEAVE), 1);
    assert_non_null(strstr(r.update.why.text, "no room for 12 units"));
    close_rig(&r);
}

static struct msg *lease_message(uint64_t term, uint32_t n_tokens)
{
    struct msg *m = msg_new(MSG_LEASES, term);

    m->leases.epoch = 1;
    m->leases.loss_scale = 1;
    m->leases.n_leases = 1;
    m->leases.leases = mem_calloc(1, sizeof *m->leases.leases);
    m->leases.leases[0] = (struct msg_lease){.u1 = 2, .prev = MSG_NO_PEER, .next = 1};
    assert_int_equal(blob_new(n_tokens * sizeof(int32_t), &m->body), 0);
    memset(m->body->data, 0, m->body->size);
    return m;
}

/* A coordinator that was started again: the step under way is void, and what the device still does of it counts for
 * nothing; the same lease of the new term is run from its beginning. */
static void a_new_term_voids_the_step_under_way(void **state)
{
    (void)state;
    struct rig r;
    struct msg *view = msg_new(MSG_VIEW, TERM + 1);

    open_rig(&r, "units 0-1: 0\nunits 2-2: 1\n");
    make_ready(&r);
    say(&r, &r.coordinator, lease_message(TERM, 2));
    struct task *old = take_task(&r, TASK_FORWARD);

    drop_sends(&r);
    view->view.number = 9;
    say(&r, &r.coordinator, view);
    task_free(take_task(&r, TASK_FORGET));
    assert_int_equal(count_sent(&r, MSG_HEARTBEAT), 1);
    assert_int_equal(r.update.fx.sends[0].msg->term, TERM + 1);
    assert_int_equal(r.update.fx.sends[0].msg->heartbeat.epoch, 1);
    assert_int_equal(r.update.fx.sends[0].msg->heartbeat.step_leases, 0);
    say(&r, &r.coordinator, lease_message(TERM, 2)); /* an old one, late */
    assert_int_equal(r.update.fx.n_tasks, 0);
    say(&r, &r.coordinator, lease_message(TERM + 1, 2));
    assert_int_equal(r.update.fx.n_tasks, 0); /* the device is still at the old one */
    drop_sends(&r);
    assert_int_equal(blob_new(2 * 4 * sizeof(float), &old->out), 0);
    memset(old->out->data, 0, old->out->size);
    done(&r, old);
    assert_int_equal(count_sent(&r, MSG_BOUNDARY), 0);
    struct task *again = take_task(&r, TASK_FORWARD);

    assert_int_equal(again->term, TERM + 1);
    task_free(again);
    drop_sends(&r);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_told_again_during_a_commit_changes_nothing),
        cmocka_unit_test(a_commit_is_applied_once_and_in_order),
        cmocka_unit_test(a_commit_from_a_peer_is_dropped),
        cmocka_unit_test(a_message_of_another_term_is_dropped),
        cmocka_unit_test(requests_for_a_tensor_wait_longer_each_time),
        cmocka_unit_test(nobody_asks_while_tensors_keep_coming),
        cmocka_unit_test(a_new_term_voids_the_step_under_way),
        cmocka_unit_test(a_failed_task_is_said_and_ends_the_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
