/* The STATE kernels: exact against wide arithmetic, and the same bits on the CPU backend (any number of threads, any
 * instruction set) and on the reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels/rig.h"

#include <float.h>
#include <math.h>
#include <string.h>

_Static_assert(LDBL_MANT_DIG >= 64, "long double is the oracle: it must hold any 64-bit integer");

enum { N = 40000 + 13 }; /* several parts and an odd rest */

struct devices {
    struct rig rigs[8];
    int n;
};

/* The reference, pools of 1, 2, 3 and 7 threads, and the plain inner loops. */
static int open_devices(void **state)
{
    static struct devices d;
    const int threads[] = {1, 2, 3, 7, 1};
    d.n = 0;
    d.rigs[d.n++] = rig_reference();
    for (int i = 0; i < 5; i++)
        d.rigs[d.n++] = rig_cpu(threads[i], 0);
    d.rigs[d.n - 1].k.ctx->vec = vec_at(0);
    *state = &d;
    return 0;
}

static int close_devices(void **state)
{
    struct devices *d = *state;
    for (int i = 0; i < d->n; i++)
        rig_done(&d->rigs[i]);
    return 0;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Values around everything that can go wrong with the rounding of g 2^52, then random bit patterns: half of any
 * exponent, half of those whose fractions are rounded. */
static void awkward_floats(float *a, int64_t n)
{
    const float special[] = {0.0f,
                             -0.0f,
                             0x1p-53f,
                             -0x1p-53f,
                             0x1.000002p-53f,
                             0x1.fffffep-54f,
                             0x1.8p-52f,
                             -0x1.8p-52f,
                             0x1.4p-51f,
                             0x1.cp-51f,
                             -0x1.4p-51f,
                             0x1p-52f,
                             0x1p-149f,
                             -0x1p-149f,
                             0x1p-126f,
                             0x1.fffffcp-127f,
                             INFINITY,
                             -INFINITY,
                             NAN,
                             FLT_MAX,
                             -FLT_MAX,
                             0x1p11f,
                             -0x1p11f,
                             0x1.fffffep10f,
                             -0x1.fffffep10f,
                             1.0f,
                             -1.0f,
                             0x1.000002p-29f,
                             0x1.fffffep-29f,
                             0x1.fffffep-30f};
    const int64_t n_special = sizeof special / sizeof *special;
    struct rng rng = rng_make(7, "awkward");
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = (uint32_t)rng_u64(&rng);
        const uint32_t exponent = 127 - 56 + (u >> 8) % 40;
        a[i] = i < n_special ? special[i] : i % 2 ? from_bits(u) : from_bits((u & 0x807fffff) | exponent << 23);
    }
}

static int64_t oracle_fixed(float g)
{
    return (int64_t)rintl((long double)g * 0x1p52L);
}

static void accumulate_rounds_to_nearest_even_exactly(void **state)
{
    struct devices *d = *state;
    static float grad[N];
    static int64_t acc[N];
    awkward_floats(grad, N);
    const float bounds[] = {0x1p11f, 0x1p3f, 1.0f, 0x1p-40f};
    for (int k = 0; k < d->n; k++)
        for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
            for (int i = 0; i < N; i++)
                acc[i] = i - 20;
            uint32_t flag = 0;
            struct kern *dev = &d->rigs[k].k;
            assert_int_equal(dev->ops->exact_accumulate(dev->ctx, acc, grad, bounds[b], &flag, N), 0);
            assert_int_equal(flag, 1);
            for (int i = 0; i < N; i++) {
                const int inside = isfinite(grad[i]) && fabsf(grad[i]) < bounds[b];
                const int64_t want = i - 20 + (inside ? oracle_fixed(grad[i]) : 0);
                if (acc[i] != want)
                    fail_msg("device %d: %a became %lld, not %lld", k, (double)grad[i], (long long)(acc[i] - (i - 20)),
                             (long long)(want - (i - 20)));
            }
        }
}

