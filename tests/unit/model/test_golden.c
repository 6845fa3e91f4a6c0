/* Ten steps of a tiny GPT-2 give the losses, norms and first gradients that PyTorch gives (tools/golden.py, which tells
 * the formulas of weights and tokens repeated here). Everything that a training step uses is in it: units, parameters,
 * exact sums, clipping, schedule, AdamW. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "kernels/registry.h"
#include "model/optimizer.h"
#include "model/params.h"
#include "model/unit.h"
#include "runtime/base/mem.h"
#include "tests/golden/gpt2_tiny.h"

#define BOUND 1e-4 /* relative, of losses, norms and gradients */

static struct job golden_job(void)
{
    return (struct job){
        .name = "golden",
        .model = {.n_layer = GOLDEN_LAYERS,
                  .n_head = GOLDEN_HEADS,
                  .n_embd = GOLDEN_EMBD,
                  .n_ctx = GOLDEN_CONTEXT,
                  .n_vocab = GOLDEN_VOCAB},
        .train = {.steps = GOLDEN_STEPS,
                  .microbatches = GOLDEN_MICROBATCHES,
                  .sequences = GOLDEN_SEQUENCES,
                  .lr = golden_lr,
                  .lr_min = golden_lr_min,
                  .warmup_steps = GOLDEN_WARMUP,
                  .weight_decay = golden_weight_decay,
                  .beta1 = golden_beta1,
                  .beta2 = golden_beta2,
                  .eps = golden_eps,
                  .clip = golden_clip},
        .reduction = JOB_REDUCTION_EXACT,
    };
}

static uint32_t mix(uint32_t x)
{
    x *= 2654435761u;
    x ^= x >> 16;
    x *= 2246822519u;
    return x ^ (x >> 13);
}

static float golden_weight(uint32_t t, uint32_t i, bool is_gain)
{
    const double u = (double)(mix((t << 20) + i) >> 8) / 0x1p24;

    return (float)((is_gain ? 1.0 : 0.0) + (u - 0.5) * 0.5);
}

static int32_t golden_token(uint32_t step, uint32_t microbatch, uint32_t sequence, uint32_t position)
{
    const uint32_t x = ((step * GOLDEN_MICROBATCHES + microbatch) * GOLDEN_SEQUENCES + sequence) * 7 + position;

    return (int32_t)(97 + (x * x * 3 + x) % 26);
}

/* One trainer: a device, the model, all of its state, and room for one microbatch. */
struct trainer {
    struct job job;
    struct model *model;
    struct kern kern;
    struct params *params;
    int32_t *tokens, *targets;
    float **boundary; /* boundary[u]: what unit u gives out */
    void **saved;
    void *scratch;
    float *dout, *din;
    float *grad; /* of the largest tensor */
};

static void *device_alloc(struct trainer *t, size_t n_bytes)
{
    void *p = NULL;

    assert_int_equal(t->kern.backend->alloc(t->kern.ctx, n_bytes, &p), 0);
    return p;
}

static void fill_weights(struct trainer *t)
{
    for (uint32_t i = 0; i < t->model->n_tensors; i++) {
        const struct model_tensor *tensor = &t->model->tensors[i];
        const bool is_gain = strstr(tensor->name, "ln_") != NULL && strstr(tensor->name, ".weight") != NULL;
        float *values = mem_alloc((size_t)tensor->n * sizeof(float));

        for (uint32_t k = 0; k < tensor->n; k++)
            values[k] = golden_weight(i, k, is_gain);
        assert_int_equal(t->kern.backend->copy(t->kern.ctx, params_part(t->params, i, PARAMS_VALUE), values,
                                               (size_t)tensor->n * sizeof(float), KERN_HOST_TO_DEVICE),
                         0);
        assert_int_equal(t->kern.backend->sync(t->kern.ctx), 0);
        mem_free(values);
    }
}

