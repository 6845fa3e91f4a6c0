/* What a holder keeps: version 0, what is held, and sums that do not depend on their order. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "model/gpt2.h"
#include "runtime/base/rng.h"
#include "tests/unit/model/rig.h"
#include "tests/unit/model/tiny.h"

static void version_0_depends_on_seed_name_and_element_alone(void **state)
{
    const struct job job = tiny_job();
    struct rig *whole = rig_new(&job, 2, 0, 4), *part = rig_new(&job, 1, 2, 4);
    const int wpe = model_find(whole->m, "wpe.weight"), fc = model_find(whole->m, "h.1.mlp.c_fc.weight");
    const int norm = model_find(whole->m, "h.0.ln_1.weight");
    float first;

    (void)state;
    assert_int_equal(params_init(whole->p, 42), 0);
    assert_int_equal(params_init(part->p, 42), 0);
    for (uint32_t t = 0; t < whole->m->n_tensors; t++) {
        const size_t n_bytes = (size_t)whole->m->tensors[t].n * sizeof(float);

        if (!params_holds(part->p, t))
            continue;
        for (int k = 0; k < PARAMS_PARTS; k++)
            assert_memory_equal(params_part(part->p, t, k), params_part(whole->p, t, k), n_bytes);
        for (int64_t i = 0; i < whole->m->tensors[t].n; i++)
            assert_true(params_part(part->p, t, PARAMS_MOMENT2)[i] == 0.0f);
    }
    assert_true(params_part(whole->p, (uint32_t)norm, PARAMS_VALUE)[3] == 1.0f);
    first = rng_normal_at(rng_key(42, "wpe.weight"), 5) * 0.02f;
    assert_true(params_part(whole->p, (uint32_t)wpe, PARAMS_VALUE)[5] == first);
    assert_int_equal(params_init(part->p, 43), 0);
    assert_memory_not_equal(params_part(part->p, (uint32_t)fc, PARAMS_VALUE),
                            params_part(whole->p, (uint32_t)fc, PARAMS_VALUE), 12 * 48 * sizeof(float));
    rig_free(whole);
    rig_free(part);
}

static void only_held_units_are_there(void **state)
{
    const struct job job = tiny_job();
    struct rig *r = rig_new(&job, 1, 3, 4); /* the head: ln_f and the second use of wte */

    (void)state;
    assert_true(params_holds(r->p, 0));
    assert_null(params_sum(r->p, 0, 0));
    assert_non_null(params_sum(r->p, 0, 1));
    assert_false(params_holds(r->p, 1));
    assert_null(params_part(r->p, 1, PARAMS_VALUE));
    assert_null(params_unit(r->p, 1));
    assert_null(params_unit_grads(r->p, 0));
    assert_ptr_equal(params_unit(r->p, 3)[GPT2_HEAD_WTE], params_part(r->p, 0, PARAMS_VALUE));
    rig_free(r);
}

/* Values, moments and sums of a tensor, or that it is not held. */
static void a_change_keeps_what_is_held_before_and_after(void **state)
{
    const struct job job = tiny_job();
    struct rig *r = rig_new(&job, 1, 0, 2), *whole = rig_new(&job, 1, 0, 4);
    const int wte = model_find(r->m, "wte.weight"), wpe = model_find(r->m, "wpe.weight");
    const int fc = model_find(r->m, "h.0.mlp.c_fc.weight"), fc1 = model_find(r->m, "h.1.mlp.c_fc.weight");
    const size_t n_bytes = (size_t)r->m->tensors[fc].n * sizeof(float);

    (void)state;
    assert_int_equal(params_init(r->p, 42), 0);
    assert_int_equal(params_init(whole->p, 42), 0);
    params_part(r->p, (uint32_t)fc, PARAMS_MOMENT2)[1] = 5;
    float *kept = params_part(r->p, (uint32_t)fc, PARAMS_VALUE);

    assert_int_equal(params_change(r->p, (const bool[]){false, true, false, true}), 0);
    assert_ptr_equal(params_part(r->p, (uint32_t)fc, PARAMS_VALUE), kept);
    assert_memory_equal(kept, params_part(whole->p, (uint32_t)fc, PARAMS_VALUE), n_bytes);
    assert_true(params_part(r->p, (uint32_t)fc, PARAMS_MOMENT2)[1] == 5);
    assert_null(params_part(r->p, (uint32_t)wpe, PARAMS_VALUE));
    assert_null(params_part(r->p, (uint32_t)fc1, PARAMS_VALUE));
    /* Held by the embedding first, by the head now: the values are the same, the sums are of another use. */
    assert_memory_equal(params_part(r->p, (uint32_t)wte, PARAMS_VALUE),
                        params_part(whole->p, (uint32_t)wte, PARAMS_VALUE),
                        (size_t)r->m->tensors[wte].n * sizeof(float));
    assert_null(params_sum(r->p, (uint32_t)wte, 0));
    assert_non_null(params_sum(r->p, (uint32_t)wte, 1));
    assert_null(params_unit(r->p, 0));
    assert_ptr_equal(params_unit(r->p, 3)[GPT2_HEAD_WTE], params_part(r->p, (uint32_t)wte, PARAMS_VALUE));
    assert_int_equal(params_change(r->p, (const bool[]){false, false, true, false}), 0);
    assert_null(params_part(r->p, (uint32_t)fc, PARAMS_VALUE));
    assert_true(params_part(r->p, (uint32_t)fc1, PARAMS_MOMENT1)[0] == 0);
    rig_free(whole);
    rig_free(r);
}

