/* Opening devices, their memory, refused arguments, the fingerprint, and the exponential function. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "runtime/base/mem.h"
#include "tests/kernels/rig.h"

#include <math.h>
#include <string.h>

static void devices_open_by_name(void **state)
{
    (void)state;
    const char *good[] = {"cpu", "cpu:0", NULL};
    for (size_t i = 0; i < 3; i++) {
        struct kern k = {0};
        assert_int_equal(kern_open(good[i], 2, &k, NULL), 0);
        assert_string_equal(k.backend->name, "cpu");
        assert_ptr_equal(k.ops, k.backend->ops);
        assert_int_equal(k.backend->abi, KERN_ABI);
        kern_close(&k);
        kern_close(&k); /* closed twice is fine */
    }
    kern_close(NULL);
    struct kern_device device;
    assert_int_equal(kern_registry_at(0)->devices(&device, 1), 1);
    assert_true(device.name[0] != '\0' && device.n_cores >= 1 && device.memory_bytes > 0);
    assert_null(kern_registry_at(1000));
}

static void unknown_devices_are_refused_with_a_list(void **state)
{
    (void)state;
    const char *bad[] = {"", "abacus", "cpu:1", "cpu:", "cpu:x", "cpu:-1", "cpus", "cpu:99999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kern k = {0};
        struct reason why = {0};
        assert_int_equal(kern_open(bad[i], 1, &k, &why), -E_NODEV);
        assert_non_null(strstr(why.text, "cpu:0"));
        assert_null(k.backend);
    }
    struct kern k = {0};
    struct reason why = {0};
    assert_int_equal(kern_open("cpu", 0, &k, &why), -E_INVAL);
    assert_true(why.text[0] != '\0');
}

static void open_survives_every_failed_allocation(void **state)
{
    (void)state;
    int n_faults = 0;
    for (int64_t after = 0;; after++) {
        struct kern k = {0};
        mem_fault_set(after);
        const int r = kern_open("cpu", 3, &k, NULL);
        const bool hit = mem_fault_hit();
        mem_fault_set(-1);
        kern_close(&k);
        if (!hit) {
            assert_int_equal(r, 0);
            break;
        }
        n_faults++;
        assert_int_equal(r, -E_NOMEM);
    }
    assert_true(n_faults >= 3);
}

static void scratch_that_cannot_be_had_is_an_error(void **state)
{
    (void)state;
    struct rig r = rig_cpu(1, 0);
    float out[4], mean[2] = {0}, rstd[2] = {1, 1}, in[4] = {1, 2, 3, 4}, w[2] = {1, 1}, dw[2], db[2];
    mem_fault_set(0);
    assert_int_equal(r.k.ops->layernorm_backward(r.k.ctx, out, dw, db, in, in, w, mean, rstd, 2, 2), -E_NOMEM);
    mem_fault_set(-1);
    assert_int_equal(r.k.ops->layernorm_backward(r.k.ctx, out, dw, db, in, in, w, mean, rstd, 2, 2), 0);
    rig_done(&r);
}

static void device_memory_is_aligned_and_copied(void **state)
{
    (void)state;
    struct rig r = rig_cpu(1, 0);
    const struct kern_backend *b = r.k.backend;
    void *mem;
    char text[8] = "shoal", back[8] = "";
    assert_int_equal(b->alloc(r.k.ctx, sizeof text, &mem), 0);
    assert_int_equal((uintptr_t)mem % 64, 0);
    assert_int_equal(b->copy(r.k.ctx, mem, text, sizeof text, KERN_HOST_TO_DEVICE), 0);
    assert_int_equal(b->copy(r.k.ctx, back, mem, sizeof text, KERN_DEVICE_TO_HOST), 0);
    assert_int_equal(b->sync(r.k.ctx), 0);
    assert_string_equal(back, "shoal");
    assert_int_equal(b->zero(r.k.ctx, mem, sizeof text), 0);
    assert_int_equal(*(char *)mem, 0);
    b->free(r.k.ctx, mem);
    b->free(r.k.ctx, NULL);
    rig_done(&r);
}