static void accumulate_flags_refused_elements_only(void **state)
{
    struct devices *d = *state;
    static float grad[N];
    static int64_t acc[N];
    const float refused[] = {NAN, INFINITY, -INFINITY, 4.0f, -4.0f, 5.0f};
    for (int k = 0; k < d->n; k++) {
        struct kern *dev = &d->rigs[k].k;
        for (size_t i = 0; i <= sizeof refused / sizeof *refused; i++) {
            const bool clean = i == sizeof refused / sizeof *refused;
            for (int j = 0; j < N; j++)
                grad[j] = nextafterf(4.0f, 0.0f);
            if (!clean)
                grad[N - 1] = refused[i];
            uint32_t flag = 0;
            assert_int_equal(dev->ops->exact_accumulate(dev->ctx, acc, grad, 4.0f, &flag, N), 0);
            assert_int_equal(flag, clean ? 0 : 1);
        }
        uint32_t set = 1;
        assert_int_equal(dev->ops->exact_accumulate(dev->ctx, acc, grad, 4.0f, &set, N), 0);
        assert_int_equal(set, 1); /* never cleared */
        const float bad[] = {0.0f, -1.0f, NAN, 0x1.000002p11f, INFINITY};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            assert_int_equal(dev->ops->exact_accumulate(dev->ctx, acc, grad, bad[i], &set, N), -E_INVAL);
        memset(acc, 0, sizeof acc);
    }
}

static void sums_do_not_depend_on_order_and_never_overflow(void **state)
{
    struct devices *d = *state;
    enum { M = 8, W = 1000 };
    static float grad[M][W];
    struct rng rng = rng_make(3, "order");
    const float bound = 0x1p11f / M;
    for (int m = 0; m < M; m++)
        for (int i = 0; i < W; i++)
            grad[m][i] = i == 0   ? nextafterf(bound, 0.0f)
                         : i == 1 ? -nextafterf(bound, 0.0f)
                                  : (float)((rng_unit(&rng) - 0.5) * exp2(-(double)rng_below(&rng, 50)));
    for (int k = 0; k < d->n; k++) {
        struct kern *dev = &d->rigs[k].k;
        int64_t forward[W] = {0}, halves[2][W] = {{0}};
        uint32_t flag = 0;
        for (int m = 0; m < M; m++) {
            dev->ops->exact_accumulate(dev->ctx, forward, grad[m], bound, &flag, W);
            dev->ops->exact_accumulate(dev->ctx, halves[m % 2], grad[M - 1 - m], bound, &flag, W);
        }
        assert_int_equal(dev->ops->exact_add(dev->ctx, halves[1], halves[0], W), 0);
        assert_memory_equal(forward, halves[1], sizeof forward);
        assert_int_equal(flag, 0);
        for (int i = 0; i < W; i++) {
            __int128 wide = 0;
            for (int m = 0; m < M; m++)
                wide += oracle_fixed(grad[m][i]);
            assert_true(wide == forward[i]);
        }
    }
}

static void round_is_the_nearest_float(void **state)
{
    struct devices *d = *state;
    static int64_t acc[N];
    static float out[N];
    const int64_t special[] = {0,
                               1,
                               -1,
                               INT64_MAX,
                               INT64_MIN,
                               INT64_MIN + 1,
                               (1 << 24) + 1,
                               (1 << 24) + 3,
                               -(1 << 24) - 1,
                               (INT64_C(1) << 40) + (1 << 16),
                               (INT64_C(1) << 40) + (1 << 16) + 1,
                               (INT64_C(1) << 40) + (3 << 16),
                               (INT64_C(1) << 62) + (INT64_C(1) << 38) + 1};
    const int n_special = sizeof special / sizeof *special;
    struct rng rng = rng_make(5, "round");
    for (int i = 0; i < N; i++)
        acc[i] = i < n_special ? special[i] : (int64_t)rng_u64(&rng) >> rng_below(&rng, 64);
    for (int k = 0; k < d->n; k++) {
        struct kern *dev = &d->rigs[k].k;
        assert_int_equal(dev->ops->exact_round(dev->ctx, out, acc, N), 0);
        for (int i = 0; i < N; i++)
            if (out[i] != (float)((long double)acc[i] * 0x1p-52L))
                fail_msg("device %d: %lld became %a", k, (long long)acc[i], (double)out[i]);
    }
}

static void sum_of_squares_has_one_order(void **state)
{
    struct devices *d = *state;
    static float a[N];
    struct rng rng = rng_make(9, "squares");
    for (int i = 0; i < N; i++)
        a[i] = (float)((rng_unit(&rng) - 0.5) * exp2(-(double)rng_below(&rng, 12)));
    const int64_t sizes[] = {0, 1, 15, 17, 4095, 4096, 4097, 16384, N};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        long double wide = 0.0L;
        for (int64_t i = 0; i < sizes[s]; i++)
            wide += (long double)a[i] * (long double)a[i];
        double first = 0.0;
        for (int k = 0; k < d->n; k++) {
            double sum = -1.0;
            struct kern *dev = &d->rigs[k].k;
            assert_int_equal(dev->ops->sum_squares(dev->ctx, &sum, a, sizes[s]), 0);
            first = k == 0 ? sum : first;
            assert_memory_equal(&sum, &first, sizeof sum);
            assert_true(fabsl((long double)sum - wide) <= 1e-14L * wide);
        }
    }
}

