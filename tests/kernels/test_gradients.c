/* Every backward of the CPU backend against finite differences of the reference's forward. The loss is a fixed random
 * weighting of the outputs, summed in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/kernels/rig.h"

#include <math.h>

enum { INPUTS_MAX = 3 };

struct problem {
    const char *name;
    double (*loss)(const struct problem *p, struct rig *r);
    void (*backward)(const struct problem *p, struct rig *r, float *const grad[INPUTS_MAX]);
    int64_t d[5];
    float *in[INPUTS_MAX];
    int64_t n_in[INPUTS_MAX]; /* 0: none */
    const float *dout;        /* the weighting */
    int64_t n_out;
    const int32_t *ids;
};

static double weigh(const struct problem *p, const float *out)
{
    double loss = 0.0;
    for (int64_t i = 0; i < p->n_out; i++)
        loss += (double)out[i] * (double)p->dout[i];
    return loss;
}

/* d: R, I, O; in: in, weight, bias */
static double linear_loss(const struct problem *p, struct rig *r)
{
    float out[64];
    r->k.ops->linear_forward(r->k.ctx, out, p->in[0], p->in[1], p->in[2], p->d[0], p->d[1], p->d[2]);
    return weigh(p, out);
}

static void linear_backward(const struct problem *p, struct rig *r, float *const grad[INPUTS_MAX])
{
    r->k.ops->linear_backward(r->k.ctx, grad[0], grad[1], grad[2], p->dout, p->in[0], p->in[1], p->d[0], p->d[1],
                              p->d[2]);
}

/* d: B, T, C, V, P; in: wte, wpe */
static double embedding_loss(const struct problem *p, struct rig *r)
{
    float out[64];
    r->k.ops->embedding_forward(r->k.ctx, out, p->ids, p->in[0], p->in[1], p->d[0], p->d[1], p->d[2], p->d[3]);
    return weigh(p, out);
}

static void embedding_backward(const struct problem *p, struct rig *r, float *const grad[INPUTS_MAX])
{
    r->k.ops->embedding_backward(r->k.ctx, grad[0], grad[1], p->dout, p->ids, p->d[0], p->d[1], p->d[2], p->d[3],
                                 p->d[4]);
}

/* d: R, C; in: in, weight, bias */
static double layernorm_loss(const struct problem *p, struct rig *r)
{
    float out[64], mean[8], rstd[8];
    r->k.ops->layernorm_forward(r->k.ctx, out, mean, rstd, p->in[0], p->in[1], p->in[2], p->d[0], p->d[1]);
    return weigh(p, out);
}

static void layernorm_backward(const struct problem *p, struct rig *r, float *const grad[INPUTS_MAX])
{
    float out[64], mean[8], rstd[8];
    r->k.ops->layernorm_forward(r->k.ctx, out, mean, rstd, p->in[0], p->in[1], p->in[2], p->d[0], p->d[1]);
    r->k.ops->layernorm_backward(r->k.ctx, grad[0], grad[1], grad[2], p->dout, p->in[0], p->in[1], mean, rstd, p->d[0],
                                 p->d[1]);
}

/* d: B, T, C, H; in: qkv */
static double attention_loss(const struct problem *p, struct rig *r)
{
    float out[64], probs[128];
    r->k.ops->attention_forward(r->k.ctx, out, probs, p->in[0], p->d[0], p->d[1], p->d[2], p->d[3]);
    return weigh(p, out);
}

static void attention_backward(const struct problem *p, struct rig *r, float *const grad[INPUTS_MAX])
{
    float out[64], probs[128];
    r->k.ops->attention_forward(r->k.ctx, out, probs, p->in[0], p->d[0], p->d[1], p->d[2], p->d[3]);
    r->k.ops->attention_backward(r->k.ctx, grad[0], p->dout, p->in[0], probs, p->d[0], p->d[1], p->d[2], p->d[3]);
}

/* d: n */
static double gelu_loss(const struct problem *p, struct rig *r)
{
    float out[64];
    r->k.ops->gelu_forward(r->k.ctx, out, p->in[0], p->d[0]);
    return weigh(p, out);
}