static void trainer_init(struct trainer *t, int n_threads)
{
    bool *held;
    size_t n_boundary;
    int64_t n_max = 0;

    *t = (struct trainer){.job = golden_job()};
    assert_int_equal(kern_open("cpu", n_threads, &t->kern, NULL), 0);
    assert_int_equal(model_new(&t->job, &t->model, NULL), 0);
    assert_int_equal(t->model->n_params, GOLDEN_PARAMS);
    held = mem_alloc(t->model->n_units * sizeof(bool));
    for (uint32_t u = 0; u < t->model->n_units; u++)
        held[u] = true;
    assert_int_equal(params_new(t->model, &t->kern, t->job.reduction, held, &t->params), 0);
    mem_free(held);
    fill_weights(t);

    n_boundary = (size_t)model_boundary_elems(t->model) * sizeof(float);
    t->boundary = mem_calloc(t->model->n_units, sizeof(*t->boundary));
    t->saved = mem_calloc(t->model->n_units, sizeof(*t->saved));
    for (uint32_t u = 0; u < t->model->n_units; u++) {
        t->boundary[u] = device_alloc(t, n_boundary);
        t->saved[u] = device_alloc(t, unit_saved_bytes(t->model, u));
    }
    for (uint32_t i = 0; i < t->model->n_tensors; i++)
        n_max = t->model->tensors[i].n > n_max ? t->model->tensors[i].n : n_max;
    t->grad = device_alloc(t, (size_t)n_max * sizeof(float));
    t->scratch = device_alloc(t, unit_scratch_bytes(t->model));
    t->dout = device_alloc(t, n_boundary);
    t->din = device_alloc(t, n_boundary);
    t->tokens = device_alloc(t, GOLDEN_SEQUENCES * GOLDEN_CONTEXT * sizeof(int32_t));
    t->targets = device_alloc(t, GOLDEN_SEQUENCES * GOLDEN_CONTEXT * sizeof(int32_t));
}

static void trainer_done(struct trainer *t)
{
    void *const rest[] = {t->grad, t->scratch, t->dout, t->din, t->tokens, t->targets};

    for (uint32_t u = 0; u < t->model->n_units; u++) {
        t->kern.backend->free(t->kern.ctx, t->boundary[u]);
        t->kern.backend->free(t->kern.ctx, t->saved[u]);
    }
    for (size_t i = 0; i < sizeof(rest) / sizeof(rest[0]); i++)
        t->kern.backend->free(t->kern.ctx, rest[i]);
    mem_free(t->boundary);
    mem_free(t->saved);
    params_free(t->params);
    model_free(t->model);
    kern_close(&t->kern);
}

static void set_tokens(struct trainer *t, uint32_t step, uint32_t microbatch)
{
    int32_t tokens[GOLDEN_SEQUENCES][GOLDEN_CONTEXT], targets[GOLDEN_SEQUENCES][GOLDEN_CONTEXT];

    for (uint32_t b = 0; b < GOLDEN_SEQUENCES; b++) {
        for (uint32_t i = 0; i < GOLDEN_CONTEXT; i++) {
            tokens[b][i] = golden_token(step, microbatch, b, i);
            targets[b][i] = golden_token(step, microbatch, b, i + 1);
        }
    }
    t->kern.backend->copy(t->kern.ctx, t->tokens, tokens, sizeof(tokens), KERN_HOST_TO_DEVICE);
    t->kern.backend->copy(t->kern.ctx, t->targets, targets, sizeof(targets), KERN_HOST_TO_DEVICE);
    assert_int_equal(t->kern.backend->sync(t->kern.ctx), 0);
}

static struct unit_run run_of(struct trainer *t, uint32_t u)
{
    return (struct unit_run){.model = t->model,
                             .kern = &t->kern,
                             .scratch = t->scratch,
                             .params = params_unit(t->params, u),
                             .tokens = t->tokens,
                             .targets = t->targets,
                             .in = u > 0 ? t->boundary[u - 1] : NULL,
                             .saved = t->saved[u]};
}

/* Forward and backward of one microbatch, gradients added to the sums. Returns its sum of losses. */
static double run_microbatch(struct trainer *t)
{
    const float loss_scale = 1.0f / (float)job_step_tokens(&t->job);
    bool flagged = false;
    double loss = 0;

    for (uint32_t u = 0; u < t->model->n_units; u++) {
        const struct unit_run run = run_of(t, u);

        assert_int_equal(unit_forward(&run, u, t->boundary[u], &loss), 0);
    }
    for (uint32_t u = t->model->n_units; u-- > 0;) {
        const struct unit_run run = run_of(t, u);
        float *const swap = t->dout;

        assert_int_equal(
            unit_backward(&run, u, t->dout, u > 0 ? t->din : NULL, params_unit_grads(t->params, u), loss_scale), 0);
        assert_int_equal(params_accumulate(t->params, u, &flagged), 0);
        t->dout = t->din;
        t->din = swap;
    }
    assert_false(flagged);
    return loss;
}

