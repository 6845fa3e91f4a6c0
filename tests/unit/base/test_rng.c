/* Philox against the published vectors, and what is built on it against values computed independently: other machines
 * and devices must get these very bits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/rng.h"

#include <math.h>
#include <string.h>

static void philox_gives_the_published_known_answers(void **state)
{
    (void)state;
    /* Random123, kat_vectors, philox4x32 with 10 rounds. */
    static const struct {
        uint32_t key[2], counter[4], want[4];
    } vectors[] = {
        {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0},
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        uint32_t got[4];
        rng_philox(vectors[i].key, vectors[i].counter, got);
        assert_memory_equal(got, vectors[i].want, sizeof(got));
    }
}

static void philox_may_write_over_its_counter(void **state)
{
    (void)state;
    const uint32_t key[2] = {0, 0};
    uint32_t x[4] = {0, 0, 0, 0};
    rng_philox(key, x, x);
    assert_int_equal(x[0], 0x6627e8d5);
    assert_int_equal(x[3], 0x9b00dbd8);
}

static void keys_and_values_are_pinned(void **state)
{
    (void)state;
    assert_true(rng_key(0, "") == UINT64_C(0xaebe53f85cdc3c4c));
    assert_true(rng_key(UINT64_MAX, "h.0.attn.w") == UINT64_C(0x560e823a411ea1da));
    uint64_t key = rng_key(1, "wte");
    assert_true(key == UINT64_C(0x5743e76efd9153bf));
    assert_true(rng_at(key, 0) == UINT64_C(0xe227bdc5114a5d97));
    assert_true(rng_at(key, 1) == UINT64_C(0x83e97b4e53be9567));
    assert_true(rng_at(key, UINT64_C(1) << 32) == UINT64_C(0xd79e25c9cd43edc3));
    assert_true(rng_at(key, UINT64_MAX) == UINT64_C(0x3fba2bf77d86427));
}

static void normal_values_are_pinned_to_the_bit(void **state)
{
    (void)state;
    static const struct {
        uint64_t i;
        uint32_t bits;
    } want[] = {{0, 0x40056231}, {1, 0xbf4f4ea5}, {2, 0xbede51e5}, {UINT64_C(1) << 40, 0xbe806f80}};
    uint64_t key = rng_key(1, "wte");
    for (size_t j = 0; j < sizeof(want) / sizeof(want[0]); j++) {
        float x = rng_normal_at(key, want[j].i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        assert_int_equal(bits, want[j].bits);
    }
}

static void normal_values_have_the_moments_of_a_normal(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0, squares = 0, fourths = 0;
    uint64_t key = rng_key(3, "moments");
    for (uint64_t i = 0; i < N; i++) {
        double x = (double)rng_normal_at(key, i);
        assert_true(fabs(x) < 4.9);
        sum += x;
        squares += x * x;
        fourths += x * x * x * x;
    }
    /* Five standard errors; the fourth moment of Irwin-Hall(8) is 3 - 6 / (5 * 8) = 2.85. */
    assert_true(fabs(sum / N) < 0.0112);
    assert_true(fabs(squares / N - 1) < 0.0153);
    assert_true(fabs(fourths / N - 2.85) < 0.1);
}

static void stream_is_rng_at_in_order(void **state)
{
    (void)state;
    struct rng r = rng_make(7, "stream");
    for (uint64_t i = 0; i < 100; i++)
        assert_true(rng_u64(&r) == rng_at(rng_key(7, "stream"), i));
}

static void below_is_uniform_and_in_range(void **state)
{
    (void)state;
    struct rng r = rng_make(1, "below");
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t x = rng_below(&r, 7);
        assert_true(x < 7);
        counts[x]++;
    }
    for (int i = 0; i < 7; i++)
        assert_true(counts[i] > 9500 && counts[i] < 10500);
    for (int i = 0; i < 10; i++)
        assert_true(rng_below(&r, 1) == 0);
}

static void below_rejects_what_would_bias(void **state)
{
    (void)state;
    /* With n = 3 * 2^62, plain reduction would send half of all draws into the lowest third instead of a third. */
    struct rng r = rng_make(2, "bias");
    uint64_t n = UINT64_C(3) << 62;
    int low = 0;
    for (int i = 0; i < 30000; i++) {
        uint64_t x = rng_below(&r, n);
        assert_true(x < n);
        low += x < UINT64_C(1) << 62;
    }
    assert_true(low > 9500 && low < 10500);
}

static void unit_stays_below_one(void **state)
{
    (void)state;
    struct rng r = rng_make(4, "unit");
    double sum = 0;
    for (int i = 0; i < 100000; i++) {
        double x = rng_unit(&r);
        assert_true(x >= 0 && x < 1);
        sum += x;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 0.005);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_known_answers),
        cmocka_unit_test(philox_may_write_over_its_counter),
        cmocka_unit_test(keys_and_values_are_pinned),
        cmocka_unit_test(normal_values_are_pinned_to_the_bit),
        cmocka_unit_test(normal_values_have_the_moments_of_a_normal),
        cmocka_unit_test(stream_is_rng_at_in_order),
        cmocka_unit_test(below_is_uniform_and_in_range),
        cmocka_unit_test(below_rejects_what_would_bias),
        cmocka_unit_test(unit_stays_below_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