static void gelu_backward(const struct problem *p, struct rig *r, float *const grad[INPUTS_MAX])
{
    r->k.ops->gelu_backward(r->k.ctx, grad[0], p->dout, p->in[0], p->d[0]);
}

/* d: R, V; in: logits. The loss is the kernel's own, halved by scale. */
static double cross_entropy_loss(const struct problem *p, struct rig *r)
{
    float lse[8];
    double loss = 0.0;
    r->k.ops->cross_entropy_forward(r->k.ctx, &loss, lse, p->in[0], p->ids, p->d[0], p->d[1]);
    return 0.5 * loss;
}

static void cross_entropy_backward(const struct problem *p, struct rig *r, float *const grad[INPUTS_MAX])
{
    float lse[8];
    double loss = 0.0;
    r->k.ops->cross_entropy_forward(r->k.ctx, &loss, lse, p->in[0], p->ids, p->d[0], p->d[1]);
    r->k.ops->cross_entropy_backward(r->k.ctx, grad[0], p->in[0], lse, p->ids, 0.5f, p->d[0], p->d[1]);
}

/* The central difference of fourth order: with h = 2^-5 its own error is below 1e-5, and rounding adds about as much.
 */
static double slope(const struct problem *p, struct rig *truth, float *at)
{
    const float h = 0x1p-5f, x = *at;
    double f[5];
    for (int i = 0; i < 5; i++) {
        *at = x + (float)(i - 2) * h;
        f[i] = i == 2 ? 0.0 : p->loss(p, truth);
    }
    const double width = ((double)(x + h) - (double)(x - h)) / 2.0; /* h as rounding left it */
    *at = x;
    return (8.0 * (f[3] - f[1]) - (f[4] - f[0])) / (12.0 * width);
}

static void check_problem(struct problem *p, struct rig *cpu, struct rig *truth)
{
    float *grad[INPUTS_MAX] = {0};
    for (int k = 0; k < INPUTS_MAX && p->n_in[k] > 0; k++) {
        p->in[k] = rig_in_place(cpu, "x", rig_in(cpu, p->n_in[k]), p->n_in[k]);
        grad[k] = rig_out(cpu, "dx", p->n_in[k]);
    }
    p->dout = rig_in(cpu, p->n_out);
    p->backward(p, cpu, grad);
    for (int k = 0; k < INPUTS_MAX && p->n_in[k] > 0; k++)
        for (int64_t i = 0; i < p->n_in[k]; i++) {
            const double want = slope(p, truth, &p->in[k][i]);
            if (!(fabs((double)grad[k][i] - want) <= 1e-4 * (1.0 + fabs(want))))
                fail_msg("%s: d input %d [%d] is %.7g, differences say %.7g", p->name, k, (int)i, (double)grad[k][i],
                         want);
        }
    rig_reset(cpu);
}

static void every_backward_is_the_derivative_of_its_forward(void **state)
{
    (void)state;
    const int32_t tokens[6] = {3, 0, 3, 4, 3, 1}, targets[4] = {0, 8, 3, 3};
    struct problem problems[] = {
        {"linear", linear_loss, linear_backward, {3, 4, 5}, {0}, {12, 20, 5}, NULL, 15, NULL},
        {"embedding", embedding_loss, embedding_backward, {2, 3, 4, 5, 4}, {0}, {20, 16}, NULL, 24, tokens},
        {"layernorm", layernorm_loss, layernorm_backward, {3, 7}, {0}, {21, 7, 7}, NULL, 21, NULL},
        {"attention", attention_loss, attention_backward, {2, 4, 6, 2}, {0}, {144}, NULL, 48, NULL},
        {"gelu", gelu_loss, gelu_backward, {50}, {0}, {50}, NULL, 50, NULL},
        {"cross_entropy", cross_entropy_loss, cross_entropy_backward, {4, 9}, {0}, {36}, NULL, 1, targets},
    };
    struct rig cpu = rig_cpu(2, 0), truth = rig_reference();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check_problem(&problems[i], &cpu, &truth);
    rig_done(&cpu);
    rig_done(&truth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backward_is_the_derivative_of_its_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
