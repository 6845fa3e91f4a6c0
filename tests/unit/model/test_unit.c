/* Running units: gradients against loss differences, bits that depend neither on the cut nor on the threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "runtime/base/rng.h"
#include "tests/unit/model/rig.h"
#include "tests/unit/model/tiny.h"

/* Parameters large enough for every path to matter, and tokens; the same for every rig. */
static void fill(struct rig *r)
{
    const uint64_t tokens = rng_key(1, "tokens"), targets = rng_key(1, "targets");

    for (uint32_t t = 0; t < r->m->n_tensors; t++) {
        const uint64_t key = rng_key(1, r->m->tensors[t].name);

        for (int64_t i = 0; params_holds(r->p, t) && i < r->m->tensors[t].n; i++)
            params_part(r->p, t, PARAMS_VALUE)[i] = r->m->tensors[t].init_mean + 0.3f * rng_normal_at(key, (uint64_t)i);
    }
    for (uint32_t i = 0; i < r->m->B * r->m->n_ctx; i++) {
        r->tokens[i] = (int32_t)(rng_at(tokens, i) % r->m->n_vocab);
        r->targets[i] = (int32_t)(rng_at(targets, i) % r->m->n_vocab);
    }
}

static struct rig *fast_rig(void)
{
    struct job job = tiny_job();
    struct rig *r;

    job.reduction = JOB_REDUCTION_FAST; /* sums of one microbatch are its gradient */
    r = rig_new(&job, 1, 0, 4);
    fill(r);
    return r;
}

/* The slope of the loss along direction d (of length 1) in tensor t. */
static double slope(struct rig *r, uint32_t t, const double *d)
{
    const double h = 2e-2;
    float *p = params_part(r->p, t, PARAMS_VALUE);
    const size_t n = (size_t)r->m->tensors[t].n;
    float *kept = mem_dup(p, n * sizeof(float));
    double loss[2];

    assert_non_null(kept);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            p[i] = (float)((double)kept[i] + (side ? h : -h) * d[i]);
        loss[side] = rig_forward(r);
    }
    memcpy(p, kept, n * sizeof(float));
    mem_free(kept);
    return (loss[1] - loss[0]) / (2 * h);
}

static void assert_slope(struct rig *r, uint32_t t, const double *d, const double *g, double norm, const char *what)
{
    const double actual = slope(r, t, d);
    double expected = 0.0;

    for (int64_t i = 0; i < r->m->tensors[t].n; i++)
        expected += g[i] * d[i];
    if (!(fabs(actual - expected) <= 1e-3 * norm + 2e-3 * fabs(expected) + 2e-3))
        fail_msg("%s %s: slope %g, gradient says %g (norm %g)", r->m->tensors[t].name, what, actual, expected, norm);
}

static void check_tensor(struct rig *r, uint32_t t)
{
    const size_t n = (size_t)r->m->tensors[t].n;
    double *g = mem_calloc(n, sizeof(*g)), *d = mem_calloc(n, sizeof(*d)), norm = 0.0;
    size_t largest = 0;

    assert_true(g && d);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t use = 0; use < r->m->tensors[t].n_uses; use++)
            g[i] += (double)((const float *)params_sum(r->p, t, use))[i];
        norm += g[i] * g[i];
        largest = fabs(g[i]) > fabs(g[largest]) ? i : largest;
    }
    norm = sqrt(norm);
    assert_true(norm > 1e-3);
    for (size_t i = 0; i < n; i++)
        d[i] = g[i] / norm;
    assert_slope(r, t, d, g, norm, "along the gradient");
    for (uint64_t turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < n; i++)
            d[i] = (rng_at(turn, i) & 1 ? 1.0 : -1.0) / sqrt((double)n);
        assert_slope(r, t, d, g, norm, "along random signs");
    }
    memset(d, 0, n * sizeof(*d));
    d[largest] = 1.0;
    assert_slope(r, t, d, g, norm, "in its largest element");
    mem_free(g);
    mem_free(d);
}

static void gradients_are_the_slopes_of_the_loss(void **state)
{
    struct rig *r = fast_rig();

    (void)state;
    rig_forward(r);
    rig_backward(r, 1.0f);
    for (uint32_t t = 0; t < r->m->n_tensors; t++)
        check_tensor(r, t);
    rig_free(r);
}

static void loss_scale_scales_the_gradient(void **state)
{
    struct rig *r = fast_rig();
    float *whole;

    (void)state;
    rig_forward(r);
    rig_backward(r, 1.0f);
    whole = mem_dup(params_sum(r->p, 1, 0), (size_t)r->m->tensors[1].n * sizeof(float));
    assert_non_null(whole);
    assert_int_equal(params_sums_clear(r->p), 0);
    rig_forward(r);
    rig_backward(r, 0.25f); /* a power of two: exact */
    for (int64_t i = 0; i < r->m->tensors[1].n; i++)
        assert_true(((float *)params_sum(r->p, 1, 0))[i] == 0.25f * whole[i]);
    mem_free(whole);
    rig_free(r);
}