static void ids_out_of_range_are_refused(void **state)
{
    (void)state;
    struct rig rigs[] = {rig_cpu(2, 0), rig_reference()};
    const int32_t bad[][2] = {{-1, 0}, {0, 3}, {INT32_MAX, 0}, {INT32_MIN, 1}};
    float a[16] = {0}, b[16] = {0}, c[16], lse[2] = {0};
    double loss;
    for (int k = 0; k < 2; k++) {
        const struct kern_ops *o = rigs[k].k.ops;
        struct kern_ctx *x = rigs[k].k.ctx;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            assert_int_equal(o->embedding_forward(x, c, bad[i], a, b, 1, 2, 2, 3), -E_INVAL);
            assert_int_equal(o->embedding_backward(x, a, b, c, bad[i], 1, 2, 2, 3, 2), -E_INVAL);
            assert_int_equal(o->cross_entropy_forward(x, &loss, lse, a, bad[i], 2, 3), -E_INVAL);
            assert_int_equal(o->cross_entropy_backward(x, c, a, lse, bad[i], 1.0f, 2, 3), -E_INVAL);
        }
        rig_done(&rigs[k]);
    }
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    struct rig r = rig_cpu(1, 0);
    const struct kern_ops *o = r.k.ops;
    struct kern_ctx *x = r.k.ctx;
    float a[16] = {0}, c[16];
    const int32_t ids[2] = {0, 0};
    assert_int_equal(o->gemm(x, 0, 0, -1, 2, 2, a, a, 0.0f, c), -E_INVAL);
    assert_int_equal(o->gemm(x, 0, 0, 1, INT64_C(1) << 40, 2, a, a, 0.0f, c), -E_INVAL);
    assert_int_equal(o->linear_forward(x, c, a, a, NULL, 1, 1, -1), -E_INVAL);
    assert_int_equal(o->attention_forward(x, c, c, a, 1, 1, 3, 2), -E_INVAL);
    assert_int_equal(o->attention_backward(x, c, a, a, a, 1, 1, 2, 0), -E_INVAL);
    assert_int_equal(o->embedding_backward(x, c, c, a, ids, 1, 2, 1, 1, 1), -E_INVAL); /* fewer positions than T */
    assert_int_equal(o->layernorm_forward(x, c, c, c, a, a, a, 1, 0), -E_INVAL);
    assert_int_equal(o->add(x, c, a, a, -1), -E_INVAL);
    assert_int_equal(o->add(x, c, a, a, 0), 0);
    rig_done(&r);
}

static void fingerprint_tells_numerics_classes_apart(void **state)
{
    (void)state;
    struct rig rigs[] = {rig_cpu(1, 0), rig_cpu(3, 0), rig_reference()};
    char print[3][17];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kern_fingerprint(&rigs[i].k, print[i]), 0);
        assert_int_equal(strspn(print[i], "0123456789abcdef"), 16);
        rig_done(&rigs[i]);
    }
    assert_string_equal(print[0], print[1]);
    assert_string_not_equal(print[0], print[2]); /* sums in double round differently */
}

#ifdef __SSE2__
static void fingerprint_shows_subnormals_flushed_to_zero(void **state)
{
    (void)state;
    char kept[17], flushed[17];
    const unsigned mode = __builtin_ia32_stmxcsr();
    struct rig rig = rig_cpu(1, 0);
    assert_int_equal(kern_fingerprint(&rig.k, kept), 0);
    __builtin_ia32_ldmxcsr(mode | 0x8000); /* results only; one thread computes where it is called */
    const int r = kern_fingerprint(&rig.k, flushed);
    __builtin_ia32_ldmxcsr(mode);
    assert_int_equal(r, 0);
    assert_string_not_equal(kept, flushed);
    rig_done(&rig);
}
#endif

static void exponential_is_within_two_units_in_the_last_place(void **state)
{
    (void)state;
    const float special[5] = {NAN, -INFINITY, -200.0f, 0.0f, -87.34f};
    for (int t = 0; vec_at(t); t++) {
        for (int k = 0; k < 400000; k++) {
            const float x = (float)(-87.3365 + 174.66 * k / 400000.0);
            float y;
            vec_at(t)->exp(&y, &x, 1);
            const double want = exp((double)x);
            const double unit = ldexp(1.0, ilogb(want) - 23);
            if (!(fabs((double)y - want) <= 2.0 * unit))
                fail_msg("e^%a is %a, not %a", (double)x, (double)y, want);
        }
        float out[5];
        vec_at(t)->exp(out, special, 5);
        assert_true(isnan(out[0]) && out[1] == 0.0f && out[2] == 0.0f && out[3] == 1.0f && out[4] == 0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_open_by_name),
        cmocka_unit_test(unknown_devices_are_refused_with_a_list),
        cmocka_unit_test(open_survives_every_failed_allocation),
        cmocka_unit_test(scratch_that_cannot_be_had_is_an_error),
        cmocka_unit_test(device_memory_is_aligned_and_copied),
        cmocka_unit_test(ids_out_of_range_are_refused),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(fingerprint_tells_numerics_classes_apart),
#ifdef __SSE2__
        cmocka_unit_test(fingerprint_shows_subnormals_flushed_to_zero),
#endif
        cmocka_unit_test(exponential_is_within_two_units_in_the_last_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