/* The gradient of tensor i over all its uses, rounded once, into t->grad. */
static void round_gradient(struct trainer *t, uint32_t i)
{
    const struct model_tensor *tensor = &t->model->tensors[i];
    int64_t *sum = params_sum(t->params, i, 0);

    for (uint32_t use = 1; use < tensor->n_uses; use++)
        assert_int_equal(t->kern.ops->exact_add(t->kern.ctx, sum, params_sum(t->params, i, use), tensor->n), 0);
    assert_int_equal(t->kern.ops->exact_round(t->kern.ctx, t->grad, sum, tensor->n), 0);
}

/* ||got - want|| / ||want|| of tensor i's gradient. */
static double gradient_error(struct trainer *t, uint32_t i, const float *want)
{
    const int64_t n = t->model->tensors[i].n;
    float *got = mem_alloc((size_t)n * sizeof(float));
    double difference = 0, whole = 0;

    t->kern.backend->copy(t->kern.ctx, got, t->grad, (size_t)n * sizeof(float), KERN_DEVICE_TO_HOST);
    assert_int_equal(t->kern.backend->sync(t->kern.ctx), 0);
    for (int64_t k = 0; k < n; k++) {
        difference += ((double)got[k] - (double)want[k]) * ((double)got[k] - (double)want[k]);
        whole += (double)want[k] * (double)want[k];
    }
    mem_free(got);
    return sqrt(difference / whole);
}

/* The norm of the whole gradient; in the first step each tensor is compared. */
static double check_gradients(struct trainer *t, uint32_t step)
{
    const float *want = golden_gradients;
    double squares = 0;

    for (uint32_t i = 0; i < t->model->n_tensors; i++) {
        double square;

        round_gradient(t, i);
        assert_int_equal(t->kern.ops->sum_squares(t->kern.ctx, &square, t->grad, t->model->tensors[i].n), 0);
        squares += square;
        if (step == 0) {
            const double error = gradient_error(t, i, want);

            if (!(error <= BOUND))
                fail_msg("gradient of %s is off by %g", t->model->tensors[i].name, error);
        }
        want += t->model->tensors[i].n;
    }
    return sqrt(squares);
}

static void update(struct trainer *t, uint32_t step, double norm)
{
    const struct kern_adamw decaying = optimizer_step(&t->job, step, step, norm);
    struct kern_adamw still = decaying;

    still.weight_decay = 0;
    for (uint32_t i = 0; i < t->model->n_tensors; i++) {
        const struct model_tensor *tensor = &t->model->tensors[i];

        /* The uses were already added together into the first one's sum. */
        assert_int_equal(t->kern.ops->exact_round(t->kern.ctx, t->grad, params_sum(t->params, i, 0), tensor->n), 0);
        assert_int_equal(t->kern.ops->adamw(t->kern.ctx, params_part(t->params, i, PARAMS_VALUE),
                                            params_part(t->params, i, PARAMS_MOMENT1),
                                            params_part(t->params, i, PARAMS_MOMENT2), t->grad,
                                            tensor->decay ? &decaying : &still, tensor->n),
                         0);
    }
    assert_int_equal(params_sums_clear(t->params), 0);
}

static void close_to(double got, double want, const char *what, uint32_t step)
{
    if (!(fabs(got - want) <= BOUND * fabs(want)))
        fail_msg("%s of step %u is %.9g, PyTorch has %.9g", what, step, got, want);
}

static void train_and_compare(int n_threads)
{
    struct trainer t;

    trainer_init(&t, n_threads);
    for (uint32_t step = 0; step < GOLDEN_STEPS; step++) {
        double loss = 0, norm;

        for (uint32_t m = 0; m < GOLDEN_MICROBATCHES; m++) {
            set_tokens(&t, step, m);
            loss += run_microbatch(&t);
        }
        close_to(loss / (double)job_step_tokens(&t.job), golden_losses[step], "loss", step);
        norm = check_gradients(&t, step);
        close_to(norm, golden_norms[step], "gradient norm", step);
        update(&t, step, norm);
    }
    trainer_done(&t);
}

static void ten_steps_equal_pytorch(void **state)
{
    (void)state;
    train_and_compare(1);
}

static void ten_steps_equal_pytorch_on_three_threads(void **state)
{
    (void)state;
    train_and_compare(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_equal_pytorch),
        cmocka_unit_test(ten_steps_equal_pytorch_on_three_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
