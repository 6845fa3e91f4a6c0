/* Aligned allocation, overflow checks, fault injection. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/mem.h"

#include <pthread.h>
#include <string.h>

static void allocations_are_aligned_and_writable_at_every_size(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1 << 20};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *p = mem_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 0xA5, sizes[i]);
        assert_null(mem_free(p));
    }
    assert_null(mem_free(NULL));
}

static void calloc_zeroes(void **state)
{
    (void)state;
    /* Dirty a block of the same size first, so that fresh zero pages cannot hide a missing memset. */
    uint8_t *p = mem_alloc(1000);
    assert_non_null(p);
    memset(p, 0xFF, 1000);
    mem_free(p);
    p = mem_calloc(250, 4);
    assert_non_null(p);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    mem_free(p);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    size_t product = 7;
    assert_false(size_mul(SIZE_MAX / 2 + 1, 2, &product));
    assert_int_equal(product, 7);
    assert_true(size_mul(SIZE_MAX / 2, 2, &product));
    assert_true(product == SIZE_MAX - 1);
    assert_true(size_mul(0, SIZE_MAX, &product));
    assert_int_equal(product, 0);
    assert_null(mem_calloc(SIZE_MAX / 4, 8));
    assert_null(mem_alloc(SIZE_MAX));
    assert_null(mem_alloc(SIZE_MAX / 2));
    assert_null(mem_resize(NULL, 0, SIZE_MAX / 4, 8));
}

static void resize_keeps_the_smaller_of_both_sizes(void **state)
{
    (void)state;
    uint32_t *p = mem_resize(NULL, 0, 4, sizeof(*p));
    assert_non_null(p);
    for (uint32_t i = 0; i < 4; i++)
        p[i] = i + 1;
    p = mem_resize(p, 4, 1000, sizeof(*p));
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(p[i], i + 1);
    p = mem_resize(p, 1000, 2, sizeof(*p));
    assert_non_null(p);
    assert_int_equal(p[1], 2);
    p = mem_resize(p, 2, 0, sizeof(*p));
    assert_non_null(p);
    mem_free(p);
}

static void failed_resize_leaves_the_old_block(void **state)
{
    (void)state;
    char *p = mem_strdup("kept");
    assert_non_null(p);
    mem_fault_set(0);
    assert_null(mem_resize(p, 5, 10, 1));
    assert_true(mem_fault_hit());
    assert_string_equal(p, "kept");
    mem_free(p);
    mem_fault_set(-1);
}

static void copies_are_equal_and_their_own(void **state)
{
    (void)state;
    char text[] = "shoal";
    char *copy = mem_strdup(text);
    char *bytes = mem_dup(text, 3);
    char *none = mem_dup(NULL, 0);
    assert_non_null(copy);
    assert_non_null(bytes);
    assert_non_null(none);
    text[0] = 'x';
    assert_string_equal(copy, "shoal");
    assert_memory_equal(bytes, "sho", 3);
    mem_free(copy);
    mem_free(bytes);
    mem_free(none);
}

static void fault_fails_one_allocation_after_n(void **state)
{
    (void)state;
    mem_fault_set(2);
    void *a = mem_alloc(1);
    void *b = mem_calloc(1, 1);
    assert_false(mem_fault_hit());
    void *c = mem_alloc(1);
    void *d = mem_alloc(1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    assert_true(mem_fault_hit());
    assert_non_null(d);
    mem_free(a);
    mem_free(b);
    mem_free(d);
    mem_fault_set(-1);
    assert_false(mem_fault_hit());
}

static void *allocate_once(void *arg)
{
    (void)arg;
    void *p = mem_alloc(1);
    void *got = p ? allocate_once : NULL;
    mem_free(p);
    return got;
}

static void fault_is_of_the_thread_that_set_it(void **state)
{
    (void)state;
    mem_fault_set(0);
    pthread_t other;
    void *got = NULL;
    assert_int_equal(pthread_create(&other, NULL, allocate_once, NULL), 0);
    assert_int_equal(pthread_join(other, &got), 0);
    assert_non_null(got);
    assert_false(mem_fault_hit());
    assert_null(mem_alloc(1));
    assert_true(mem_fault_hit());
    mem_fault_set(-1);
}

static void take_ptr_moves_out_of_a_cleaned_up_variable(void **state)
{
    (void)state;
    char *kept;
    {
        cleanup_mem_ char *local = mem_strdup("moved");
        kept = TAKE_PTR(local);
        assert_null(local);
    }
    assert_string_equal(kept, "moved");
    mem_free(kept);
}

static void available_memory_is_known_and_plausible(void **state)
{
    (void)state;
    uint64_t n = mem_available_bytes();
    assert_true(n > 1 << 20);
    assert_true(n < UINT64_C(1) << 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_aligned_and_writable_at_every_size),
        cmocka_unit_test(calloc_zeroes),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(resize_keeps_the_smaller_of_both_sizes),
        cmocka_unit_test(failed_resize_leaves_the_old_block),
        cmocka_unit_test(copies_are_equal_and_their_own),
        cmocka_unit_test(fault_fails_one_allocation_after_n),
        cmocka_unit_test(fault_is_of_the_thread_that_set_it),
        cmocka_unit_test(take_ptr_moves_out_of_a_cleaned_up_variable),
        cmocka_unit_test(available_memory_is_known_and_plausible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
