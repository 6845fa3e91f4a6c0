/* STATE operations on 64-bit fixed-point gradient sums (docs/design.md, section 6), and the sum of squares. */
#include "kernels/cpu/cpu.h"

#include <string.h>

_Static_assert(CPU_BLOCK % KERN_SUM_BLOCK == 0, "a part holds whole blocks of sum_squares");

struct job {
    const struct vec *vec;
    int64_t *acc;
    const int64_t *other;
    const float *a;
    float *out;
    double *sums; /* one per block of KERN_SUM_BLOCK elements */
    _Atomic uint32_t refused;
    float bound;
    int64_t n;
};

static void accumulate_part(void *arg, size_t part)
{
    struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    if (j->vec->exact_accumulate(j->acc + i, j->a + i, j->bound, cpu_part_len(j->n, CPU_BLOCK, part)))
        atomic_store_explicit(&j->refused, 1, memory_order_relaxed);
}

int cpu_exact_accumulate(struct kern_ctx *x, int64_t *acc, const float *grad, float bound, uint32_t *flag, int64_t n)
{
    if (n < 0 || !(bound > 0.0f && bound <= 0x1p11f))
        return -E_INVAL;
    struct job j = {.vec = x->vec, .acc = acc, .a = grad, .bound = bound, .n = n};
    cpu_run(x, cpu_n_parts(n, CPU_BLOCK), accumulate_part, &j);
    if (atomic_load_explicit(&j.refused, memory_order_relaxed))
        *flag = 1;
    return 0;
}

static void add_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    j->vec->exact_add(j->acc + i, j->other + i, cpu_part_len(j->n, CPU_BLOCK, part));
}

int cpu_exact_add(struct kern_ctx *x, int64_t *acc, const int64_t *other, int64_t n)
{
    if (n < 0)
        return -E_INVAL;
    struct job j = {.vec = x->vec, .acc = acc, .other = other, .n = n};
    cpu_run(x, cpu_n_parts(n, CPU_BLOCK), add_part, &j);
    return 0;
}

static void round_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    j->vec->exact_round(j->out + i, j->other + i, cpu_part_len(j->n, CPU_BLOCK, part));
}

int cpu_exact_round(struct kern_ctx *x, float *out, const int64_t *acc, int64_t n)
{
    if (n < 0)
        return -E_INVAL;
    struct job j = {.vec = x->vec, .out = out, .other = acc, .n = n};
    cpu_run(x, cpu_n_parts(n, CPU_BLOCK), round_part, &j);
    return 0;
}

static void squares_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t end = (int64_t)part * CPU_BLOCK + cpu_part_len(j->n, CPU_BLOCK, part);
    for (int64_t i = (int64_t)part * CPU_BLOCK; i < end; i += KERN_SUM_BLOCK)
        j->sums[i / KERN_SUM_BLOCK] =
            j->vec->sum_squares(j->a + i, end - i < KERN_SUM_BLOCK ? end - i : KERN_SUM_BLOCK);
}

int cpu_sum_squares(struct kern_ctx *x, double *ret, const float *a, int64_t n)
{
    if (n < 0)
        return -E_INVAL;
    const int64_t n_blocks = cpu_n_parts(n, KERN_SUM_BLOCK);
    void *sums;
    const int r = cpu_scratch(x, (size_t)n_blocks * sizeof(double), &sums);
    if (r < 0)
        return r;
    struct job j = {.vec = x->vec, .a = a, .sums = sums, .n = n};
    cpu_run(x, cpu_n_parts(n, CPU_BLOCK), squares_part, &j);
    double sum = 0.0;
    for (int64_t i = 0; i < n_blocks; i++)
        sum += j.sums[i];
    *ret = sum;
    return 0;
}
