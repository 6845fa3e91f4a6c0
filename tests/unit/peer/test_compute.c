/* The compute thread: that it trains, with which bits, and how tasks go in and out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <poll.h>
#include <string.h>

#include "peer/compute_impl.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "tests/unit/peer/fleet.h"

#define STEPS   3
#define TENSORS 64
#define ALONE   "units 0-3: 0\n"

typedef uint8_t digests[TENSORS][HASH_BYTES];

/* STEPS steps of that fleet from the seed. */
static void train(enum job_reduction reduction, const char *plan, int n_threads, digests ret)
{
    struct fleet f;

    fleet_open(&f, reduction, plan, n_threads);
    assert_true(f.model->n_tensors <= TENSORS && f.model->n_units == 4);
    memset(ret, 0, sizeof(digests));
    fleet_setup(&f, false);
    for (int i = 0; i < STEPS; i++)
        fleet_step(&f);
    fleet_digests(&f, ret);
    fleet_close(&f);
}

static void one_peer_learns(void **state)
{
    struct fleet f;
    double first = 0, last = 0;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    for (int i = 0; i < 40; i++) {
        last = fleet_step(&f);
        if (i == 0)
            first = last;
    }
    assert_true(fabs(first - log(17)) < 0.1);
    assert_true(last < 0.5 * first);
    fleet_close(&f);
}

static void the_bits_depend_neither_on_cuts_nor_on_replicas_nor_on_threads(void **state)
{
    static const char *const plans[] = {
        ALONE,
        "units 0: 0\nunits 1-3: 1\n",
        "units 0-1: 0\nunits 2-3: 1\n",
        "units 0-2: 0\nunits 3: 1\n",
        "units 0-3: 0 1\n",
        "units 0: 0\nunits 1-2: 1\nunits 3: 0\n",
        "units 0-1: 0 1\nunits 2: 2\nunits 3: 2 3\n",
        "units 0: 0\nunits 1: 0 1\nunits 2: 1 2\nunits 3: 3\n",
    };
    digests want, got;

    (void)state;
    train(JOB_REDUCTION_EXACT, ALONE, 1, want);
    for (int n_threads = 1; n_threads <= 2; n_threads++)
        for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
            train(JOB_REDUCTION_EXACT, plans[i], n_threads, got);
            if (memcmp(want, got, sizeof(digests)) != 0)
                fail_msg("other bits with %d threads and the plan %s", n_threads, plans[i]);
        }
}

static void replicas_agree_and_runs_repeat_in_fast_reduction(void **state)
{
    digests first, second;

    (void)state;
    train(JOB_REDUCTION_FAST, "units 0-1: 0 1 2\nunits 2-3: 1 2\n", 1, first); /* fleet_digests compares replicas */
    train(JOB_REDUCTION_FAST, "units 0-1: 0 1 2\nunits 2-3: 1 2\n", 1, second);
    assert_memory_equal(first, second, sizeof(digests));
}

/* The CPU as if it were a device of its own memory: every copy must say truly which side is which. */
static struct {
    struct kern_backend backend;
    const struct kern_backend *cpu;
    struct {
        const char *mem;
        size_t n_bytes;
    } blocks[1024];
    size_t n_blocks, n_copies;
    int64_t allocs_left; /* before one fails; negative: none does */
} apart;

static bool apart_owns(const void *p, size_t n_bytes)
{
    for (size_t i = 0; i < apart.n_blocks; i++)
        if ((const char *)p >= apart.blocks[i].mem &&
            (const char *)p + n_bytes <= apart.blocks[i].mem + apart.blocks[i].n_bytes)
            return true;
    return false;
}

static int apart_alloc(struct kern_ctx *x, size_t n_bytes, void **ret)
{
    if (apart.allocs_left >= 0 && apart.allocs_left-- == 0)
        return -E_NOMEM;
    int r = apart.cpu->alloc(x, n_bytes, ret);

    assert_true(r == 0 && apart.n_blocks < 1024);
    apart.blocks[apart.n_blocks].mem = *ret;
    apart.blocks[apart.n_blocks++].n_bytes = n_bytes;
    return r;
}

static void apart_free(struct kern_ctx *x, void *mem)
{
    for (size_t i = 0; i < apart.n_blocks; i++)
        if (apart.blocks[i].mem == mem) {
            apart.blocks[i] = apart.blocks[--apart.n_blocks];
            apart.cpu->free(x, mem);
            return;
        }
    assert_null(mem);
}

static int apart_copy(struct kern_ctx *x, void *dst, const void *src, size_t n_bytes, enum kern_copy direction)
{
    apart.n_copies++;
    assert_true(apart_owns(dst, n_bytes) == (direction != KERN_DEVICE_TO_HOST));
    assert_true(apart_owns(src, n_bytes) == (direction != KERN_HOST_TO_DEVICE));
    return apart.cpu->copy(x, dst, src, n_bytes, direction);
}

