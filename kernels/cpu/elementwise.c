/* Elementwise operations: GELU and addition, and filling with zero, in blocks of CPU_BLOCK elements. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct job {
    const struct vec *vec;
    float *out;
    const float *a, *b;
    int64_t n;
};

static void add_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    j->vec->add(j->out + i, j->a + i, j->b + i, cpu_part_len(j->n, CPU_BLOCK, part));
}

static void gelu_forward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    j->vec->gelu_forward(j->out + i, j->a + i, cpu_part_len(j->n, CPU_BLOCK, part));
}

static void gelu_backward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    j->vec->gelu_backward(j->out + i, j->a + i, j->b + i, cpu_part_len(j->n, CPU_BLOCK, part));
}

static void zero_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    memset(j->out + i, 0, (size_t)cpu_part_len(j->n, CPU_BLOCK, part) * sizeof *j->out);
}

static int run(struct kern_ctx *x, void (*fn)(void *arg, size_t part), float *out, const float *a, const float *b,
               int64_t n)
{
    if (n < 0)
        return -E_INVAL;
    struct job j = {.vec = x->vec, .out = out, .a = a, .b = b, .n = n};
    cpu_run(x, cpu_n_parts(n, CPU_BLOCK), fn, &j);
    return 0;
}

int cpu_gelu_forward(struct kern_ctx *x, float *out, const float *in, int64_t n)
{
    return run(x, gelu_forward_part, out, in, NULL, n);
}

int cpu_gelu_backward(struct kern_ctx *x, float *din, const float *dout, const float *in, int64_t n)
{
    return run(x, gelu_backward_part, din, dout, in, n);
}

int cpu_add(struct kern_ctx *x, float *out, const float *a, const float *b, int64_t n)
{
    return run(x, add_part, out, a, b, n);
}

void cpu_zero(struct kern_ctx *x, float *a, int64_t n)
{
    (void)run(x, zero_part, a, NULL, NULL, n);
}
