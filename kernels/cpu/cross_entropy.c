/* Softmax cross-entropy, a row at a time. The loss of each row is formed in double and summed in row order. */
#include "kernels/cpu/cpu.h"

struct job {
    const struct vec *vec;
    const float *logits, *kept_lse;
    const int32_t *targets;
    float *lse, *dlogits;
    double *losses; /* R */
    int64_t R, V, rows;
    float scale;
};

static void forward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t r0 = (int64_t)part * j->rows;
    const int64_t r1 = r0 + cpu_part_len(j->R, j->rows, part);
    for (int64_t r = r0; r < r1; r++) {
        const float *row = j->logits + r * j->V;
        const double lse = j->vec->log_sum_exp(row, j->V);
        j->lse[r] = (float)lse;
        j->losses[r] = lse - (double)row[j->targets[r]];
    }
}

int cpu_cross_entropy_forward(struct kern_ctx *x, double *ret_loss_sum, float *lse, const float *logits,
                              const int32_t *targets, int64_t R, int64_t V)
{
    if (!cpu_dims_ok(R, V) || !cpu_ids_ok(targets, R, V))
        return -E_INVAL;
    void *losses;
    const int status = cpu_scratch(x, (size_t)R * sizeof(double), &losses);
    if (status < 0)
        return status;
    struct job j = {.vec = x->vec,
                    .logits = logits,
                    .targets = targets,
                    .lse = lse,
                    .losses = losses,
                    .R = R,
                    .V = V,
                    .rows = cpu_rows_per_part(V)};
    cpu_run(x, cpu_n_parts(R, j.rows), forward_part, &j);
    double sum = 0.0;
    for (int64_t r = 0; r < R; r++)
        sum += j.losses[r];
    *ret_loss_sum = sum;
    return 0;
}

static void backward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t r0 = (int64_t)part * j->rows;
    const int64_t r1 = r0 + cpu_part_len(j->R, j->rows, part);
    for (int64_t r = r0; r < r1; r++)
        j->vec->cross_entropy_backward(j->dlogits + r * j->V, j->logits + r * j->V, j->kept_lse[r], j->targets[r],
                                       j->scale, j->V);
}

int cpu_cross_entropy_backward(struct kern_ctx *x, float *dlogits, const float *logits, const float *lse,
                               const int32_t *targets, float scale, int64_t R, int64_t V)
{
    if (!cpu_dims_ok(R, V) || !cpu_ids_ok(targets, R, V))
        return -E_INVAL;
    struct job j = {.vec = x->vec,
                    .logits = logits,
                    .kept_lse = lse,
                    .targets = targets,
                    .dlogits = dlogits,
                    .R = R,
                    .V = V,
                    .rows = cpu_rows_per_part(V),
                    .scale = scale};
    cpu_run(x, cpu_n_parts(R, j.rows), backward_part, &j);
    return 0;
}
