/* The one way to a device: a table of functions with an ABI number. The CPU backend is always built in; others are
 * modules that fill the same table. A plain header for C and C++, with nothing of the rest of Shoal but fixed-width
 * types.
 *
 * Shapes: capitals are dimensions, all arrays row-major and dense. Every kernel obeys the numerics rules: the result
 * depends on shapes and inputs only, never on the number of threads; reductions have a fixed order; no contraction;
 * denormals kept. Kernels marked STATE use integer and correctly rounded IEEE operations only and give the same bits on
 * every backend.
 *
 * A kernel call may return before the device is done; calls on one context run in order; sync() waits and reports what
 * went wrong. A context belongs to one thread at a time. Pointers are the context's device memory unless said
 * otherwise. */
#ifndef SHOAL_KERNELS_KERN_H
#define SHOAL_KERNELS_KERN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "kernels built with -ffast-math or -Ofast round as they like: remove it from CFLAGS"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "kernels need floats that are rounded to floats after every operation (x87 does not: use SSE2)"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KERN_ABI 1u

struct kern_device {
    char name[64];         /* "AMD EPYC 7xx3" */
    uint64_t memory_bytes; /* that this process may use now */
    uint32_t n_cores;      /* CPU threads or compute units */
};

struct kern_config {
    int device;                               /* index among devices() */
    int n_threads;                            /* CPU: threads of the worker pool, >= 1 */
    void (*log)(int level, const char *text); /* may be NULL; levels of runtime/base/log.h */
};

enum kern_copy { KERN_HOST_TO_DEVICE, KERN_DEVICE_TO_HOST, KERN_DEVICE_TO_DEVICE };

/* One step of AdamW (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2). Everything transcendental is computed once by
 * the coordinator. Every backend computes, in fp32, each operation rounded once, as bracketed here:
 *     s = g * grad_scale
 *     m = (beta1 * m) + (one_minus_beta1 * s)
 *     v = (beta2 * v) + (one_minus_beta2 * (s * s))
 *     d = (m * inv_bias1) / (sqrt(v * inv_bias2) + eps)
 *     p = p - (lr * (d + (weight_decay * p))) */
struct kern_adamw {
    float grad_scale; /* multiplies the gradient sum first: the clip factor */
    float lr;
    float beta1, beta2;
    float one_minus_beta1, one_minus_beta2; /* rounded once from double by the coordinator */
    float inv_bias1, inv_bias2;             /* 1 / (1 - beta^t) */
    float eps;
    float weight_decay; /* 0 for tensors that do not decay */
};

struct kern_ctx;

/* The order of sum_squares: blocks of KERN_SUM_BLOCK elements. In a block, element i goes to lane i % KERN_SUM_LANES in
 * order of i; then lane j takes lane j + w for w = KERN_SUM_LANES / 2, ..., 2, 1. The blocks' lanes 0 add in order. */
#define KERN_SUM_BLOCK 4096
#define KERN_SUM_LANES 16

/* All return 0 or a negative status (runtime/base/status.h). */
struct kern_ops {
    /* C[M,N] = op(A) op(B) + beta C. op is the identity or the transpose: A is (M,K), or (K,M) if trans_a; B is (K,N),
     * or (N,K) if trans_b. beta is 0 or 1. */
    int (*gemm)(struct kern_ctx *x, int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, const float *A,
                const float *B, float beta, float *C);

    /* out[R,O] = in[R,I] weight[I,O] + bias[O]. The weight lies as GPT-2's Conv1D stores it. bias may be NULL. */
    int (*linear_forward)(struct kern_ctx *x, float *out, const float *in, const float *weight, const float *bias,
                          int64_t R, int64_t I, int64_t O);
    /* din[R,I], dweight[I,O], dbias[O] are overwritten. din or dbias may be NULL. */
    int (*linear_backward)(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                           const float *in, const float *weight, int64_t R, int64_t I, int64_t O);

    /* out[B,T,C] = wte[tokens] + wpe[t]; tokens (B,T) in [0,V). Out-of-range tokens: -E_INVAL. */
    int (*embedding_forward)(struct kern_ctx *x, float *out, const int32_t *tokens, const float *wte, const float *wpe,
                             int64_t B, int64_t T, int64_t C, int64_t V);
    /* dwte[V,C] and dwpe[P,C] (P >= T positions) are overwritten; sums in order of (b,t). */
    int (*embedding_backward)(struct kern_ctx *x, float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                              int64_t B, int64_t T, int64_t C, int64_t V, int64_t P);

    /* Over the last dimension, eps 1e-5. mean[R], rstd[R] are kept for backward. */
    int (*layernorm_forward)(struct kern_ctx *x, float *out, float *mean, float *rstd, const float *in,
                             const float *weight, const float *bias, int64_t R, int64_t C);
    /* din[R,C], dweight[C], dbias[C] overwritten. */
    int (*layernorm_backward)(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                              const float *in, const float *weight, const float *mean, const float *rstd, int64_t R,
                              int64_t C);