/* Gives c such a device, before it has anything in its memory. */
static void set_apart(struct compute *c)
{
    apart.cpu = c->kern.backend;
    apart.backend = *apart.cpu;
    apart.backend.host_memory = 0;
    apart.backend.alloc = apart_alloc;
    apart.backend.free = apart_free;
    apart.backend.copy = apart_copy;
    apart.allocs_left = -1;
    apart.n_copies = 0;
    c->kern.backend = &apart.backend;
}

static void a_device_with_memory_of_its_own_gives_the_same_bits(void **state)
{
    struct fleet f;
    digests want, got = {{0}};

    (void)state;
    train(JOB_REDUCTION_EXACT, ALONE, 1, want);
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 0 1\n", 1);
    set_apart(f.computes[0]);
    fleet_setup(&f, false);
    for (int i = 0; i < STEPS; i++)
        fleet_step(&f);
    fleet_digests(&f, got);
    assert_memory_equal(want, got, sizeof(digests));
    assert_true(apart.n_copies > 0);
    fleet_close(&f);
    assert_int_equal(apart.n_blocks, 0);
}

static void a_plan_that_does_not_fit_the_memory_is_refused_whole(void **state)
{
    struct fleet f;
    int64_t n_refused = 0;
    int status;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    set_apart(f.computes[0]);
    do {
        apart.allocs_left = n_refused;
        struct task *t = fleet_run(f.computes[0], fleet_setup_task(&f, 0, false));

        status = t->status;
        task_free(t);
        if (status != 0) {
            assert_int_equal(status, -E_NOMEM);
            assert_int_equal(apart.n_blocks, 0);
            fleet_refused(f.computes[0], fleet_forward(&f, 0, 0, 4, NULL), -E_INVAL);
            n_refused++;
        }
    } while (status != 0);
    assert_true(n_refused > f.model->n_tensors); /* each block in turn */
    apart.allocs_left = -1;
    fleet_step(&f);
    fleet_close(&f);
}

static struct blob *misaligned(struct blob *b)
{
    struct blob *wide, *ret;

    assert_int_equal(blob_new(b->size + 1, &wide), 0);
    memcpy((char *)wide->data + 1, b->data, b->size);
    assert_int_equal(blob_slice(wide, 1, b->size, &ret), 0);
    blob_unref(wide);
    blob_unref(b);
    return ret;
}

static void arrays_may_lie_at_any_address(void **state)
{
    struct fleet f;
    struct task *t, *plain;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    const int64_t n = model_boundary_elems(f.model);

    for (int odd = 0; odd < 2; odd++) {
        t = fleet_forward(&f, 0, 0, 3, NULL);
        if (odd)
            t->tokens = misaligned(t->tokens);
        fleet_do(f.computes[0], t);
        struct blob *gradient = fleet_floats(n, 1e-3f);

        task_free(fleet_do(f.computes[0], fleet_backward(&f, 0, 0, 3, odd ? misaligned(gradient) : gradient)));
        if (odd) {
            assert_memory_equal(t->out->data, plain->out->data, t->out->size);
            task_free(t);
            task_free(plain);
        } else {
            plain = t;
        }
    }
    /* Both backwards added the same: a sum of a misaligned part is twice the local one. */
    struct task *part = fleet_do(f.computes[0], fleet_range(TASK_PARTIAL, 0, 3, 100));
    struct task *sum = fleet_range(TASK_SUM, 0, 3, 100);

    sum->parts = mem_calloc(1, sizeof *sum->parts);
    sum->parts[sum->n_parts++] = misaligned(TAKE_PTR(part->out));
    task_free(part);
    struct task *once = fleet_do(f.computes[0], sum);

    sum = fleet_range(TASK_SUM, 0, 3, 100);
    sum->contributes = true;
    fleet_do(f.computes[0], sum);
    assert_memory_equal(sum->out->data, once->out->data, sum->out->size);
    task_free(sum);
    task_free(once);
    fleet_close(&f);
}

static void a_skipped_step_changes_nothing_and_forgets_the_sums(void **state)
{
    struct fleet f;
    digests before, after;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    fleet_digests(&f, before);
    task_free(fleet_do(f.computes[0], fleet_forward(&f, 0, 0, 4, NULL)));
    task_free(fleet_do(f.computes[0], fleet_backward(&f, 0, 0, 4, NULL)));
    struct task *t = task_new(TASK_APPLY);

    t->skipped = true;
    task_free(fleet_do(f.computes[0], t));
    fleet_digests(&f, after);
    assert_memory_equal(before, after, f.model->n_tensors * HASH_BYTES);
    t = fleet_do(f.computes[0], fleet_range(TASK_PARTIAL, 0, 0, (uint64_t)f.groups.groups[0].n_elems));
    for (size_t i = 0; i < t->out->size / sizeof(int64_t); i++)
        assert_true(((int64_t *)t->out->data)[i] == 0);
    task_free(t);
    fleet_close(&f);
}

