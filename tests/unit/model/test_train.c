/* Training a tiny model in one process: the loss falls, and the order of microbatches leaves no trace in the bits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/data.h"
#include "model/optimizer.h"
#include "tests/unit/model/rig.h"
#include "tests/unit/model/tiny.h"

#define STEPS 30

static char text_path[] = "/tmp/shoal-train-XXXXXX";

static struct job train_job(void)
{
    struct job job = tiny_job();

    job.model.n_embd = 32;
    job.model.n_ctx = 16;
    job.model.n_vocab = 256;
    job.data.paths[0] = text_path;
    job.data.n_paths = 1;
    job.train.steps = STEPS;
    job.train.sequences = 4;
    job.train.lr = 1e-2;
    job.train.lr_min = 1e-3;
    job.train.warmup_steps = 3;
    return job;
}

static int write_text(void **state)
{
    const int fd = mkstemp(text_path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;

    (void)state;
    if (!f)
        return -1;
    for (int i = 0; i < 200; i++)
        fputs("the quick brown fox jumps over the lazy dog\n", f);
    return fclose(f);
}

static int remove_text(void **state)
{
    (void)state;
    return unlink(text_path);
}

/* The reduced gradient of tensor t: the sum of its uses, rounded once. */
static void reduce(struct rig *r, uint32_t t, float *ret)
{
    const struct model_tensor *x = &r->m->tensors[t];

    if (x->n_uses == 2)
        assert_int_equal(r->k.ops->exact_add(r->k.ctx, params_sum(r->p, t, 0), params_sum(r->p, t, 1), x->n), 0);
    assert_int_equal(r->k.ops->exact_round(r->k.ctx, ret, params_sum(r->p, t, 0), x->n), 0);
}

static void update(struct rig *r, const struct job *job, uint64_t version)
{
    float **grads = mem_calloc(r->m->n_tensors, sizeof(*grads));
    struct kern_adamw h;
    double squares = 0.0;

    assert_non_null(grads);
    for (uint32_t t = 0; t < r->m->n_tensors; t++) {
        double s;

        grads[t] = rig_alloc(r, (size_t)r->m->tensors[t].n * sizeof(float));
        reduce(r, t, grads[t]);
        assert_int_equal(r->k.ops->sum_squares(r->k.ctx, &s, grads[t], r->m->tensors[t].n), 0);
        squares += s;
    }
    h = optimizer_step(job, version, version, sqrt(squares));
    for (uint32_t t = 0; t < r->m->n_tensors; t++) {
        struct kern_adamw of_tensor = h;

        of_tensor.weight_decay = r->m->tensors[t].decay ? h.weight_decay : 0.0f;
        assert_int_equal(r->k.ops->adamw(r->k.ctx, params_part(r->p, t, PARAMS_VALUE),
                                         params_part(r->p, t, PARAMS_MOMENT1), params_part(r->p, t, PARAMS_MOMENT2),
                                         grads[t], &of_tensor, r->m->tensors[t].n),
                         0);
        r->k.backend->free(r->k.ctx, grads[t]);
    }
    mem_free(grads);
}

/* Trains; losses[step]: nats per token. Microbatches run in ascending or descending order. */
static struct rig *train(const struct job *job, int n_threads, bool descending, double losses[STEPS])
{
    struct rig *r = rig_new(job, n_threads, 0, job->model.n_layer + 2);
    const uint32_t M = job->train.microbatches;
    const double n_tokens = (double)job_step_tokens(job);
    struct reason why = {0};
    struct data *d = NULL;

    if (data_open(job, &d, &why) < 0)
        fail_msg("%s", why.text);
    assert_int_equal(params_init(r->p, job->seed), 0);
    for (uint64_t step = 0; step < STEPS; step++) {
        losses[step] = 0.0;
        assert_int_equal(params_sums_clear(r->p), 0);
        for (uint32_t i = 0; i < M; i++) {
            data_sample(d, step, descending ? M - 1 - i : i, r->tokens, r->targets);
            losses[step] += rig_forward(r) / n_tokens;
            rig_backward(r, (float)(1.0 / n_tokens));
        }
        update(r, job, step);
    }
    data_free(d);
    return r;
}

static void the_loss_falls_below_what_letter_frequencies_give(void **state)
{
    const struct job job = train_job();
    double losses[STEPS], unigram;
    struct reason why = {0};
    struct data *d = NULL;

    (void)state;
    if (data_open(&job, &d, &why) < 0)
        fail_msg("%s", why.text);
    unigram = data_unigram_loss(d);
    data_free(d);
    rig_free(train(&job, 1, false, losses));
    assert_true(fabs(losses[0] - log(256.0)) < 0.1);
    for (int i = 1; i < STEPS; i++)
        assert_true(losses[i] < losses[0]);
    print_message("loss %.3f -> %.3f, unigram %.3f\n", losses[0], losses[STEPS - 1], unigram);
    assert_true(losses[STEPS - 1] < unigram - 0.2);
}

static void the_order_of_microbatches_leaves_no_trace(void **state)
{
    const struct job job = train_job();
    double a_losses[STEPS], b_losses[STEPS];
    struct rig *a = train(&job, 1, false, a_losses), *b = train(&job, 3, true, b_losses);

    (void)state;
    for (uint32_t t = 0; t < a->m->n_tensors; t++)
        for (int part = 0; part < PARAMS_PARTS; part++)
            assert_memory_equal(params_part(a->p, t, part), params_part(b->p, t, part),
                                (size_t)a->m->tensors[t].n * sizeof(float));
    rig_free(a);
    rig_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_falls_below_what_letter_frequencies_give),
        cmocka_unit_test(the_order_of_microbatches_leaves_no_trace),
    };

    return cmocka_run_group_tests(tests, write_text, remove_text);
}
