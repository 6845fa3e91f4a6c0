/* The serial inner loops of the CPU backend: one table per instruction set, all made from the same plain C (vec.c).
 *
 * Each function runs on the calling thread and is told what to do by ranges only. Invariant: every table gives the same
 * bits. Elementwise loops round each operation once; reductions keep a fixed number of partial results (VEC_LANES), so
 * the width of the machine's vectors does not show. Pointers need the alignment of their type only. */
#ifndef SHOAL_KERNELS_CPU_VEC_H
#define SHOAL_KERNELS_CPU_VEC_H

#include "kernels/kern.h"

/* Partial sums of a reduction: element i goes to lane i % VEC_LANES in order of i; then lane j takes lane j + w for w =
 * VEC_LANES/2, ..., 2, 1. */
#define VEC_LANES 32

struct vec {
    const char *name; /* "baseline", "avx2", "avx512" */

    void (*add)(float *out, const float *a, const float *b, int64_t n); /* out may be a or b */
    /* acc[c] += sum of in[r * stride + c] over r in order. */
    void (*add_rows)(float *acc, const float *in, int64_t stride, int64_t n_rows, int64_t n_cols);

    void (*gelu_forward)(float *out, const float *in, int64_t n);
    void (*gelu_backward)(float *din, const float *dout, const float *in, int64_t n); /* din may be dout */

    void (*softmax_forward)(float *row, int64_t n);                   /* in place, n >= 1 */
    void (*softmax_backward)(float *drow, const float *p, int64_t n); /* in place; p is the forward's result */

    /* One row of C elements each. backward adds to dweight[C] and dbias[C]. */
    void (*layernorm_forward)(float *out, float *mean, float *rstd, const float *in, const float *weight,
                              const float *bias, int64_t C);
    void (*layernorm_backward)(float *din, float *dweight, float *dbias, const float *dout, const float *in,
                               const float *weight, float mean, float rstd, int64_t C);

    double (*log_sum_exp)(const float *row, int64_t n); /* n >= 1 */
    void (*cross_entropy_backward)(float *dlogits, const float *logits, float lse, int64_t target, float scale,
                                   int64_t V); /* one row; dlogits may be logits */

    /* The STATE operations of kern.h on a range. exact_accumulate returns 1 if an element was refused, else 0.
     * sum_squares is one block's sum. */
    int (*exact_accumulate)(int64_t *acc, const float *grad, float bound, int64_t n);
    void (*exact_add)(int64_t *acc, const int64_t *other, int64_t n);
    void (*exact_round)(float *out, const int64_t *acc, int64_t n);
    double (*sum_squares)(const float *a, int64_t n);
    void (*adamw)(float *p, float *m, float *v, const float *g, const struct kern_adamw *h, int64_t n);

    /* For tests of the inlined function: out[i] = e^in[i], in[i] <= 87.33. */
    void (*exp)(float *out, const float *in, int64_t n);
};

/* The i-th table that this machine can run, from the plainest to the widest; NULL past the last one. Any thread. */
const struct vec *vec_at(int i);

/* The widest. Never NULL. Any thread. */
const struct vec *vec_best(void);

#endif
