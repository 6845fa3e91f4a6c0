/* What the files of the CPU backend share: the context, cutting work into parts, scratch memory, and the list of
 * operations. Nothing outside kernels/cpu and its tests includes this.
 *
 * Invariant of every operation here: parts are cut by shape only and no part reads what another writes, so results do
 * not depend on the number of threads. */
#ifndef SHOAL_KERNELS_CPU_CPU_H
#define SHOAL_KERNELS_CPU_CPU_H

#include "kernels/cpu/vec.h"
#include "runtime/base/pool.h"
#include "runtime/base/status.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>

struct kern_ctx {
    struct pool *pool;
    const struct vec *vec;
    void *scratch; /* grows to the most that an operation asked for */
    size_t scratch_bytes;
    _Atomic bool *slot_taken; /* one per thread of the pool */
    int n_slots;
};

/* n_bytes of 64-byte aligned scratch, valid until the next call. -E_NOMEM. */
int cpu_scratch(struct kern_ctx *x, size_t n_bytes, void **ret);

/* A number in [0, n_slots) that no other running part has: which piece of scratch a part may use. Never waits when at
 * most n_slots parts run at once. */
int cpu_slot_take(struct kern_ctx *x);
void cpu_slot_give(struct kern_ctx *x, int slot);

/* Every dimension lies in [0, INT_MAX]. */
#define cpu_dims_ok(...)                                                                                               \
    cpu_dims_check((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
static inline bool cpu_dims_check(const int64_t *dims, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (dims[i] < 0 || dims[i] > INT_MAX)
            return false;
    return true;
}

/* Elements of one part of an elementwise operation: 64 KiB of floats. */
#define CPU_BLOCK INT64_C(16384)

static inline int64_t cpu_n_parts(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/* Length of part p when n elements are cut into blocks. */
static inline int64_t cpu_part_len(int64_t n, int64_t block, size_t p)
{
    const int64_t rest = n - (int64_t)p * block;
    return rest < block ? rest : block;
}

/* Rows of length C per part, so that a part has about CPU_BLOCK elements. */
static inline int64_t cpu_rows_per_part(int64_t C)
{
    return C >= CPU_BLOCK ? 1 : CPU_BLOCK / (C > 0 ? C : 1);
}

static inline void cpu_run(struct kern_ctx *x, int64_t n_parts, void (*fn)(void *arg, size_t part), void *arg)
{
    if (n_parts > 0)
        pool_run(x->pool, (size_t)n_parts, fn, arg);
}

/* C[M,N] = op(A) op(B) + beta C with leading dimensions, or + bias[N] in each row when bias is given. Dimensions were
 * checked. */
struct cpu_gemm {
    int trans_a, trans_b;
    int64_t M, N, K;
    const float *A, *B, *bias;
    float *C;
    float beta;
    int64_t lda, ldb, ldc;
};
void cpu_gemm_run(struct kern_ctx *x, const struct cpu_gemm *g);

/* One single-threaded call on the calling thread: C = alpha op(A) op(B) + beta C. */
void cpu_gemm_tile(const struct cpu_gemm *g, float alpha);

/* n elements, element i at offset i, all set to zero by the pool. */
void cpu_zero(struct kern_ctx *x, float *a, int64_t n);

/* The operations of kern.h, a file per family. */
int cpu_gemm(struct kern_ctx *x, int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, const float *A,
             const float *B, float beta, float *C);
int cpu_linear_forward(struct kern_ctx *x, float *out, const float *in, const float *weight, const float *bias,
                       int64_t R, int64_t I, int64_t O);
int cpu_linear_backward(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                        const float *in, const float *weight, int64_t R, int64_t I, int64_t O);
int cpu_embedding_forward(struct kern_ctx *x, float *out, const int32_t *tokens, const float *wte, const float *wpe,
                          int64_t B, int64_t T, int64_t C, int64_t V);
int cpu_embedding_backward(struct kern_ctx *x, float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                           int64_t B, int64_t T, int64_t C, int64_t V, int64_t P);
int cpu_layernorm_forward(struct kern_ctx *x, float *out, float *mean, float *rstd, const float *in,
                          const float *weight, const float *bias, int64_t R, int64_t C);
int cpu_layernorm_backward(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                           const float *in, const float *weight, const float *mean, const float *rstd, int64_t R,
                           int64_t C);
int cpu_attention_forward(struct kern_ctx *x, float *out, float *probs, const float *qkv, int64_t B, int64_t T,
                          int64_t C, int64_t H);
int cpu_attention_backward(struct kern_ctx *x, float *dqkv, const float *dout, const float *qkv, const float *probs,
                           int64_t B, int64_t T, int64_t C, int64_t H);
int cpu_gelu_forward(struct kern_ctx *x, float *out, const float *in, int64_t n);
int cpu_gelu_backward(struct kern_ctx *x, float *din, const float *dout, const float *in, int64_t n);
int cpu_add(struct kern_ctx *x, float *out, const float *a, const float *b, int64_t n);
int cpu_cross_entropy_forward(struct kern_ctx *x, double *ret_loss_sum, float *lse, const float *logits,
                              const int32_t *targets, int64_t R, int64_t V);
int cpu_cross_entropy_backward(struct kern_ctx *x, float *dlogits, const float *logits, const float *lse,
                               const int32_t *targets, float scale, int64_t R, int64_t V);
int cpu_exact_accumulate(struct kern_ctx *x, int64_t *acc, const float *grad, float bound, uint32_t *flag, int64_t n);
int cpu_exact_add(struct kern_ctx *x, int64_t *acc, const int64_t *other, int64_t n);
int cpu_exact_round(struct kern_ctx *x, float *out, const int64_t *acc, int64_t n);
int cpu_sum_squares(struct kern_ctx *x, double *ret, const float *a, int64_t n);
int cpu_adamw(struct kern_ctx *x, float *p, float *m, float *v, const float *g, const struct kern_adamw *h, int64_t n);
int cpu_init_normal(struct kern_ctx *x, float *out, uint64_t key, float mean, float std, int64_t n);

/* Ids in [0, n_ids)? They come from the network, so each operation that indexes with them asks first. */
bool cpu_ids_ok(const int32_t *ids, int64_t n, int64_t n_ids);

#endif