static size_t counted;
static const struct kern_backend *counted_backend;

static int counting_alloc(struct kern_ctx *x, size_t n_bytes, void **ret)
{
    counted += (n_bytes + 63) & ~(size_t)63;
    return counted_backend->alloc(x, n_bytes, ret);
}

static void bytes_are_what_is_allocated(void **state)
{
    const struct job job = tiny_job();
    struct rig *r = rig_new(&job, 1, 0, 4);
    struct kern_backend backend = *r->k.backend;
    struct kern k = r->k;

    (void)state;
    counted_backend = r->k.backend;
    backend.alloc = counting_alloc;
    k.backend = &backend;
    for (unsigned set = 0; set < 16; set++) {
        for (int reduction = JOB_REDUCTION_EXACT; reduction <= JOB_REDUCTION_FAST; reduction++) {
            const bool held[4] = {set & 1, set & 2, set & 4, set & 8};
            struct params *p = NULL;

            counted = 0;
            assert_int_equal(params_new(r->m, &k, reduction, held, &p), 0);
            assert_int_equal(counted, params_bytes(r->m, reduction, held));
            params_free(p);
        }
    }
    rig_free(r);
}

/* The gradient of microbatch i for unit u: values over many magnitudes. */
static void make_grads(struct rig *r, uint32_t u, uint64_t i)
{
    for (uint32_t j = 0; j < r->m->units[u].n_tensors; j++) {
        float *g = params_unit_grads(r->p, u)[j];

        for (int64_t e = 0; e < r->m->tensors[r->m->units[u].tensor[j]].n; e++)
            g[e] = ldexpf(rng_normal_at(i, (uint64_t)e), -(int)(rng_at(i + 100, (uint64_t)e) % 40));
    }
}

static void accumulate(struct rig *r, uint32_t u, uint64_t i)
{
    bool flagged = false;

    make_grads(r, u, i);
    assert_int_equal(params_accumulate(r->p, u, &flagged), 0);
    assert_false(flagged);
}

static void exact_sums_do_not_depend_on_order_or_grouping(void **state)
{
    const struct job job = tiny_job(); /* 4 microbatches */
    struct rig *a = rig_new(&job, 1, 0, 4), *b = rig_new(&job, 3, 0, 4), *c = rig_new(&job, 1, 1, 2);

    (void)state;
    for (uint64_t i = 0; i < 4; i++)
        accumulate(a, 1, i);
    accumulate(b, 1, 3); /* two peers, out of order, then added */
    accumulate(b, 1, 1);
    accumulate(c, 1, 2);
    accumulate(c, 1, 0);
    for (uint32_t j = 0; j < GPT2_BLOCK_TENSORS; j++) {
        const uint32_t t = a->m->units[1].tensor[j];
        const int64_t n = a->m->tensors[t].n;

        assert_int_equal(b->k.ops->exact_add(b->k.ctx, params_sum(b->p, t, 0), params_sum(c->p, t, 0), n), 0);
        assert_memory_equal(params_sum(a->p, t, 0), params_sum(b->p, t, 0), (size_t)n * sizeof(int64_t));
    }
    rig_free(a);
    rig_free(b);
    rig_free(c);
}

static void exact_sums_are_fixed_point_and_clear_to_zero(void **state)
{
    const struct job job = tiny_job();
    struct rig *r = rig_new(&job, 1, 0, 4);
    const uint32_t t = r->m->units[1].tensor[GPT2_LN1_W];
    int64_t *sum = params_sum(r->p, t, 0);

    (void)state;
    make_grads(r, 1, 0);
    params_unit_grads(r->p, 1)[GPT2_LN1_W][0] = 1.5f;
    params_unit_grads(r->p, 1)[GPT2_LN1_W][1] = -0x1p-52f;
    params_unit_grads(r->p, 1)[GPT2_LN1_W][2] = 0x1.8p-52f; /* half way, to even */
    assert_int_equal(params_accumulate(r->p, 1, NULL), 0);
    assert_true(sum[0] == 3 * (INT64_C(1) << 51));
    assert_true(sum[1] == -1);
    assert_true(sum[2] == 2);
    assert_int_equal(params_sums_clear(r->p), 0);
    for (int i = 0; i < 12; i++)
        assert_true(sum[i] == 0);
    rig_free(r);
}