    /* Causal multi-head self-attention. qkv (B,T,3C) holds q,k,v of all heads one after another, C = H*D; out (B,T,C).
     * probs (B,H,T,T) is kept for backward (rows sum to 1, zero above the diagonal). scale is 1/sqrt(D). */
    int (*attention_forward)(struct kern_ctx *x, float *out, float *probs, const float *qkv, int64_t B, int64_t T,
                             int64_t C, int64_t H);
    /* dqkv (B,T,3C) overwritten. */
    int (*attention_backward)(struct kern_ctx *x, float *dqkv, const float *dout, const float *qkv, const float *probs,
                              int64_t B, int64_t T, int64_t C, int64_t H);

    /* GELU, tanh form (Hendrycks & Gimpel, arXiv 1606.08415), as GPT-2 has it. n elements. */
    int (*gelu_forward)(struct kern_ctx *x, float *out, const float *in, int64_t n);
    int (*gelu_backward)(struct kern_ctx *x, float *din, const float *dout, const float *in, int64_t n);

    int (*add)(struct kern_ctx *x, float *out, const float *a, const float *b, int64_t n); /* out may be a or b */

    /* Softmax cross-entropy of logits (R,V) against targets[R] in [0,V). lse[R] (log-sum-exp) is kept for backward.
     * *ret_loss_sum (host) is the sum over rows in double, in row order. Waits for the device. */
    int (*cross_entropy_forward)(struct kern_ctx *x, double *ret_loss_sum, float *lse, const float *logits,
                                 const int32_t *targets, int64_t R, int64_t V);
    /* dlogits (may be logits itself) = (softmax(logits) - onehot(targets)) * scale. */
    int (*cross_entropy_backward)(struct kern_ctx *x, float *dlogits, const float *logits, const float *lse,
                                  const int32_t *targets, float scale, int64_t R, int64_t V);

    /* STATE. acc[i] += round-to-nearest-even(grad[i] * 2^52), exactly. An element that is not strictly between -bound
     * and bound (NaN neither) adds zero and sets *flag (host, only ever set to 1; waits for the device). bound in (0,
     * 2^11 / M] keeps M additions within 64 bits; 0, NaN and more than 2^11 are -E_INVAL. */
    int (*exact_accumulate)(struct kern_ctx *x, int64_t *acc, const float *grad, float bound, uint32_t *flag,
                            int64_t n);
    int (*exact_add)(struct kern_ctx *x, int64_t *acc, const int64_t *other, int64_t n); /* STATE */
    int (*exact_round)(struct kern_ctx *x, float *out, const int64_t *acc,
                       int64_t n); /* STATE: acc * 2^-52 rounded once to fp32 */
    /* STATE: sum of squares in double in a fixed blocked order that depends on n only. Waits for the device; *ret on
     * the host. */
    int (*sum_squares)(struct kern_ctx *x, double *ret, const float *a, int64_t n);
    /* STATE. p, m, v, g: n elements; p, m, v updated in place. */
    int (*adamw)(struct kern_ctx *x, float *p, float *m, float *v, const float *g, const struct kern_adamw *h,
                 int64_t n);
    /* STATE: out[i] = mean + std * normal(key, i) with rng_normal_at of runtime/base/rng.h; std = 0 fills with mean. */
    int (*init_normal)(struct kern_ctx *x, float *out, uint64_t key, float mean, float std, int64_t n);
};

struct kern_backend {
    uint32_t abi;                                        /* == KERN_ABI or the module is refused */
    uint32_t size;                                       /* sizeof this struct: fields are only appended */
    const char *name;                                    /* "cpu" */
    int (*devices)(struct kern_device *ret, size_t cap); /* number of usable devices; 0 = none here; < 0 = failure */
    int (*open)(const struct kern_config *config, struct kern_ctx **ret);
    void (*close)(struct kern_ctx *x);                            /* NULL ok */
    int (*alloc)(struct kern_ctx *x, size_t n_bytes, void **ret); /* 64-byte aligned, contents undefined; -E_NOMEM */
    void (*free)(struct kern_ctx *x, void *mem);                  /* NULL ok */
    int (*zero)(struct kern_ctx *x, void *mem, size_t n_bytes);
    int (*copy)(struct kern_ctx *x, void *dst, const void *src, size_t n_bytes, enum kern_copy direction);
    int (*sync)(struct kern_ctx *x);
    const struct kern_ops *ops;
    int host_memory; /* 1: device memory is host memory, kernels may be given host pointers and copies avoided */
};

/* An open device: what the rest of Shoal holds. */
struct kern {
    const struct kern_backend *backend;
    const struct kern_ops *ops; /* == backend->ops */
    struct kern_ctx *ctx;
};

#ifdef __cplusplus
}
#endif
#endif