static const struct kern_adamw adamw_hyper = {
    .grad_scale = 0.75f,
    .lr = 3e-3f,
    .beta1 = 0.9f,
    .beta2 = 0.95f,
    .one_minus_beta1 = 0.1f,
    .one_minus_beta2 = 0.05f,
    .inv_bias1 = 10.0f,
    .inv_bias2 = 20.0f,
    .eps = 1e-8f,
    .weight_decay = 0.1f,
};

static void adamw_steps_are_the_same_bits_everywhere(void **state)
{
    struct devices *d = *state;
    static float first[3][N], s[3][N], g[N];
    for (int k = 0; k < d->n; k++) {
        struct rng rng = rng_make(11, "adamw");
        struct kern *dev = &d->rigs[k].k;
        for (int i = 0; i < N; i++) {
            s[0][i] = (float)(rng_unit(&rng) - 0.5);
            s[1][i] = s[2][i] = 0.0f;
        }
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < N; i++) /* down to squares that are subnormal and zero */
                g[i] = (float)((rng_unit(&rng) - 0.5) * exp2(-(double)(i % 90)));
            assert_int_equal(dev->ops->adamw(dev->ctx, s[0], s[1], s[2], g, &adamw_hyper, N), 0);
        }
        if (k == 0)
            memcpy(first, s, sizeof s);
        assert_memory_equal(first, s, sizeof s);
    }
}

static void adamw_is_the_published_step(void **state)
{
    struct devices *d = *state;
    struct kern *dev = &d->rigs[1].k;
    const struct kern_adamw *h = &adamw_hyper;
    float p = 0.5f, m = 0.02f, v = 0.003f, g = -0.3f;
    const double s = 0.75 * (double)g, m1 = 0.9 * 0.02 + 0.1 * s, v1 = 0.95 * 0.003 + 0.05 * s * s;
    const double want = 0.5 - 3e-3 * (m1 * 10.0 / (sqrt(v1 * 20.0) + 1e-8) + 0.1 * 0.5);
    assert_int_equal(dev->ops->adamw(dev->ctx, &p, &m, &v, &g, h, 1), 0);
    assert_true(fabs((double)p - want) < 1e-7);
    assert_true(fabs((double)m - m1) < 1e-8);
    assert_true(fabs((double)v - v1) < 1e-9);
}

static void initial_values_depend_on_key_and_element_only(void **state)
{
    struct devices *d = *state;
    static float a[N];
    const uint64_t key = rng_key(42, "wte");
    for (int k = 0; k < d->n; k++) {
        struct kern *dev = &d->rigs[k].k;
        assert_int_equal(dev->ops->init_normal(dev->ctx, a, key, 0.5f, 0.02f, N), 0);
        double sum = 0.0, squares = 0.0;
        for (int i = 0; i < N; i++) {
            const float want = 0.5f + 0.02f * rng_normal_at(key, (uint64_t)i);
            assert_memory_equal(&a[i], &want, sizeof want);
            sum += (double)a[i];
            squares += ((double)a[i] - 0.5) * ((double)a[i] - 0.5);
        }
        assert_true(fabs(sum / N - 0.5) < 5e-4);
        assert_true(fabs(sqrt(squares / N) - 0.02) < 5e-4);
        assert_int_equal(dev->ops->init_normal(dev->ctx, a, key, 1.0f, 0.0f, N), 0);
        for (int i = 0; i < N; i++)
            assert_true(a[i] == 1.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulate_rounds_to_nearest_even_exactly),
        cmocka_unit_test(accumulate_flags_refused_elements_only),
        cmocka_unit_test(sums_do_not_depend_on_order_and_never_overflow),
        cmocka_unit_test(round_is_the_nearest_float),
        cmocka_unit_test(sum_of_squares_has_one_order),
        cmocka_unit_test(adamw_steps_are_the_same_bits_everywhere),
        cmocka_unit_test(adamw_is_the_published_step),
        cmocka_unit_test(initial_values_depend_on_key_and_element_only),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
