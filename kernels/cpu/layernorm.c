/* Layer normalization (Ba et al., arXiv 1607.06450). The gradients of weight and bias are sums over rows: each block of
 * BACKWARD_ROWS rows sums its own, in order, and the blocks' sums are added in order. */
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { BACKWARD_ROWS = 32, COMBINE_COLS = 256 };

struct job {
    const struct vec *vec;
    const float *in, *weight, *bias, *dout, *kept_mean, *kept_rstd;
    float *out, *mean, *rstd, *din;
    float *dweight, *dbias;
    float *sums; /* (blocks, 2, C): what each block of rows adds to dweight and to dbias */
    int64_t R, C, rows, n_blocks;
};

static void forward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t r0 = (int64_t)part * j->rows;
    const int64_t r1 = r0 + cpu_part_len(j->R, j->rows, part);
    for (int64_t r = r0; r < r1; r++)
        j->vec->layernorm_forward(j->out + r * j->C, j->mean + r, j->rstd + r, j->in + r * j->C, j->weight, j->bias,
                                  j->C);
}

int cpu_layernorm_forward(struct kern_ctx *x, float *out, float *mean, float *rstd, const float *in,
                          const float *weight, const float *bias, int64_t R, int64_t C)
{
    if (!cpu_dims_ok(R, C) || C == 0)
        return -E_INVAL;
    struct job j = {.vec = x->vec,
                    .in = in,
                    .weight = weight,
                    .bias = bias,
                    .out = out,
                    .mean = mean,
                    .rstd = rstd,
                    .R = R,
                    .C = C,
                    .rows = cpu_rows_per_part(C)};
    cpu_run(x, cpu_n_parts(R, j.rows), forward_part, &j);
    return 0;
}

static void backward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t r0 = (int64_t)part * BACKWARD_ROWS;
    const int64_t r1 = r0 + cpu_part_len(j->R, BACKWARD_ROWS, part);
    float *dweight = j->sums + (int64_t)part * 2 * j->C;
    float *dbias = dweight + j->C;
    memset(dweight, 0, (size_t)(2 * j->C) * sizeof *dweight);
    for (int64_t r = r0; r < r1; r++)
        j->vec->layernorm_backward(j->din + r * j->C, dweight, dbias, j->dout + r * j->C, j->in + r * j->C, j->weight,
                                   j->kept_mean[r], j->kept_rstd[r], j->C);
}

static void combine_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t c0 = (int64_t)part * COMBINE_COLS;
    const int64_t n = cpu_part_len(j->C, COMBINE_COLS, part);
    memset(j->dweight + c0, 0, (size_t)n * sizeof *j->dweight);
    memset(j->dbias + c0, 0, (size_t)n * sizeof *j->dbias);
    j->vec->add_rows(j->dweight + c0, j->sums + c0, 2 * j->C, j->n_blocks, n);
    j->vec->add_rows(j->dbias + c0, j->sums + j->C + c0, 2 * j->C, j->n_blocks, n);
}

int cpu_layernorm_backward(struct kern_ctx *x, float *din, float *dweight, float *dbias, const float *dout,
                           const float *in, const float *weight, const float *mean, const float *rstd, int64_t R,
                           int64_t C)
{
    if (!cpu_dims_ok(R, C) || C == 0)
        return -E_INVAL;
    struct job j = {.vec = x->vec,
                    .in = in,
                    .weight = weight,
                    .dout = dout,
                    .kept_mean = mean,
                    .kept_rstd = rstd,
                    .din = din,
                    .dweight = dweight,
                    .dbias = dbias,
                    .R = R,
                    .C = C,
                    .n_blocks = cpu_n_parts(R, BACKWARD_ROWS)};
    void *sums;
    const int r = cpu_scratch(x, (size_t)(j.n_blocks * 2 * C) * sizeof(float), &sums);
    if (r < 0)
        return r;
    j.sums = sums;
    cpu_run(x, j.n_blocks, backward_part, &j);
    cpu_run(x, cpu_n_parts(C, COMBINE_COLS), combine_part, &j);
    return 0;
}
