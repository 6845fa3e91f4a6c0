/* The layers as plain loops in the manner of a textbook: one thread, nothing shared with the fast kernels. See
 * reference.h. */
#include "kernels/cpu/reference.h"
#include "runtime/base/status.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static bool ids_ok(const int32_t *ids, int64_t n, int64_t n_ids)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_ids)
            return false;
    return true;
}

static int gemm(struct kern_ctx *x, int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, const float *A,
                const float *B, float beta, float *C)
{
    (void)x;
    if (M < 0 || N < 0 || K < 0)
        return -E_INVAL;
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double sum = beta == 0.0f ? 0.0 : (double)C[m * N + n];
            for (int64_t k = 0; k < K; k++)
                sum += (double)A[trans_a ? k * M + m : m * K + k] * (double)B[trans_b ? n * K + k : k * N + n];
            C[m * N + n] = (float)sum;
        }
    return 0;
}

static int linear_forward(struct kern_ctx *x, float *out, const float *in, const float *weight, const float *bias,
                          int64_t R, int64_t I, int64_t O)
{
    (void)x;
    if (R < 0 || I < 0 || O < 0)
        return -E_INVAL;
    for (int64_t r = 0; r < R; r++)
        for (int64_t o = 0; o < O; o++) {
            double sum = bias ? (double)bias[o] : 0.0;
            for (int64_t i = 0; i < I; i++)
                sum += (double)in[r * I + i] * (double)weight[i * O + o];
            out[r * O + o] = (float)sum;
        }
    return 0;
}

static int linear_backward(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                           const float *in, const float *weight, int64_t R, int64_t I, int64_t O)
{
    if (R < 0 || I < 0 || O < 0)
        return -E_INVAL;
    if (din)
        gemm(x, 0, 1, R, I, O, dout, weight, 0.0f, din);
    gemm(x, 1, 0, I, O, R, in, dout, 0.0f, dweight);
    for (int64_t o = 0; dbias && o < O; o++) {
        double sum = 0.0;
        for (int64_t r = 0; r < R; r++)
            sum += (double)dout[r * O + o];
        dbias[o] = (float)sum;
    }
    return 0;
}

static int embedding_forward(struct kern_ctx *x, float *out, const int32_t *tokens, const float *wte, const float *wpe,
                             int64_t B, int64_t T, int64_t C, int64_t V)
{
    (void)x;
    if (!ids_ok(tokens, B * T, V))
        return -E_INVAL;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++)
                out[(b * T + t) * C + c] = wte[tokens[b * T + t] * C + c] + wpe[t * C + c];
    return 0;
}

static int embedding_backward(struct kern_ctx *x, float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                              int64_t B, int64_t T, int64_t C, int64_t V, int64_t P)
{
    (void)x;
    if (P < T || !ids_ok(tokens, B * T, V))
        return -E_INVAL;
    memset(dwte, 0, (size_t)(V * C) * sizeof *dwte);
    memset(dwpe, 0, (size_t)(P * C) * sizeof *dwpe);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++) {
                dwte[tokens[b * T + t] * C + c] += dout[(b * T + t) * C + c];
                dwpe[t * C + c] += dout[(b * T + t) * C + c];
            }
    return 0;
}

static int layernorm_forward(struct kern_ctx *x, float *out, float *mean, float *rstd, const float *in,
                             const float *weight, const float *bias, int64_t R, int64_t C)
{
    (void)x;
    if (R < 0 || C <= 0)
        return -E_INVAL;
    for (int64_t r = 0; r < R; r++) {
        const float *a = in + r * C;
        double sum = 0.0, squares = 0.0;
        for (int64_t c = 0; c < C; c++)
            sum += (double)a[c];
        const double m = sum / (double)C;
        for (int64_t c = 0; c < C; c++)
            squares += ((double)a[c] - m) * ((double)a[c] - m);
        const double s = 1.0 / sqrt(squares / (double)C + 1e-5);
        for (int64_t c = 0; c < C; c++)
            out[r * C + c] = (float)(((double)a[c] - m) * s * (double)weight[c] + (double)bias[c]);
        mean[r] = (float)m;
        rstd[r] = (float)s;
    }
    return 0;
}

