/* Every layer kernel on inputs from a rig, over shapes that fit the vector lanes and the blocks and shapes that do not.
 * See rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/kernels/rig.h"

#include <string.h>

/* d: M, N, K, 2 trans_a + trans_b, beta */
static void run_gemm(struct rig *r, const int64_t *d)
{
    const float *A = rig_in(r, d[0] * d[2]), *B = rig_in(r, d[2] * d[1]), *start = rig_in(r, d[0] * d[1]);
    float *C = d[4] ? rig_in_place(r, "C", start, d[0] * d[1]) : rig_out(r, "C", d[0] * d[1]);
    assert_int_equal(r->k.ops->gemm(r->k.ctx, d[3] >> 1 & 1, d[3] & 1, d[0], d[1], d[2], A, B, (float)d[4], C), 0);
}

/* d: R, I, O, with bias */
static void run_linear(struct rig *r, const int64_t *d)
{
    const int64_t R = d[0], I = d[1], O = d[2];
    const float *in = rig_in(r, R * I), *weight = rig_in(r, I * O), *bias = rig_in(r, O), *dout = rig_in(r, R * O);
    float *out = rig_out(r, "out", R * O);
    float *din = rig_out(r, "din", R * I), *dweight = rig_out(r, "dweight", I * O), *dbias = rig_out(r, "dbias", O);
    assert_int_equal(r->k.ops->linear_forward(r->k.ctx, out, in, weight, d[3] ? bias : NULL, R, I, O), 0);
    assert_int_equal(r->k.ops->linear_backward(r->k.ctx, din, dweight, dbias, dout, in, weight, R, I, O), 0);
}

/* d: B, T, C, V, P */
static void run_embedding(struct rig *r, const int64_t *d)
{
    const int64_t B = d[0], T = d[1], C = d[2], V = d[3], P = d[4];
    const int32_t *tokens = rig_ids(r, B * T, V);
    const float *wte = rig_in(r, V * C), *wpe = rig_in(r, P * C), *dout = rig_in(r, B * T * C);
    float *out = rig_out(r, "out", B * T * C), *dwte = rig_out(r, "dwte", V * C), *dwpe = rig_out(r, "dwpe", P * C);
    assert_int_equal(r->k.ops->embedding_forward(r->k.ctx, out, tokens, wte, wpe, B, T, C, V), 0);
    assert_int_equal(r->k.ops->embedding_backward(r->k.ctx, dwte, dwpe, dout, tokens, B, T, C, V, P), 0);
}

/* d: R, C */
static void run_layernorm(struct rig *r, const int64_t *d)
{
    const int64_t R = d[0], C = d[1];
    const float *in = rig_in(r, R * C), *weight = rig_in(r, C), *bias = rig_in(r, C), *dout = rig_in(r, R * C);
    float *out = rig_out(r, "out", R * C), *mean = rig_out(r, "mean", R), *rstd = rig_out(r, "rstd", R);
    float *din = rig_out(r, "din", R * C), *dweight = rig_out(r, "dweight", C), *dbias = rig_out(r, "dbias", C);
    assert_int_equal(r->k.ops->layernorm_forward(r->k.ctx, out, mean, rstd, in, weight, bias, R, C), 0);
    assert_int_equal(r->k.ops->layernorm_backward(r->k.ctx, din, dweight, dbias, dout, in, weight, mean, rstd, R, C),
                     0);
}

/* d: B, T, C, H */
static void run_attention(struct rig *r, const int64_t *d)
{
    const int64_t B = d[0], T = d[1], C = d[2], H = d[3];
    const float *qkv = rig_in(r, B * T * 3 * C), *dout = rig_in(r, B * T * C);
    float *out = rig_out(r, "out", B * T * C), *probs = rig_out(r, "probs", B * H * T * T);
    float *dqkv = rig_out(r, "dqkv", B * T * 3 * C);
    assert_int_equal(r->k.ops->attention_forward(r->k.ctx, out, probs, qkv, B, T, C, H), 0);
    assert_int_equal(r->k.ops->attention_backward(r->k.ctx, dqkv, dout, qkv, probs, B, T, C, H), 0);
}