static void a_gradient_that_is_not_finite_is_flagged(void **state)
{
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    const int64_t n = model_boundary_elems(f.model);

    for (int bad = 0; bad < 2; bad++) {
        struct blob *gradient = fleet_floats(n, 1e-3f);

        if (bad)
            ((float *)gradient->data)[5] = NAN;
        task_free(fleet_do(f.computes[0], fleet_forward(&f, 0, 0, 3, NULL)));
        struct task *t = fleet_do(f.computes[0], fleet_backward(&f, 0, 0, 3, gradient));

        assert_int_equal(t->flagged, bad);
        task_free(t);
    }
    fleet_close(&f);
}

static void an_evaluation_has_the_loss_of_a_forward_and_keeps_nothing(void **state)
{
    struct fleet f;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    struct task *eval = fleet_forward(&f, 0, 0, 4, NULL);

    eval->train = false;
    eval->slot = TASK_NO_SLOT;
    fleet_do(f.computes[0], eval);
    fleet_refused(f.computes[0], fleet_backward(&f, 0, 0, 4, NULL), -E_INVAL);
    struct task *t = fleet_do(f.computes[0], fleet_forward(&f, 0, 0, 4, NULL));

    assert_true(t->loss == eval->loss && t->loss > 0);
    task_free(eval);
    task_free(t);
    fleet_close(&f);
}

static void runs_that_do_not_fit_the_model_or_the_plan_are_refused(void **state)
{
    struct fleet f;
    struct task *t;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, "units 0-1: 0\nunits 2-3: 1\n", 1);
    fleet_refused(f.computes[0], fleet_forward(&f, 0, 0, 2, NULL), -E_INVAL); /* no plan yet */
    fleet_setup(&f, false);
    struct compute *first = f.computes[0], *second = f.computes[1];
    const int64_t n = model_boundary_elems(f.model);

    fleet_refused(first, fleet_forward(&f, 0, 0, 3, NULL), -E_PROTO); /* not held */
    fleet_refused(first, fleet_forward(&f, 0, 1, 1, NULL), -E_PROTO);
    fleet_refused(second, fleet_forward(&f, 0, 3, 5, fleet_floats(n, 0)), -E_PROTO);
    fleet_refused(second, fleet_forward(&f, 0, 2, 4, NULL), -E_PROTO);
    fleet_refused(second, fleet_forward(&f, 0, 2, 4, fleet_floats(n - 1, 0)), -E_PROTO);
    for (int i = 0; i < 4; i++) {
        t = fleet_forward(&f, 0, 0, 2, NULL);
        ((int32_t *)t->tokens->data)[3] = i < 2 ? -1 : 17;
        fleet_refused(first, t, -E_PROTO);
        t = fleet_forward(&f, 0, 2, 4, fleet_floats(n, 0));
        ((int32_t *)t->targets->data)[11] = i < 2 ? INT32_MIN : 17;
        fleet_refused(second, t, -E_PROTO);
    }
    t = fleet_forward(&f, 0, 0, 2, NULL);
    t->tokens->size -= 4;
    fleet_refused(first, t, -E_PROTO);
    t = fleet_forward(&f, 0, 2, 4, fleet_floats(n, 0));
    t->targets = blob_unref(t->targets);
    fleet_refused(second, t, -E_PROTO);

    fleet_refused(first, fleet_backward(&f, 0, 0, 2, fleet_floats(n, 0)), -E_INVAL); /* no forward */
    task_free(fleet_do(first, fleet_forward(&f, 0, 0, 2, NULL)));
    fleet_refused(first, fleet_backward(&f, 0, 0, 2, fleet_floats(n + 1, 0)), -E_PROTO);
    fleet_refused(first, fleet_backward(&f, 0, 0, 2, NULL), -E_PROTO);
    fleet_refused(first, fleet_backward(&f, 0, 1, 2, fleet_floats(n, 0)), -E_INVAL); /* another span */
    task_free(fleet_do(first, fleet_backward(&f, 0, 0, 2, fleet_floats(n, 0))));     /* refusals left it alone */
    fleet_close(&f);
}

static bool readable(const struct compute *c, int timeout_ms)
{
    struct pollfd p = {.fd = compute_fd(c), .events = POLLIN};

    return poll(&p, 1, timeout_ms) == 1;
}