static void untrained_loss_is_that_of_a_uniform_guess(void **state)
{
    const struct job job = tiny_job();
    struct rig *r = rig_new(&job, 1, 0, 4);

    (void)state;
    fill(r);
    assert_int_equal(params_init(r->p, 3), 0);
    assert_true(fabs(rig_forward(r) / 12.0 - log(17.0)) < 0.02);
    rig_free(r);
}

static void a_position_sees_nothing_after_it(void **state)
{
    struct rig *r = fast_rig();
    const uint32_t head = r->m->n_units - 1, V = r->m->n_vocab;
    float *before;

    (void)state;
    rig_forward(r);
    before = mem_dup(unit_logits(r->m, r->saved[head]), 12 * V * sizeof(float));
    assert_non_null(before);
    r->tokens[4] = (r->tokens[4] + 1) % (int32_t)V; /* of the first sequence's six */
    rig_forward(r);
    assert_memory_equal(unit_logits(r->m, r->saved[head]), before, 4 * V * sizeof(float));
    assert_memory_not_equal(unit_logits(r->m, r->saved[head]) + 4 * V, before + 4 * V, V * sizeof(float));
    assert_memory_equal(unit_logits(r->m, r->saved[head]) + 6 * V, before + 6 * V, 6 * V * sizeof(float));
    mem_free(before);
    rig_free(r);
}

static void assert_same_sums(struct rig *whole, struct rig *part)
{
    for (uint32_t t = 0; t < whole->m->n_tensors; t++) {
        for (uint32_t use = 0; use < whole->m->tensors[t].n_uses; use++) {
            if (!params_sum(part->p, t, use))
                continue;
            assert_memory_equal(params_sum(part->p, t, use), params_sum(whole->p, t, use),
                                (size_t)whole->m->tensors[t].n * sizeof(int64_t));
        }
    }
}

/* Two holders, each with its own device context, the second with other threads; the cut before unit c. */
static void bits_do_not_depend_on_the_cut_nor_on_threads(void **state)
{
    const struct job job = tiny_job();
    struct rig *whole = rig_new(&job, 1, 0, 4);
    const size_t n_boundary = (size_t)model_boundary_elems(whole->m) * sizeof(float);
    double loss;

    (void)state;
    fill(whole);
    loss = rig_forward(whole);
    rig_backward(whole, 1.0f / 48);
    for (uint32_t c = 1; c < 4; c++) {
        struct rig *a = rig_new(&job, 3, 0, c), *b = rig_new(&job, 2, c, 4);

        fill(a);
        fill(b);
        rig_forward(a);
        memcpy(b->boundary[c], a->boundary[c], n_boundary);
        assert_true(rig_forward(b) == loss);
        rig_backward(b, 1.0f / 48);
        memcpy(a->dboundary[c], b->dboundary[c], n_boundary);
        rig_backward(a, 1.0f / 48);
        assert_same_sums(whole, a);
        assert_same_sums(whole, b);
        rig_free(a);
        rig_free(b);
    }
    rig_free(whole);
}

static void saved_bytes_are_what_the_layout_needs(void **state)
{
    const struct job job = tiny_job(); /* R 12, C 12, H 2, T 6, V 17 */
    struct reason why = {0};
    struct model *m = NULL;

    (void)state;
    assert_int_equal(model_new(&job, &m, &why), 0);
    assert_int_equal(unit_saved_bytes(m, 0), 0);
    /* ln1, att, mid, ln2: 576 each; 4 statistics: 64; qkv 1728; probs 576; fc, gelu: 2304 */
    assert_int_equal(unit_saved_bytes(m, 1), 4 * 576 + 4 * 64 + 1728 + 576 + 2 * 2304);
    assert_int_equal(unit_saved_bytes(m, 2), unit_saved_bytes(m, 1));
    assert_int_equal(unit_saved_bytes(m, 3), 576 + 3 * 64 + 832); /* logits: 816, to the next 64 */
    assert_int_equal(unit_scratch_bytes(m), 2 * 2304 + 2 * 576);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_slopes_of_the_loss),
        cmocka_unit_test(loss_scale_scales_the_gradient),
        cmocka_unit_test(untrained_loss_is_that_of_a_uniform_guess),
        cmocka_unit_test(a_position_sees_nothing_after_it),
        cmocka_unit_test(bits_do_not_depend_on_the_cut_nor_on_threads),
        cmocka_unit_test(saved_bytes_are_what_the_layout_needs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
