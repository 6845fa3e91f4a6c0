/* The inner loops of the CPU backend in plain C, compiled once per instruction set (VEC_TABLE names the table).
 * See vec.h for what they promise; nothing here starts threads or knows of contexts. */
#include "kernels/cpu/vec_math.h"

#include <math.h>

#ifndef VEC_TABLE
#define VEC_TABLE      vec_baseline
#define VEC_TABLE_NAME "baseline"
#endif
extern const struct vec VEC_TABLE;

static void add(float *out, const float *a, const float *b, int64_t n)
{
    VEC_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void add_rows(float *acc, const float *in, int64_t stride, int64_t n_rows, int64_t n_cols)
{
    int64_t r = 0;
    for (; r + 4 <= n_rows; r += 4) { /* four rows a pass: acc is read and written once */
        const float *a = in + r * stride;
        VEC_INDEPENDENT
        for (int64_t c = 0; c < n_cols; c++)
            acc[c] = (((acc[c] + a[c]) + a[c + stride]) + a[c + 2 * stride]) + a[c + 3 * stride];
    }
    for (; r < n_rows; r++)
        add(acc, acc, in + r * stride, n_cols);
}

/* GELU's 0.5 (1 + tanh u) is the logistic function of 2u, u = sqrt(2/pi) (x + 0.044715 x^3): no tanh is needed and
 * nothing cancels for negative x. Past |x| = 10 the logistic is 0 or 1 within 1e-37; clamping x there keeps e^-2u
 * finite, so that the derivative's products are never 0 * infinity. The clamp is of the bits, because compilers turn
 * two comparisons of floats in a row into branches. */
static inline float gelu_clamp(float x)
{
    const int32_t ten = 0x41200000, size = (int32_t)(vec_bits(x) & 0x7fffffff);
    return vec_float((uint32_t)(size < ten ? size : ten) | (vec_bits(x) & 0x80000000));
}

#define GELU_2C 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_A  0.044715f
#define GELU_3A 0.134145f

static void gelu_forward(float *out, const float *in, int64_t n)
{
    VEC_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const float x = gelu_clamp(in[i]);
        const float e = vec_exp_near(-(GELU_2C * (x + GELU_A * (x * x * x))));
        out[i] = in[i] / (1.0f + e);
    }
}

/* With s = 1 / (1 + e): d(x s)/dx = s + x s (1 - s) 2u', and s (1 - s) = e s s. */
static void gelu_backward(float *din, const float *dout, const float *in, int64_t n)
{
    VEC_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const float x = gelu_clamp(in[i]);
        const float e = vec_exp_near(-(GELU_2C * (x + GELU_A * (x * x * x))));
        const float s = 1.0f / (1.0f + e);
        const float du = GELU_2C * (1.0f + GELU_3A * (x * x));
        din[i] = dout[i] * (s + in[i] * ((e * s) * s * du));
    }
}

static void softmax_forward(float *row, int64_t n)
{
    float tail[VEC_LANES], lanes[VEC_LANES];
    vec_clear(lanes);
    const int64_t at = vec_tail(tail, row, n, -INFINITY);
    const float max = vec_max(row, at, tail);
    for (int64_t i = 0; i < at; i += VEC_LANES)
        vec_exp_block(row + i, lanes, row + i, max);
    vec_exp_block(tail, lanes, tail, max);
    const float inv = 1.0f / vec_fold(lanes);
    for (int64_t i = 0; i < at; i++)
        row[i] *= inv;
    for (int j = 0; j < VEC_LANES; j++)
        tail[j] *= inv;
    memcpy(row + at, tail, (size_t)(n - at) * sizeof *row);
}

static void softmax_backward(float *drow, const float *p, int64_t n)
{
    const float dot = vec_dot(drow, p, n);
    VEC_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        drow[i] = p[i] * (drow[i] - dot);
}

static void layernorm_forward(float *out, float *ret_mean, float *ret_rstd, const float *in, const float *weight,
                              const float *bias, int64_t C)
{
    const float mean = vec_sum(in, C) / (float)C;
    const float rstd = 1.0f / sqrtf(vec_sum_squared_distance(in, mean, C) / (float)C + 1e-5f);
    VEC_INDEPENDENT
    for (int64_t c = 0; c < C; c++)
        out[c] = ((in[c] - mean) * rstd) * weight[c] + bias[c];
    *ret_mean = mean;
    *ret_rstd = rstd;
}

/* With n = (in - mean) rstd and g = dout weight: din = rstd (g - mean(g) - n mean(g n)). */
static void layernorm_backward(float *din, float *dweight, float *dbias, const float *dout, const float *in,
                               const float *weight, float mean, float rstd, int64_t C)
{
    float lanes_g[VEC_LANES], lanes_gn[VEC_LANES];
    vec_clear(lanes_g);
    vec_clear(lanes_gn);
    int64_t i = 0;
    for (; i + VEC_LANES <= C; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++) {
            const float g = dout[i + j] * weight[i + j];
            lanes_g[j] += g;
            lanes_gn[j] += g * ((in[i + j] - mean) * rstd);
        }
    for (int j = 0; i + j < C; j++) {
        const float g = dout[i + j] * weight[i + j];
        lanes_g[j] += g;
        lanes_gn[j] += g * ((in[i + j] - mean) * rstd);
    }
    const float mean_g = vec_fold(lanes_g) / (float)C;
    const float mean_gn = vec_fold(lanes_gn) / (float)C;
    VEC_INDEPENDENT
    for (int64_t c = 0; c < C; c++) {
        const float norm = (in[c] - mean) * rstd;
        const float d = dout[c];
        dweight[c] += d * norm;
        dbias[c] += d;
        din[c] = rstd * ((d * weight[c] - mean_g) - norm * mean_gn);
    }
}