/* d: n, the factor that spreads the inputs */
static void run_gelu(struct rig *r, const int64_t *d)
{
    const float *small = rig_in(r, d[0]), *dout = rig_in(r, d[0]);
    float *in = rig_in_place(r, "in", small, d[0]);
    for (int64_t i = 0; i < d[0]; i++)
        in[i] *= (float)d[1];
    float *out = rig_out(r, "out", d[0]), *din = rig_out(r, "din", d[0]);
    assert_int_equal(r->k.ops->gelu_forward(r->k.ctx, out, in, d[0]), 0);
    assert_int_equal(r->k.ops->gelu_backward(r->k.ctx, din, dout, in, d[0]), 0);
}

/* d: n, in place */
static void run_add(struct rig *r, const int64_t *d)
{
    const float *a = rig_in(r, d[0]), *b = rig_in(r, d[0]);
    float *out = d[1] ? rig_in_place(r, "out", a, d[0]) : rig_out(r, "out", d[0]);
    assert_int_equal(r->k.ops->add(r->k.ctx, out, d[1] ? out : a, b, d[0]), 0);
}

/* d: R, V, the factor that spreads the logits, in place */
static void run_cross_entropy(struct rig *r, const int64_t *d)
{
    const int64_t R = d[0], V = d[1];
    const float *small = rig_in(r, R * V);
    const int32_t *targets = rig_ids(r, R, V);
    float *logits = rig_in_place(r, "logits", small, R * V);
    for (int64_t i = 0; i < R * V; i++)
        logits[i] *= (float)d[2];
    float *lse = rig_out(r, "lse", R), *loss_bits = rig_out(r, "loss", 1);
    double loss = 0.0;
    assert_int_equal(r->k.ops->cross_entropy_forward(r->k.ctx, &loss, lse, logits, targets, R, V), 0);
    *loss_bits = (float)loss;
    float *dlogits = d[3] ? logits : rig_out(r, "dlogits", R * V);
    assert_int_equal(r->k.ops->cross_entropy_backward(r->k.ctx, dlogits, logits, lse, targets, 0.125f, R, V), 0);
}

const struct kernel_case kernel_cases[] = {
    {"gemm", run_gemm, {1, 1, 1, 0, 0}},
    {"gemm", run_gemm, {5, 7, 3, 1, 1}},
    {"gemm", run_gemm, {37, 33, 129, 2, 0}},
    {"gemm", run_gemm, {129, 257, 65, 3, 1}},
    {"gemm", run_gemm, {400, 130, 300, 1, 0}},
    {"gemm", run_gemm, {7, 6, 0, 0, 1}},
    {"linear", run_linear, {1, 1, 1, 1}},
    {"linear", run_linear, {257, 48, 144, 1}},
    {"linear", run_linear, {128, 192, 257, 0}},
    {"linear", run_linear, {200, 300, 210, 1}},
    {"embedding", run_embedding, {1, 1, 1, 1, 1}},
    {"embedding", run_embedding, {3, 17, 70, 13, 20}},
    {"embedding", run_embedding, {4, 64, 128, 257, 64}},
    {"layernorm", run_layernorm, {1, 1}},
    {"layernorm", run_layernorm, {33, 31}},
    {"layernorm", run_layernorm, {100, 256}},
    {"layernorm", run_layernorm, {70, 771}},
    {"attention", run_attention, {1, 1, 1, 1}},
    {"attention", run_attention, {2, 63, 24, 3}},
    {"attention", run_attention, {2, 65, 32, 2}},
    {"attention", run_attention, {1, 130, 64, 1}},
    {"gelu", run_gelu, {1, 1}},
    {"gelu", run_gelu, {33000, 4}},
    {"gelu", run_gelu, {16385, 20}},
    {"add", run_add, {1, 0}},
    {"add", run_add, {16421, 0}},
    {"add", run_add, {16421, 1}},
    {"cross_entropy", run_cross_entropy, {1, 1, 1, 0}},
    {"cross_entropy", run_cross_entropy, {65, 257, 5, 0}},
    {"cross_entropy", run_cross_entropy, {9, 5003, 40, 1}},
};
const int n_kernel_cases = sizeof kernel_cases / sizeof *kernel_cases;
