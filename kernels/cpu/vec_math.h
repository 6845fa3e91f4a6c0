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

static inline float vec_fold(float *lanes)
{
    for (int w = VEC_LANES / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            lanes[j] += lanes[j + w];
    return lanes[0];
}

static inline float vec_sum(const float *a, int64_t n)
{
    float lanes[VEC_LANES] = {0};
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++)
            lanes[j] += a[i + j];
    for (int j = 0; i + j < n; j++)
        lanes[j] += a[i + j];
    return vec_fold(lanes);
}

static inline float vec_dot(const float *a, const float *b, int64_t n)
{
    float lanes[VEC_LANES] = {0};
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++)
        lanes[j] += a[i + j] * b[i + j];
    return vec_fold(lanes);
}

/* Sum of (a[i] - mean)^2. */
static inline float vec_sum_squared_distance(const float *a, float mean, int64_t n)
{
    float lanes[VEC_LANES] = {0};
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++)
            lanes[j] += (a[i + j] - mean) * (a[i + j] - mean);
    for (int j = 0; i + j < n; j++)
        lanes[j] += (a[i + j] - mean) * (a[i + j] - mean);
    return vec_fold(lanes);
}

/* The largest; NaN elements are passed over (they show in what is computed from the row next). */
static inline float vec_max(const float *a, int64_t n)
{
    float lanes[VEC_LANES];
    for (int j = 0; j < VEC_LANES; j++)
        lanes[j] = a[0];
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++)
            lanes[j] = a[i + j] > lanes[j] ? a[i + j] : lanes[j];
    for (int j = 0; i + j < n; j++)
        lanes[j] = a[i + j] > lanes[j] ? a[i + j] : lanes[j];
    for (int w = VEC_LANES / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            lanes[j] = lanes[j + w] > lanes[j] ? lanes[j + w] : lanes[j];
    return lanes[0];
}

#endif
