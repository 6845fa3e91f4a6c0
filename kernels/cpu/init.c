/* Initial values, a pure function of (key, element): integers from Philox, then correctly rounded operations. STATE. */
#include "kernels/cpu/cpu.h"
#include "runtime/base/rng.h"

struct job {
    float *out;
    uint64_t key;
    float mean, std;
    int64_t n;
};

static void normal_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t i0 = (int64_t)part * CPU_BLOCK;
    const int64_t i1 = i0 + cpu_part_len(j->n, CPU_BLOCK, part);
    for (int64_t i = i0; i < i1; i++)
        j->out[i] = j->std == 0.0f ? j->mean : j->mean + j->std * rng_normal_at(j->key, (uint64_t)i);
}

int cpu_init_normal(struct kern_ctx *x, float *out, uint64_t key, float mean, float std, int64_t n)
{
    if (n < 0)
        return -E_INVAL;
    struct job j = {.out = out, .key = key, .mean = mean, .std = std, .n = n};
    cpu_run(x, cpu_n_parts(n, CPU_BLOCK), normal_part, &j);
    return 0;
}
