/* The schedule and the numbers of an update. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "model/optimizer.h"
#include "tests/unit/model/tiny.h"

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static void warmup_is_linear_and_ends_at_lr(void **state)
{
    const struct job job = tiny_job(); /* lr 1e-3, lr_min 1e-4, 10 of 100 steps of warm-up */

    (void)state;
    assert_true(near(optimizer_lr(&job, 0), 1e-4));
    assert_true(near(optimizer_lr(&job, 4), 5e-4));
    assert_true(near(optimizer_lr(&job, 9), 1e-3));
}

static void cosine_falls_to_lr_min_at_the_last_step(void **state)
{
    const struct job job = tiny_job();
    const double third = 1e-4 + 0.5 * 9e-4 * 1.5; /* cos(pi/3) = 1/2 */

    (void)state;
    assert_true(near(optimizer_lr(&job, 10 + 30 - 1), third));
    assert_true(near(optimizer_lr(&job, 10 + 45 - 1), 5.5e-4));
    assert_true(near(optimizer_lr(&job, 99), 1e-4));
    assert_true(near(optimizer_lr(&job, 5000), 1e-4));
    for (uint64_t v = 10; v < 99; v++)
        assert_true(optimizer_lr(&job, v) < optimizer_lr(&job, v - 1));
}

static void no_warmup_starts_near_lr(void **state)
{
    struct job job = tiny_job();

    (void)state;
    job.train.warmup_steps = 0;
    assert_true(optimizer_lr(&job, 0) < 1e-3 && optimizer_lr(&job, 0) > 0.999e-3);
}

static void the_first_update_undoes_the_whole_bias(void **state)
{
    const struct job job = tiny_job();
    const struct kern_adamw h = optimizer_step(&job, 0, 0, 0.5);

    (void)state;
    assert_true(h.lr == (float)optimizer_lr(&job, 0));
    assert_true(h.beta1 == 0.9f && h.beta2 == 0.95f);
    assert_true(h.one_minus_beta1 == (float)(1.0 - 0.9) && h.one_minus_beta2 == (float)(1.0 - 0.95));
    assert_true(h.inv_bias1 == (float)(1.0 / (1.0 - 0.9)) && h.inv_bias2 == (float)(1.0 / (1.0 - 0.95)));
    assert_true(h.eps == 1e-8f && h.weight_decay == 0.1f);
}

static void bias_counts_updates_not_versions(void **state)
{
    const struct job job = tiny_job();
    const struct kern_adamw h = optimizer_step(&job, 20, 2, 0.5);

    (void)state;
    assert_true(fabs((double)h.inv_bias1 - 1.0 / (1.0 - 0.9 * 0.9 * 0.9)) < 1e-6);
    assert_true(fabs((double)h.inv_bias2 - 1.0 / (1.0 - 0.95 * 0.95 * 0.95)) < 1e-5);
    assert_true(h.lr == (float)optimizer_lr(&job, 20));
}

static void gradients_are_clipped_only_above_the_limit(void **state)
{
    struct job job = tiny_job();

    (void)state;
    assert_true(optimizer_step(&job, 0, 0, 1.0).grad_scale == 1.0f);
    assert_true(optimizer_step(&job, 0, 0, 4.0).grad_scale == 0.25f);
    assert_true(optimizer_step(&job, 0, 0, 0.0).grad_scale == 1.0f);
    job.train.clip = 0;
    assert_true(optimizer_step(&job, 0, 0, 4.0).grad_scale == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_is_linear_and_ends_at_lr),
        cmocka_unit_test(cosine_falls_to_lr_min_at_the_last_step),
        cmocka_unit_test(no_warmup_starts_near_lr),
        cmocka_unit_test(the_first_update_undoes_the_whole_bias),
        cmocka_unit_test(bias_counts_updates_not_versions),
        cmocka_unit_test(gradients_are_clipped_only_above_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