static double log_sum_exp(const float *row, int64_t n)
{
    float tail[VEC_LANES], e[VEC_LANES], lanes[VEC_LANES];
    vec_clear(lanes);
    const int64_t at = vec_tail(tail, row, n, -INFINITY);
    const float max = vec_max(row, at, tail);
    for (int64_t i = 0; i < at; i += VEC_LANES)
        vec_exp_block(e, lanes, row + i, max);
    vec_exp_block(e, lanes, tail, max);
    return (double)max + vec_log((double)vec_fold(lanes));
}

static void cross_entropy_backward(float *dlogits, const float *logits, float lse, int64_t target, float scale,
                                   int64_t V)
{
    const float at_target = (vec_exp_below(logits[target] - lse) - 1.0f) * scale;
    VEC_INDEPENDENT
    for (int64_t i = 0; i < V; i++)
        dlogits[i] = vec_exp_below(logits[i] - lse) * scale;
    dlogits[target] = at_target;
}

/* grad * 2^52 is exact in double but too large to round by adding a constant. So: h = it / 2^32 rounded to an integer,
 * l = it - h 2^32, exact, with |l| <= 2^31. As h 2^32 is even, rounding l to nearest even rounds the whole so. */
static int exact_accumulate(int64_t *acc, const float *grad, float bound, int64_t n)
{
    const double magic = 0x1.8p52;
    uint64_t magic_bits;
    memcpy(&magic_bits, &magic, sizeof magic);
    uint32_t refused = 0;
    for (int64_t i = 0; i < n; i++) {
        const float g = grad[i];
        const uint32_t ok = (uint32_t)(g < bound) & (uint32_t)(g > -bound);
        refused |= ok ^ 1u;
        const double v = (double)(ok != 0 ? g : 0.0f) * 0x1p52;
        const double h = v * 0x1p-32 + magic;
        const double l = (v - (h - magic) * 0x1p32) + magic;
        uint64_t h_bits, l_bits;
        memcpy(&h_bits, &h, sizeof h);
        memcpy(&l_bits, &l, sizeof l);
        const uint64_t q = ((h_bits - magic_bits) << 32) + (l_bits - magic_bits);
        acc[i] = (int64_t)((uint64_t)acc[i] + q);
    }
    return refused != 0;
}

static void exact_add(int64_t *acc, const int64_t *other, int64_t n)
{
    VEC_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        acc[i] = (int64_t)((uint64_t)acc[i] + (uint64_t)other[i]);
}

/* The conversion rounds once; the scaling is exact, as no result is subnormal (the smallest is 2^-52). */
static void exact_round(float *out, const int64_t *acc, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)acc[i] * 0x1p-52f;
}

static double sum_squares(const float *a, int64_t n)
{
    double lanes[KERN_SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + KERN_SUM_LANES <= n; i += KERN_SUM_LANES)
        for (int j = 0; j < KERN_SUM_LANES; j++)
            lanes[j] += (double)a[i + j] * (double)a[i + j];
    for (int j = 0; i + j < n; j++)
        lanes[j] += (double)a[i + j] * (double)a[i + j];
    for (int w = KERN_SUM_LANES / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            lanes[j] += lanes[j + w];
    return lanes[0];
}

/* In the order that kern.h prescribes. */
static void adamw(float *p, float *m, float *v, const float *g, const struct kern_adamw *h, int64_t n)
{
    const struct kern_adamw k = *h;
    VEC_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const float gs = g[i] * k.grad_scale;
        const float mi = k.beta1 * m[i] + k.one_minus_beta1 * gs;
        const float vi = k.beta2 * v[i] + k.one_minus_beta2 * (gs * gs);
        m[i] = mi;
        v[i] = vi;
        const float d = (mi * k.inv_bias1) / (sqrtf(vi * k.inv_bias2) + k.eps);
        p[i] = p[i] - k.lr * (d + k.weight_decay * p[i]);
    }
}

static void vec_exp(float *out, const float *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = vec_exp_below(in[i]);
}

const struct vec VEC_TABLE = {
    .name = VEC_TABLE_NAME,
    .add = add,
    .add_rows = add_rows,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .softmax_forward = softmax_forward,
    .softmax_backward = softmax_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .log_sum_exp = log_sum_exp,
    .cross_entropy_backward = cross_entropy_backward,
    .exact_accumulate = exact_accumulate,
    .exact_add = exact_add,
    .exact_round = exact_round,
    .sum_squares = sum_squares,
    .adamw = adamw,
    .exp = vec_exp,
};
