/* The STATE operations as directly as they can be said, with integers where the fast ones use tricks in double. */
#include "kernels/cpu/reference.h"
#include "runtime/base/rng.h"
#include "runtime/base/status.h"

#include <math.h>
#include <string.h>

/* g 2^52 rounded to nearest even, from the float's own bits: |g| = m 2^(e - 150), so the value is m 2^(e - 98). */
static int64_t to_fixed(float g)
{
    uint32_t u;
    memcpy(&u, &g, sizeof u);
    const int biased = (int)(u >> 23 & 0xff);
    const int e = biased > 0 ? biased : 1;
    const int64_t m = (int64_t)(u & 0x7fffff) | (biased > 0 ? 0x800000 : 0);
    int64_t q;
    if (e >= 98) {
        q = m << (e - 98);
    } else if (98 - e > 25) {
        q = 0; /* m < 2^24 is less than half a unit */
    } else {
        const int s = 98 - e;
        const int64_t half = INT64_C(1) << (s - 1), rest = m & ((INT64_C(1) << s) - 1);
        q = m >> s;
        q += rest > half || (rest == half && (q & 1));
    }
    return u >> 31 ? -q : q;
}

int reference_exact_accumulate(struct kern_ctx *x, int64_t *acc, const float *grad, float bound, uint32_t *flag,
                               int64_t n)
{
    (void)x;
    if (n < 0 || !(bound > 0.0f && bound <= 0x1p11f))
        return -E_INVAL;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(grad[i]) && fabsf(grad[i]) < bound)
            acc[i] += to_fixed(grad[i]);
        else
            *flag = 1;
    }
    return 0;
}

int reference_exact_add(struct kern_ctx *x, int64_t *acc, const int64_t *other, int64_t n)
{
    (void)x;
    for (int64_t i = 0; i < n; i++)
        acc[i] += other[i];
    return n < 0 ? -E_INVAL : 0;
}

/* acc = q 2^s + rest with 24-bit q, rounded to nearest even; then q 2^(s - 52). */
int reference_exact_round(struct kern_ctx *x, float *out, const int64_t *acc, int64_t n)
{
    (void)x;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t a = acc[i] < 0 ? -(uint64_t)acc[i] : (uint64_t)acc[i];
        int s = 0;
        while (a >> s >= UINT64_C(1) << 24)
            s++;
        uint64_t q = a >> s;
        if (s > 0) {
            const uint64_t half = UINT64_C(1) << (s - 1), rest = a & ((UINT64_C(1) << s) - 1);
            q += rest > half || (rest == half && (q & 1));
        }
        const float f = ldexpf((float)q, s - 52);
        out[i] = acc[i] < 0 ? -f : f;
    }
    return n < 0 ? -E_INVAL : 0;
}

int reference_sum_squares(struct kern_ctx *x, double *ret, const float *a, int64_t n)
{
    (void)x;
    if (n < 0)
        return -E_INVAL;
    double sum = 0.0;
    for (int64_t start = 0; start < n; start += KERN_SUM_BLOCK) {
        double lane[KERN_SUM_LANES] = {0};
        for (int64_t i = start; i < n && i < start + KERN_SUM_BLOCK; i++)
            lane[i % KERN_SUM_LANES] += (double)a[i] * (double)a[i];
        for (int w = KERN_SUM_LANES / 2; w > 0; w /= 2)
            for (int l = 0; l < w; l++)
                lane[l] += lane[l + w];
        sum += lane[0];
    }
    *ret = sum;
    return 0;
}

int reference_adamw(struct kern_ctx *x, float *p, float *m, float *v, const float *g, const struct kern_adamw *h,
                    int64_t n)
{
    (void)x;
    for (int64_t i = 0; i < n; i++) {
        const float grad = h->grad_scale * g[i];
        m[i] = h->beta1 * m[i] + h->one_minus_beta1 * grad;
        v[i] = h->beta2 * v[i] + h->one_minus_beta2 * (grad * grad);
        const float m_hat = m[i] * h->inv_bias1;
        const float v_hat = v[i] * h->inv_bias2;
        const float update = m_hat / (sqrtf(v_hat) + h->eps) + h->weight_decay * p[i];
        p[i] = p[i] - h->lr * update;
    }
    return n < 0 ? -E_INVAL : 0;
}

int reference_init_normal(struct kern_ctx *x, float *out, uint64_t key, float mean, float std, int64_t n)
{
    (void)x;
    for (int64_t i = 0; i < n; i++)
        out[i] = std == 0.0f ? mean : mean + std * rng_normal_at(key, (uint64_t)i);
    return n < 0 ? -E_INVAL : 0;
}