/* din row r, from norm = (in - mean) rstd and g = dout weight: rstd (g - mean(g) - norm mean(g norm)). */
static void layernorm_din(float *din, const float *dout, const float *in, const float *weight, double mean, double rstd,
                          int64_t C)
{
    double mean_g = 0.0, mean_gn = 0.0;
    for (int64_t c = 0; c < C; c++) {
        const double g = (double)dout[c] * (double)weight[c];
        mean_g += g / (double)C;
        mean_gn += g * ((double)in[c] - mean) * rstd / (double)C;
    }
    for (int64_t c = 0; c < C; c++) {
        const double norm = ((double)in[c] - mean) * rstd;
        din[c] = (float)(rstd * ((double)dout[c] * (double)weight[c] - mean_g - norm * mean_gn));
    }
}

static int layernorm_backward(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                              const float *in, const float *weight, const float *mean, const float *rstd, int64_t R,
                              int64_t C)
{
    (void)x;
    if (R < 0 || C <= 0)
        return -E_INVAL;
    for (int64_t r = 0; r < R; r++)
        layernorm_din(din + r * C, dout + r * C, in + r * C, weight, (double)mean[r], (double)rstd[r], C);
    for (int64_t c = 0; c < C; c++) {
        double dw = 0.0, db = 0.0;
        for (int64_t r = 0; r < R; r++) {
            dw += (double)dout[r * C + c] * ((double)in[r * C + c] - (double)mean[r]) * (double)rstd[r];
            db += (double)dout[r * C + c];
        }
        dweight[c] = (float)dw;
        dbias[c] = (float)db;
    }
    return 0;
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One head's row t: its probabilities over positions 0..t, then its mix of their values. q, k, v: rows 3C apart. */
static void attention_row(float *out, float *p, const float *q, const float *k, const float *v, int64_t t, int64_t T,
                          int64_t C, int64_t D)
{
    const double scale = 1.0 / sqrt((double)D);
    double max = -HUGE_VAL, sum = 0.0;
    for (int64_t s = 0; s <= t; s++)
        max = fmax(max, scale * dot(q + t * 3 * C, k + s * 3 * C, D));
    for (int64_t s = 0; s <= t; s++)
        sum += exp(scale * dot(q + t * 3 * C, k + s * 3 * C, D) - max);
    for (int64_t s = 0; s < T; s++)
        p[s] = s > t ? 0.0f : (float)(exp(scale * dot(q + t * 3 * C, k + s * 3 * C, D) - max) / sum);
    for (int64_t d = 0; d < D; d++) {
        double mix = 0.0;
        for (int64_t s = 0; s <= t; s++)
            mix += (double)p[s] * (double)v[s * 3 * C + d];
        out[d] = (float)mix;
    }
}

static int attention_forward(struct kern_ctx *x, float *out, float *probs, const float *qkv, int64_t B, int64_t T,
                             int64_t C, int64_t H)
{
    (void)x;
    if (B < 0 || T < 0 || C <= 0 || H <= 0 || C % H != 0)
        return -E_INVAL;
    const int64_t D = C / H;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < T; t++) {
                const float *q = qkv + b * T * 3 * C + h * D;
                attention_row(out + (b * T + t) * C + h * D, probs + ((b * H + h) * T + t) * T, q, q + C, q + 2 * C, t,
                              T, C, D);
            }
    return 0;
}

/* Element (t, s) of the gradient of one head's scores before scaling. */
static double attention_dscore(const float *p, const float *dout, const float *v, int64_t t, int64_t s, int64_t C,
                               int64_t D)
{
    double mean = 0.0;
    for (int64_t i = 0; i <= t; i++)
        mean += (double)p[i] * dot(dout, v + i * 3 * C, D);
    return (double)p[s] * (dot(dout, v + s * 3 * C, D) - mean);
}