static void tasks_come_out_in_order_and_the_descriptor_tells(void **state)
{
    struct fleet f;
    struct task *tasks[20];

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    fleet_setup(&f, false);
    struct compute *c = f.computes[0];

    assert_null(compute_take(c));
    assert_false(readable(c, 0));
    for (int i = 0; i < 20; i++) {
        tasks[i] = i % 2 ? task_new(TASK_SNAPSHOT) : fleet_forward(&f, 0, 0, 4, NULL);
        compute_submit(c, tasks[i]);
    }
    for (int i = 0; i < 20; i++) {
        assert_true(readable(c, -1));
        assert_ptr_equal(compute_take(c), tasks[i]);
        task_free(tasks[i]);
    }
    assert_null(compute_take(c));
    assert_false(readable(c, 0));
    /* What is under way or waits when the compute goes is dropped: leaks are the sanitizer's to find. */
    for (int i = 0; i < 20; i++)
        compute_submit(c, fleet_forward(&f, 0, 0, 4, NULL));
    fleet_close(&f);
}

static void a_throttled_compute_rests_in_proportion(void **state)
{
    struct fleet f;
    struct reason why = {0};

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    compute_free(f.computes[0]);
    const struct compute_config config = {
        .model = f.model, .reduction = JOB_REDUCTION_EXACT, .device = "cpu:0", .n_threads = 1, .speed = 0.1};

    assert_int_equal(compute_new(&config, &f.computes[0], &why), 0);
    const int64_t begin = clock_now_ns();
    int64_t busy_ns = 0;

    fleet_setup(&f, false);
    for (int i = 0; i < 200; i++) {
        struct task *t = fleet_do(f.computes[0], fleet_forward(&f, 0, 0, 4, NULL));

        busy_ns += t->busy_ns;
        task_free(t);
    }
    /* Ten times as long, but for a rest too short to be taken yet. */
    assert_true(clock_now_ns() - begin >= 10 * busy_ns - 2 * NS_PER_MS);
    fleet_close(&f);
}

static void profiling_times_every_unit_and_leaves_nothing_behind(void **state)
{
    struct fleet f;
    struct reason why = {0};
    double forward[4] = {0}, backward[4] = {0};
    digests want, got = {{0}};

    (void)state;
    train(JOB_REDUCTION_EXACT, ALONE, 1, want);
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    assert_int_equal(compute_profile(f.computes[0], 20 * NS_PER_MS, forward, backward, &why), 0);
    for (int u = 0; u < 4; u++)
        assert_true(forward[u] > 0 && forward[u] < 1 && backward[u] > 0 && backward[u] < 1);
    assert_true(forward[1] == forward[2] && backward[1] == backward[2]);
    fleet_setup(&f, false);
    for (int i = 0; i < STEPS; i++)
        fleet_step(&f);
    fleet_digests(&f, got);
    assert_memory_equal(want, got, sizeof(digests));
    fleet_close(&f);
}

static void a_compute_says_what_device_it_has(void **state)
{
    struct fleet f;
    struct reason why = {0};
    struct compute *c;

    (void)state;
    fleet_open(&f, JOB_REDUCTION_EXACT, ALONE, 1);
    assert_string_not_equal(compute_device(f.computes[0])->name, "");
    assert_int_equal(strspn(compute_fingerprint(f.computes[0]), "0123456789abcdef"), 16);
    const struct compute_config config = {.model = f.model, .device = "abacus", .n_threads = 1, .speed = 1};

    assert_int_equal(compute_new(&config, &c, &why), -E_NODEV);
    assert_non_null(strstr(why.text, "abacus"));
    fleet_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_peer_learns),
        cmocka_unit_test(the_bits_depend_neither_on_cuts_nor_on_replicas_nor_on_threads),
        cmocka_unit_test(replicas_agree_and_runs_repeat_in_fast_reduction),
        cmocka_unit_test(a_device_with_memory_of_its_own_gives_the_same_bits),
        cmocka_unit_test(a_plan_that_does_not_fit_the_memory_is_refused_whole),
        cmocka_unit_test(arrays_may_lie_at_any_address),
        cmocka_unit_test(a_skipped_step_changes_nothing_and_forgets_the_sums),
        cmocka_unit_test(a_gradient_that_is_not_finite_is_flagged),
        cmocka_unit_test(an_evaluation_has_the_loss_of_a_forward_and_keeps_nothing),
        cmocka_unit_test(runs_that_do_not_fit_the_model_or_the_plan_are_refused),
        cmocka_unit_test(tasks_come_out_in_order_and_the_descriptor_tells),
        cmocka_unit_test(a_throttled_compute_rests_in_proportion),
        cmocka_unit_test(profiling_times_every_unit_and_leaves_nothing_behind),
        cmocka_unit_test(a_compute_says_what_device_it_has),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
