/* The optimizer step, elementwise; its order of operations is prescribed at struct kern_adamw. STATE. */
#include "kernels/cpu/cpu.h"

struct job {
    const struct vec *vec;
    const struct kern_adamw *h;
    float *p, *m, *v;
    const float *g;
    int64_t n;
};

static void step_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i = (int64_t)part * CPU_BLOCK;
    j->vec->adamw(j->p + i, j->m + i, j->v + i, j->g + i, j->h, cpu_part_len(j->n, CPU_BLOCK, part));
}

int cpu_adamw(struct kern_ctx *x, float *p, float *m, float *v, const float *g, const struct kern_adamw *h, int64_t n)
{
    if (n < 0)
        return -E_INVAL;
    struct job j = {.vec = x->vec, .h = h, .p = p, .m = m, .v = v, .g = g, .n = n};
    cpu_run(x, cpu_n_parts(n, CPU_BLOCK), step_part, &j);
    return 0;
}
