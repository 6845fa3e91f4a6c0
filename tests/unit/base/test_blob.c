/* Reference counts: who releases, when, how often. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/blob.h"
#include "runtime/base/mem.h"
#include "runtime/base/status.h"

#include <pthread.h>
#include <string.h>

static void count_release(void *owner)
{
    ++*(int *)owner;
}

static void new_blob_is_aligned_and_writable(void **state)
{
    (void)state;
    struct blob *b = NULL;
    assert_int_equal(blob_new(1000, &b), 0);
    assert_int_equal(b->size, 1000);
    assert_int_equal((uintptr_t)b->data % 64, 0);
    memset(b->data, 1, b->size);
    assert_null(blob_unref(b));
    assert_int_equal(blob_new(0, &b), 0);
    assert_non_null(b->data);
    blob_unref(b);
}

static void wrapped_memory_is_released_once_by_the_last_one_out(void **state)
{
    (void)state;
    int released = 0;
    char bytes[4];
    struct blob *b = NULL;
    assert_int_equal(blob_wrap(bytes, sizeof(bytes), count_release, &released, &b), 0);
    struct blob *second = blob_ref(b);
    assert_ptr_equal(second, b);
    blob_unref(b);
    assert_int_equal(released, 0);
    blob_unref(second);
    assert_int_equal(released, 1);
}

static void slice_keeps_the_whole_alive(void **state)
{
    (void)state;
    int released = 0;
    char bytes[10] = "0123456789";
    struct blob *b = NULL;
    struct blob *s = NULL;
    struct blob *t = NULL;
    assert_int_equal(blob_wrap(bytes, sizeof(bytes), count_release, &released, &b), 0);
    assert_int_equal(blob_slice(b, 2, 6, &s), 0);
    assert_int_equal(blob_slice(s, 1, 3, &t), 0);
    blob_unref(b);
    blob_unref(s);
    assert_int_equal(released, 0);
    assert_int_equal(t->size, 3);
    assert_memory_equal(t->data, "345", 3);
    blob_unref(t);
    assert_int_equal(released, 1);
}

static void slice_out_of_range_is_refused(void **state)
{
    (void)state;
    struct blob *b = NULL;
    struct blob *s = NULL;
    assert_int_equal(blob_new(10, &b), 0);
    assert_int_equal(blob_slice(b, 11, 0, &s), -E_INVAL);
    assert_int_equal(blob_slice(b, 5, 6, &s), -E_INVAL);
    assert_int_equal(blob_slice(b, 1, SIZE_MAX, &s), -E_INVAL);
    assert_null(s);
    assert_int_equal(blob_slice(b, 10, 0, &s), 0);
    blob_unref(s);
    assert_int_equal(b->refs, 1);
    blob_unref(b);
}

static void out_of_memory_calls_no_release_and_takes_no_reference(void **state)
{
    (void)state;
    int released = 0;
    char bytes[4];
    struct blob *b = NULL;
    struct blob *s = NULL;
    mem_fault_set(0);
    assert_int_equal(blob_new(4, &b), -E_NOMEM);
    mem_fault_set(0);
    assert_int_equal(blob_wrap(bytes, sizeof(bytes), count_release, &released, &b), -E_NOMEM);
    assert_null(b);
    assert_int_equal(released, 0);
    assert_int_equal(blob_new(SIZE_MAX, &b), -E_NOMEM);
    assert_int_equal(blob_new(4, &b), 0);
    mem_fault_set(0);
    assert_int_equal(blob_slice(b, 0, 4, &s), -E_NOMEM);
    assert_int_equal(b->refs, 1);
    blob_unref(b);
    mem_fault_set(-1);
}

static void null_is_fine_and_unrefp_clears(void **state)
{
    (void)state;
    assert_null(blob_ref(NULL));
    assert_null(blob_unref(NULL));
    struct blob *b = NULL;
    assert_int_equal(blob_new(1, &b), 0);
    blob_unrefp(&b);
    assert_null(b);
}

static void *drop_many(void *arg)
{
    struct blob *b = arg;
    for (int i = 0; i < 10000; i++)
        blob_unref(blob_ref(b));
    blob_unref(b);
    return NULL;
}

static void threads_may_share_a_blob(void **state)
{
    (void)state;
    int released = 0;
    char bytes[1];
    struct blob *b = NULL;
    pthread_t threads[4];
    assert_int_equal(blob_wrap(bytes, 1, count_release, &released, &b), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, drop_many, blob_ref(b)), 0);
    blob_unref(b);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(released, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_blob_is_aligned_and_writable),
        cmocka_unit_test(wrapped_memory_is_released_once_by_the_last_one_out),
        cmocka_unit_test(slice_keeps_the_whole_alive),
        cmocka_unit_test(slice_out_of_range_is_refused),
        cmocka_unit_test(out_of_memory_calls_no_release_and_takes_no_reference),
        cmocka_unit_test(null_is_fine_and_unrefp_clears),
        cmocka_unit_test(threads_may_share_a_blob),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
