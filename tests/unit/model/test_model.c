/* A model as data: GPT-2's names, shapes and counts, and which unit uses what. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "model/gpt2.h"
#include "model/model.h"
#include "runtime/base/mem.h"
#include "tests/unit/model/tiny.h"

static struct model *make(const struct job *job)
{
    struct reason why = {0};
    struct model *m = NULL;

    if (model_new(job, &m, &why) < 0)
        fail_msg("%s", why.text);
    return m;
}

static void gpt2_small_has_its_published_size(void **state)
{
    struct job job = tiny_job();
    struct model *m;

    (void)state;
    job.model.n_layer = 12;
    job.model.n_head = 12;
    job.model.n_embd = 768;
    job.model.n_ctx = 1024;
    job.model.n_vocab = 50257;
    m = make(&job);
    assert_int_equal(m->n_params, 124439808);
    assert_int_equal(m->n_units, 14);
    assert_int_equal(m->n_tensors, 148);
    assert_int_equal(model_boundary_elems(m), 2 * 1024 * 768);
    model_free(m);
}

static void tensors_are_in_canonical_order_with_their_shapes(void **state)
{
    static const struct {
        const char *name;
        int64_t d0, d1;
    } expected[] = {
        {"wte.weight", 17, 12},
        {"wpe.weight", 6, 12},
        {"h.0.ln_1.weight", 12, 0},
        {"h.0.ln_1.bias", 12, 0},
        {"h.0.attn.c_attn.weight", 12, 36},
        {"h.0.attn.c_attn.bias", 36, 0},
        {"h.0.attn.c_proj.weight", 12, 12},
        {"h.0.attn.c_proj.bias", 12, 0},
        {"h.0.ln_2.weight", 12, 0},
        {"h.0.ln_2.bias", 12, 0},
        {"h.0.mlp.c_fc.weight", 12, 48},
        {"h.0.mlp.c_fc.bias", 48, 0},
        {"h.0.mlp.c_proj.weight", 48, 12},
        {"h.0.mlp.c_proj.bias", 12, 0},
        {"ln_f.weight", 12, 0},
        {"ln_f.bias", 12, 0},
    };
    struct job job = tiny_job();
    struct model *m;
    int64_t n_params = 0;

    (void)state;
    job.model.n_layer = 1;
    m = make(&job);
    assert_int_equal(m->n_tensors, sizeof(expected) / sizeof(expected[0]));
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const struct model_tensor *x = &m->tensors[t];
        const int64_t n = expected[t].d0 * (expected[t].d1 ? expected[t].d1 : 1);

        assert_string_equal(x->name, expected[t].name);
        assert_int_equal(x->n_dims, expected[t].d1 ? 2 : 1);
        assert_int_equal(x->dims[0], expected[t].d0);
        assert_int_equal(x->dims[1], expected[t].d1);
        assert_int_equal(x->n, n);
        assert_int_equal(x->decay, expected[t].d1 != 0);
        assert_int_equal(model_find(m, x->name), t);
        n_params += n;
    }
    assert_int_equal(m->n_params, n_params);
    assert_int_equal(model_find(m, "transformer.wte.weight"), -E_NOENT);
    model_free(m);
}

static void initialization_is_gpt2s(void **state)
{
    const struct job job = tiny_job();
    struct model *m = make(&job);

    (void)state;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const struct model_tensor *x = &m->tensors[t];
        const bool norm = strstr(x->name, "ln_") != NULL, bias = strstr(x->name, ".bias") != NULL;
        const bool residual = strstr(x->name, "c_proj.weight") != NULL;

        assert_true(x->init_mean == (norm && !bias ? 1.0f : 0.0f));
        if (norm || bias)
            assert_true(x->init_std == 0.0f);
        else
            assert_true(x->init_std == (residual ? (float)(0.02 / sqrt(4.0)) : 0.02f));
    }
    model_free(m);
}

static void the_tied_tensor_has_two_uses_and_every_other_one(void **state)
{
    const struct job job = tiny_job();
    struct model *m = make(&job);
    uint32_t uses = 0;

    (void)state;
    assert_int_equal(m->n_units, 4);
    assert_int_equal(m->units[0].kind, MODEL_UNIT_EMBEDDING);
    assert_int_equal(m->units[1].kind, MODEL_UNIT_BLOCK);
    assert_int_equal(m->units[2].kind, MODEL_UNIT_BLOCK);
    assert_int_equal(m->units[3].kind, MODEL_UNIT_HEAD);
    assert_int_equal(m->tensors[0].n_uses, 2);
    assert_int_equal(m->tensors[0].use_unit[0], 0);
    assert_int_equal(m->tensors[0].use_unit[1], 3);
    assert_int_equal(m->units[3].tensor[GPT2_HEAD_WTE], 0);
    assert_int_equal(m->units[3].use[GPT2_HEAD_WTE], 1);
    for (uint32_t t = 1; t < m->n_tensors; t++)
        assert_int_equal(m->tensors[t].n_uses, 1);
    for (uint32_t u = 0; u < m->n_units; u++) {
        for (uint32_t i = 0; i < m->units[u].n_tensors; i++) {
            const struct model_tensor *x = &m->tensors[m->units[u].tensor[i]];

            assert_int_equal(x->use_unit[m->units[u].use[i]], u);
            uses++;
        }
    }
    assert_int_equal(uses, m->n_tensors + 1);
    assert_string_equal(m->tensors[m->units[2].tensor[GPT2_FC_W]].name, "h.1.mlp.c_fc.weight");
    model_free(m);
}

static void numbers_that_do_not_fit_are_refused(void **state)
{
    struct job job = tiny_job();
    struct reason why = {0};
    struct model *m = NULL;

    (void)state;
    job.model.n_head = 5;
    assert_int_equal(model_new(&job, &m, &why), -E_CONFIG);
    assert_string_equal(why.text, "model.embd (12) must be a multiple of model.heads (5)");
    job = tiny_job();
    job.model.n_layer = UNITS_MAX - 1;
    assert_int_equal(model_new(&job, &m, &why), -E_CONFIG);
    assert_string_equal(why.text, "model.layers must be 1 to 1022, not 1023");
    job.model.n_layer = UNITS_MAX - 2;
    assert_int_equal(model_new(&job, &m, &why), 0);
    assert_int_equal(m->n_units, UNITS_MAX);
    assert_true(m->n_tensors <= TENSORS_MAX);
    model_free(m);
}

static void running_out_of_memory_leaves_nothing_behind(void **state)
{
    const struct job job = tiny_job();
    int64_t after = 0;

    (void)state;
    for (;; after++) {
        struct reason why = {0};
        struct model *m = NULL;
        int r;

        mem_fault_set(after);
        r = model_new(&job, &m, &why);
        if (!mem_fault_hit()) {
            mem_fault_set(-1);
            assert_int_equal(r, 0);
            model_free(m);
            break;
        }
        assert_int_equal(r, -E_NOMEM);
        assert_null(m);
    }
    assert_true(after >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_small_has_its_published_size),
        cmocka_unit_test(tensors_are_in_canonical_order_with_their_shapes),
        cmocka_unit_test(initialization_is_gpt2s),
        cmocka_unit_test(the_tied_tensor_has_two_uses_and_every_other_one),
        cmocka_unit_test(numbers_that_do_not_fit_are_refused),
        cmocka_unit_test(running_out_of_memory_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
