/* The affine layer: three matrix products and the column sums of dout. */
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { BIAS_COLS = 64 }; /* columns of dbias per part */

int cpu_linear_forward(struct kern_ctx *x, float *out, const float *in, const float *weight, const float *bias,
                       int64_t R, int64_t I, int64_t O)
{
    if (!cpu_dims_ok(R, I, O))
        return -E_INVAL;
    const struct cpu_gemm g = {
        .M = R, .N = O, .K = I, .A = in, .B = weight, .C = out, .bias = bias, .lda = I > 0 ? I : 1, .ldb = O, .ldc = O};
    cpu_gemm_run(x, &g);
    return 0;
}

struct bias_job {
    const struct vec *vec;
    float *dbias;
    const float *dout;
    int64_t R, O;
};

static void bias_part(void *arg, size_t part)
{
    const struct bias_job *j = arg;
    const int64_t c0 = (int64_t)part * BIAS_COLS;
    const int64_t n = cpu_part_len(j->O, BIAS_COLS, part);
    memset(j->dbias + c0, 0, (size_t)n * sizeof *j->dbias);
    j->vec->add_rows(j->dbias + c0, j->dout + c0, j->O, j->R, n);
}

int cpu_linear_backward(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                        const float *in, const float *weight, int64_t R, int64_t I, int64_t O)
{
    int r = 0;
    if (!cpu_dims_ok(R, I, O))
        return -E_INVAL;
    if (din) /* din[R,I] = dout[R,O] weight^T */
        r = cpu_gemm(x, 0, 1, R, I, O, dout, weight, 0.0f, din);
    if (r == 0) /* dweight[I,O] = in^T dout */
        r = cpu_gemm(x, 1, 0, I, O, R, in, dout, 0.0f, dweight);
    if (r == 0 && dbias) {
        struct bias_job j = {.vec = x->vec, .dbias = dbias, .dout = dout, .R = R, .O = O};
        cpu_run(x, cpu_n_parts(O, BIAS_COLS), bias_part, &j);
    }
    return r;
}
