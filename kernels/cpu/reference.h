/* The readable truth: every operation of kern.h as plain loops, one thread, sums in double (where a gradient is
 * scattered, as by attention and embeddings, it adds up in fp32). Slow. Tests compare every backend with it; it is not
 * in the registry. Its STATE operations give the same bits as every other backend's. */
#ifndef SHOAL_KERNELS_CPU_REFERENCE_H
#define SHOAL_KERNELS_CPU_REFERENCE_H

#include "kernels/kern.h"

extern const struct kern_backend kern_reference_backend; /* "cpu-reference" */

/* Its operations: the layers' (reference.c) and the STATE ones (reference_state.c). They do not look at the context. */
extern const struct kern_ops reference_ops;

int reference_exact_accumulate(struct kern_ctx *x, int64_t *acc, const float *grad, float bound, uint32_t *flag,
                               int64_t n);
int reference_exact_add(struct kern_ctx *x, int64_t *acc, const int64_t *other, int64_t n);
int reference_exact_round(struct kern_ctx *x, float *out, const int64_t *acc, int64_t n);
int reference_sum_squares(struct kern_ctx *x, double *ret, const float *a, int64_t n);
int reference_adamw(struct kern_ctx *x, float *p, float *m, float *v, const float *g, const struct kern_adamw *h,
                    int64_t n);
int reference_init_normal(struct kern_ctx *x, float *out, uint64_t key, float mean, float std, int64_t n);

#endif
