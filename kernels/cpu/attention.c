/* Causal self-attention by matrix products on strided blocks of qkv, without copies. Rows of the T x T score matrix are
 * cut into blocks of ROWS; a block of rows [t0, t1) needs the columns [0, t1) only, so that nearly half of the square
 * is never computed. Forward runs a part per (b, h, block). Backward runs a part per (b, h), because dk and dv are sums
 * over the blocks, from the last to the first. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { ROWS = 64 };

struct job {
    struct kern_ctx *x;
    const float *qkv, *dout, *kept_probs;
    float *out, *probs, *dqkv, *scratch; /* scratch: (slots, ROWS, T) */
    int64_t T, C, H, D, n_blocks;
    float scale;
};

static void forward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t T = j->T, C = j->C, D = j->D;
    const int64_t bh = (int64_t)part / j->n_blocks;
    const int64_t block = j->n_blocks - 1 - (int64_t)part % j->n_blocks; /* the longest first */
    const int64_t t0 = block * ROWS;
    const int64_t t1 = t0 + ROWS < T ? t0 + ROWS : T;
    const float *q = j->qkv + (bh / j->H) * T * 3 * C + (bh % j->H) * D;
    float *p = j->probs + (bh * T + t0) * T;

    const struct cpu_gemm scores = {.trans_b = 1,
                                    .M = t1 - t0,
                                    .N = t1,
                                    .K = D,
                                    .A = q + t0 * 3 * C,
                                    .lda = 3 * C,
                                    .B = q + C,
                                    .ldb = 3 * C,
                                    .C = p,
                                    .ldc = T};
    cpu_gemm_tile(&scores, j->scale);
    for (int64_t t = t0; t < t1; t++) {
        float *row = p + (t - t0) * T;
        j->x->vec->softmax_forward(row, t + 1);
        memset(row + t + 1, 0, (size_t)(T - t - 1) * sizeof *row);
    }
    const struct cpu_gemm mix = {.M = t1 - t0,
                                 .N = D,
                                 .K = t1,
                                 .A = p,
                                 .lda = T,
                                 .B = q + 2 * C,
                                 .ldb = 3 * C,
                                 .C = j->out + ((bh / j->H) * T + t0) * C + (bh % j->H) * D,
                                 .ldc = C};
    cpu_gemm_tile(&mix, 1.0f);
}

static bool shape_ok(int64_t B, int64_t T, int64_t C, int64_t H)
{
    return cpu_dims_ok(B, T, C, H, 3 * C) && H > 0 && C > 0 && C % H == 0;
}

int cpu_attention_forward(struct kern_ctx *x, float *out, float *probs, const float *qkv, int64_t B, int64_t T,
                          int64_t C, int64_t H)
{
    if (!shape_ok(B, T, C, H))
        return -E_INVAL;
    struct job j = {.x = x, .qkv = qkv, .out = out, .probs = probs, .T = T, .C = C, .H = H, .D = C / H};
    j.n_blocks = cpu_n_parts(T, ROWS);
    j.scale = 1.0f / sqrtf((float)j.D);
    cpu_run(x, B * H * j.n_blocks, forward_part, &j);
    return 0;
}

/* Rows [t0, t1): ds = p (dp - rowsum(dp p)) in scratch, then what they give to dq, dk and dv. beta = 0 on first use. */
static void backward_block(const struct job *j, float *ds, int64_t bh, int64_t t0, int64_t t1, float beta)
{
    const int64_t T = j->T, C = j->C, D = j->D, n = t1 - t0;
    const int64_t at = (bh / j->H) * T * 3 * C + (bh % j->H) * D;
    const float *q = j->qkv + at, *k = q + C, *v = k + C;
    float *dq = j->dqkv + at, *dk = dq + C, *dv = dk + C;
    const float *p = j->kept_probs + (bh * T + t0) * T;
    const float *dout = j->dout + ((bh / j->H) * T + t0) * C + (bh % j->H) * D;

    const struct cpu_gemm to_probs = {
        .trans_b = 1, .M = n, .N = t1, .K = D, .A = dout, .lda = C, .B = v, .ldb = 3 * C, .C = ds, .ldc = t1};
    cpu_gemm_tile(&to_probs, 1.0f);
    for (int64_t i = 0; i < n; i++) {
        const int64_t seen = t0 + i + 1;
        j->x->vec->softmax_backward(ds + i * t1, p + i * T, seen);
        memset(ds + i * t1 + seen, 0, (size_t)(t1 - seen) * sizeof *ds);
    }
    const struct cpu_gemm to_q = {
        .M = n, .N = D, .K = t1, .A = ds, .lda = t1, .B = k, .ldb = 3 * C, .C = dq + t0 * 3 * C, .ldc = 3 * C};
    cpu_gemm_tile(&to_q, j->scale);
    const struct cpu_gemm to_k = {.trans_a = 1,
                                  .M = t1,
                                  .N = D,
                                  .K = n,
                                  .A = ds,
                                  .lda = t1,
                                  .B = q + t0 * 3 * C,
                                  .ldb = 3 * C,
                                  .beta = beta,
                                  .C = dk,
                                  .ldc = 3 * C};
    cpu_gemm_tile(&to_k, j->scale);
    const struct cpu_gemm to_v = {.trans_a = 1,
                                  .M = t1,
                                  .N = D,
                                  .K = n,
                                  .A = p,
                                  .lda = T,
                                  .B = dout,
                                  .ldb = C,
                                  .beta = beta,
                                  .C = dv,
                                  .ldc = 3 * C};
    cpu_gemm_tile(&to_v, 1.0f);
}

static void backward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int slot = cpu_slot_take(j->x);
    float *ds = j->scratch + slot * ROWS * j->T;
    for (int64_t block = j->n_blocks - 1; block >= 0; block--) {
        const int64_t t0 = block * ROWS;
        const int64_t t1 = t0 + ROWS < j->T ? t0 + ROWS : j->T;
        backward_block(j, ds, (int64_t)part, t0, t1, block == j->n_blocks - 1 ? 0.0f : 1.0f);
    }
    cpu_slot_give(j->x, slot);
}

int cpu_attention_backward(struct kern_ctx *x, float *dqkv, const float *dout, const float *qkv, const float *probs,
                           int64_t B, int64_t T, int64_t C, int64_t H)
{
    if (!shape_ok(B, T, C, H))
        return -E_INVAL;
    void *scratch;
    const int r = cpu_scratch(x, (size_t)x->n_slots * ROWS * (size_t)T * sizeof(float), &scratch);
    if (r < 0)
        return r;
    struct job j = {.x = x,
                    .qkv = qkv,
                    .dout = dout,
                    .kept_probs = probs,
                    .dqkv = dqkv,
                    .scratch = scratch,
                    .T = T,
                    .C = C,
                    .H = H,
                    .D = C / H};
    j.n_blocks = cpu_n_parts(T, ROWS);
    j.scale = 1.0f / sqrtf((float)j.D);
    cpu_run(x, B * H, backward_part, &j);
    return 0;
}
