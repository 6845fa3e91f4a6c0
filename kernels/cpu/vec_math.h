/* Inlined arithmetic for vec.c: lane reductions, exp and log that are the same on every machine.
 *
 * libm is not used here: its exp and log differ in the last bits between versions and between CPUs. Everything below is
 * written so that compilers can turn a loop over it into vector code: no calls, no branches, selects only. */
#ifndef SHOAL_KERNELS_CPU_VEC_MATH_H
#define SHOAL_KERNELS_CPU_VEC_MATH_H

#include "kernels/cpu/vec.h"

#include <string.h>

/* Iterations of the next loop do not depend on each other, though its pointers may be equal. */
#ifdef __clang__
#define VEC_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define VEC_INDEPENDENT _Pragma("GCC ivdep")
#endif

static inline uint32_t vec_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float vec_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* e^x for |x| <= 87.33, after Cephes' expf (S. Moshier, "Methods and Programs for Mathematical Functions", 1989): x = n
 * ln2 + r, a polynomial in r, and 2^n put into the exponent. At most 2 ulp. NaN gives NaN, because the polynomial does.
 */
static inline float vec_exp_near(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, in the low bits */
    const float k = x * 1.44269504088896341f + magic;
    const float n = k - magic;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* ln2 in two parts; the first product is exact */
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = (y * (r * r) + r) + 1.0f;
    return y * vec_float((vec_bits(k) - vec_bits(magic) + 127) << 23);
}

/* e^x for x <= 87.33: 0 where the result would be subnormal. */
static inline float vec_exp_below(float x)
{
    const float y = vec_exp_near(x);
    return x < -87.3365f ? 0.0f : y;
}

/* ln x for x >= 1; NaN and infinity return themselves. x = m 2^e with m about 1, ln m = 2 atanh((m - 1) / (m + 1)). */
static inline double vec_log(double x)
{
    if (!(x < 0x1p1000))
        return x;
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    const uint64_t above = (u & UINT64_C(0xfffffffffffff)) > UINT64_C(0x6a09e667f3bcd); /* m > sqrt(2): halve it */
    const double e = (double)((int64_t)(u >> 52) - 1023 + (int64_t)above);
    u = (u & UINT64_C(0xfffffffffffff)) | ((UINT64_C(1023) - above) << 52);
    double m;
    memcpy(&m, &u, sizeof m);
    const double t = (m - 1.0) / (m + 1.0);
    const double z = t * t; /* < 0.0295: ten terms leave less than 1e-16 */
    double s = 0.0;
    for (int k = 19; k >= 3; k -= 2)
        s = (s + 1.0 / k) * z;
    return e * 0.69314718055994530942 + 2.0 * (t + t * s);
}

/* Lanes in halves: the widths are constants, so that each step is a few vector instructions. */
static inline void vec_fold_half(float *lanes, int w)
{
    for (int j = 0; j < w; j++)
        lanes[j] += lanes[j + w];
}

static inline float vec_fold(float *lanes)
{
    _Static_assert(VEC_LANES == 32, "five halvings");
    vec_fold_half(lanes, 16);
    vec_fold_half(lanes, 8);
    vec_fold_half(lanes, 4);
    vec_fold_half(lanes, 2);
    return lanes[0] + lanes[1];
}

static inline void vec_clear(float *lanes)
{
    for (int j = 0; j < VEC_LANES; j++)
        lanes[j] = 0.0f;
}

static inline float vec_sum(const float *a, int64_t n)
{
    float lanes[VEC_LANES];
    vec_clear(lanes);
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++)
            lanes[j] += a[i + j];
    for (int j = 0; i + j < n; j++)
        lanes[j] += a[i + j];
    return vec_fold(lanes);
}

/* Sum of (a[i] - mean)^2. */
static inline float vec_sum_squared_distance(const float *a, float mean, int64_t n)
{
    float lanes[VEC_LANES];
    vec_clear(lanes);
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++)
            lanes[j] += (a[i + j] - mean) * (a[i + j] - mean);
    for (int j = 0; i + j < n; j++)
        lanes[j] += (a[i + j] - mean) * (a[i + j] - mean);
    return vec_fold(lanes);
}

/* What of row does not fill a block of lanes, followed by pad; returns where it starts. Short rows are common
 * (attention over few positions), and a padded block costs less than a loop over the rest. */
static inline int64_t vec_tail(float *tail, const float *row, int64_t n, float pad)
{
    const int64_t at = n - n % VEC_LANES;
    for (int j = 0; j < VEC_LANES; j++)
        tail[j] = pad;
    memcpy(tail, row + at, (size_t)(n - at) * sizeof *tail);
    return at;
}

static inline float vec_dot(const float *a, const float *b, int64_t n)
{
    float lanes[VEC_LANES], tail_a[VEC_LANES], tail_b[VEC_LANES];
    vec_clear(lanes);
    const int64_t at = vec_tail(tail_a, a, n, 0.0f);
    vec_tail(tail_b, b, n, 0.0f);
    for (int64_t i = 0; i < at; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (int j = 0; j < VEC_LANES; j++)
        lanes[j] += tail_a[j] * tail_b[j];
    return vec_fold(lanes);
}

/* lanes[j] = the larger of it and a[j]. */
static inline void vec_max_block(float *lanes, const float *a, int n)
{
    for (int j = 0; j < n; j++)
        lanes[j] = a[j] > lanes[j] ? a[j] : lanes[j];
}

/* The largest of row, whose tail was split off at `at`. NaN elements are passed over (they show in what is computed
 * from the row next). */
static inline float vec_max(const float *row, int64_t at, const float *tail)
{
    float lanes[VEC_LANES];
    memcpy(lanes, tail, sizeof lanes);
    for (int64_t i = 0; i < at; i += VEC_LANES)
        vec_max_block(lanes, row + i, VEC_LANES);
    vec_max_block(lanes, lanes + 16, 16);
    vec_max_block(lanes, lanes + 8, 8);
    vec_max_block(lanes, lanes + 4, 4);
    vec_max_block(lanes, lanes + 2, 2);
    return lanes[1] > lanes[0] ? lanes[1] : lanes[0];
}

/* out = e^(in - max), added to lanes. out may be in. */
static inline void vec_exp_block(float *out, float *lanes, const float *in, float max)
{
    VEC_INDEPENDENT
    for (int j = 0; j < VEC_LANES; j++) {
        out[j] = vec_exp_below(in[j] - max);
        lanes[j] += out[j];
    }
}

#endif