static void what_overflows_is_flagged_and_adds_nothing(void **state)
{
    const float bad[] = {INFINITY, -INFINITY, NAN, 512.0f, -512.0f}; /* 2^11 / 4 microbatches is 512 */
    const struct job job = tiny_job();
    struct rig *r = rig_new(&job, 1, 0, 4);
    const uint32_t t = r->m->units[2].tensor[GPT2_MLP_PROJ_B];
    int64_t *sum = params_sum(r->p, t, 0);

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        bool flagged = false;

        make_grads(r, 2, 0);
        params_unit_grads(r->p, 2)[GPT2_MLP_PROJ_B][7] = bad[i];
        params_unit_grads(r->p, 2)[GPT2_MLP_PROJ_B][8] = 1.0f;
        assert_int_equal(params_accumulate(r->p, 2, &flagged), 0);
        assert_true(flagged);
        assert_true(sum[7] == 0);
        assert_true(sum[8] == (int64_t)(i + 1) << 52);
    }
    rig_free(r);
}

static void sums_at_the_bound_stay_within_64_bits(void **state)
{
    static const uint32_t counts[] = {1, 3, 4, 4096};

    (void)state;
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        struct job job = tiny_job();
        struct rig *r;
        float bound, largest;
        int64_t sum[2] = {0, 0};

        job.train.microbatches = counts[c];
        r = rig_new(&job, 1, 0, 4);
        for (uint32_t t = 0; t < 2; t++) { /* wte has two uses, wpe one */
            const double limit = 2048.0 / (counts[c] * r->m->tensors[t].n_uses);
            uint32_t flag = 0;

            bound = params_exact_bound(r->m, t);
            largest = nextafterf(bound, 0.0f); /* inside, whether or not the bound itself is */
            assert_true((double)bound < limit && (double)nextafterf(bound, INFINITY) >= limit);
            for (uint32_t i = 0; i < counts[c] * r->m->tensors[t].n_uses; i++)
                assert_int_equal(r->k.ops->exact_accumulate(r->k.ctx, &sum[t], &largest, bound, &flag, 1), 0);
            assert_int_equal(flag, 0);
            assert_true(sum[t] > INT64_MAX / 2 && sum[t] <= INT64_MAX);
        }
        rig_free(r);
    }
}

static void fast_sums_are_plain_additions(void **state)
{
    struct job job = tiny_job();
    struct rig *r;
    float *sum;

    (void)state;
    job.reduction = JOB_REDUCTION_FAST;
    r = rig_new(&job, 1, 0, 4);
    sum = params_sum(r->p, 0, 1);
    accumulate(r, 3, 1);
    accumulate(r, 3, 2);
    for (int e = 0; e < 17 * 12; e++) {
        const float a = ldexpf(rng_normal_at(1, (uint64_t)e), -(int)(rng_at(101, (uint64_t)e) % 40));
        const float b = ldexpf(rng_normal_at(2, (uint64_t)e), -(int)(rng_at(102, (uint64_t)e) % 40));

        assert_true(sum[e] == a + b);
        assert_true(((float *)params_sum(r->p, 0, 0))[e] == 0.0f);
    }
    rig_free(r);
}

static void running_out_of_memory_leaves_nothing_behind(void **state)
{
    const struct job job = tiny_job();
    struct rig *r = rig_new(&job, 1, 0, 4);
    const bool held[4] = {true, true, false, true};
    int64_t after = 0;

    (void)state;
    for (;; after++) {
        struct params *p = NULL;
        int e;

        mem_fault_set(after);
        e = params_new(r->m, &r->k, JOB_REDUCTION_EXACT, held, &p);
        if (!mem_fault_hit()) {
            mem_fault_set(-1);
            assert_int_equal(e, 0);
            params_free(p);
            break;
        }
        assert_int_equal(e, -E_NOMEM);
        assert_null(p);
    }
    assert_true(after > 50);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_0_depends_on_seed_name_and_element_alone),
        cmocka_unit_test(only_held_units_are_there),
        cmocka_unit_test(a_change_keeps_what_is_held_before_and_after),
        cmocka_unit_test(bytes_are_what_is_allocated),
        cmocka_unit_test(exact_sums_do_not_depend_on_order_or_grouping),
        cmocka_unit_test(exact_sums_are_fixed_point_and_clear_to_zero),
        cmocka_unit_test(what_overflows_is_flagged_and_adds_nothing),
        cmocka_unit_test(sums_at_the_bound_stay_within_64_bits),
        cmocka_unit_test(fast_sums_are_plain_additions),
        cmocka_unit_test(running_out_of_memory_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