static int attention_backward(struct kern_ctx *x, float *dqkv, const float *dout, const float *qkv, const float *probs,
                              int64_t B, int64_t T, int64_t C, int64_t H)
{
    (void)x;
    if (B < 0 || T < 0 || C <= 0 || H <= 0 || C % H != 0)
        return -E_INVAL;
    const int64_t D = C / H;
    const double scale = 1.0 / sqrt((double)D);
    memset(dqkv, 0, (size_t)(B * T * 3 * C) * sizeof *dqkv);
    for (int64_t bh = 0; bh < B * H; bh++) {
        const int64_t at = bh / H * T * 3 * C + bh % H * D;
        const float *q = qkv + at, *k = q + C, *v = k + C;
        float *dq = dqkv + at, *dk = dq + C, *dv = dk + C;
        for (int64_t t = 0; t < T; t++) {
            const float *p = probs + (bh * T + t) * T;
            const float *d = dout + (bh / H * T + t) * C + bh % H * D;
            for (int64_t s = 0; s <= t; s++) {
                const double ds = scale * attention_dscore(p, d, v, t, s, C, D);
                for (int64_t i = 0; i < D; i++) {
                    dq[t * 3 * C + i] += (float)(ds * (double)k[s * 3 * C + i]);
                    dk[s * 3 * C + i] += (float)(ds * (double)q[t * 3 * C + i]);
                    dv[s * 3 * C + i] += (float)((double)p[s] * (double)d[i]);
                }
            }
        }
    }
    return 0;
}

#define SQRT_2_OVER_PI 0.79788456080286535588

static int gelu_forward(struct kern_ctx *x, float *out, const float *in, int64_t n)
{
    (void)x;
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)in[i];
        out[i] = (float)(0.5 * a * (1.0 + tanh(SQRT_2_OVER_PI * (a + 0.044715 * a * a * a))));
    }
    return n < 0 ? -E_INVAL : 0;
}

static int gelu_backward(struct kern_ctx *x, float *din, const float *dout, const float *in, int64_t n)
{
    (void)x;
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)in[i];
        const double t = tanh(SQRT_2_OVER_PI * (a + 0.044715 * a * a * a));
        const double du = SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * a * a);
        din[i] = (float)((double)dout[i] * (0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * du));
    }
    return n < 0 ? -E_INVAL : 0;
}

static int add(struct kern_ctx *x, float *out, const float *a, const float *b, int64_t n)
{
    (void)x;
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
    return n < 0 ? -E_INVAL : 0;
}

static int cross_entropy_forward(struct kern_ctx *x, double *ret_loss_sum, float *lse, const float *logits,
                                 const int32_t *targets, int64_t R, int64_t V)
{
    (void)x;
    if (!ids_ok(targets, R, V))
        return -E_INVAL;
    double loss = 0.0;
    for (int64_t r = 0; r < R; r++) {
        double max = -HUGE_VAL, sum = 0.0;
        for (int64_t v = 0; v < V; v++)
            max = fmax(max, (double)logits[r * V + v]);
        for (int64_t v = 0; v < V; v++)
            sum += exp((double)logits[r * V + v] - max);
        lse[r] = (float)(max + log(sum));
        loss += max + log(sum) - (double)logits[r * V + targets[r]];
    }
    *ret_loss_sum = loss;
    return 0;
}

static int cross_entropy_backward(struct kern_ctx *x, float *dlogits, const float *logits, const float *lse,
                                  const int32_t *targets, float scale, int64_t R, int64_t V)
{
    (void)x;
    if (!ids_ok(targets, R, V))
        return -E_INVAL;
    for (int64_t r = 0; r < R; r++)
        for (int64_t v = 0; v < V; v++) {
            const double p = exp((double)logits[r * V + v] - (double)lse[r]);
            dlogits[r * V + v] = (float)((p - (v == targets[r] ? 1.0 : 0.0)) * (double)scale);
        }
    return 0;
}

const struct kern_ops reference_ops = {
    .gemm = gemm,
    .linear_forward = linear_forward,
    .linear_backward = linear_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .add = add,
    .cross_entropy_forward = cross_entropy_forward,
    .cross_entropy_backward = cross_entropy_backward,
    .exact_accumulate = reference_exact_accumulate,
    .exact_add = reference_exact_add,
    .exact_round = reference_exact_round,
    .sum_squares = reference_sum_squares,
    .adamw = reference_adamw,
    .init_normal = reference_init_normal,
};
