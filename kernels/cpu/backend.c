/* The CPU backend: its table, its context (a pool of worker threads and scratch memory) and host memory as device
 * memory. The reference backend is the same with other operations. Every call has finished when it returns. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/reference.h"
#include "kernels/registry.h"
#include "runtime/base/mem.h"

#include <cblas.h>
#include <stdio.h>
#include <string.h>

static void cpu_name(char *ret, size_t size)
{
    snprintf(ret, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f)
        return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0)
            continue;
        const char *s = strchr(line, ':');
        if (s) {
            s += 1 + strspn(s + 1, " \t");
            snprintf(ret, size, "%.*s", (int)strcspn(s, "\n"), s);
        }
        break;
    }
    fclose(f);
}

static int cpu_devices(struct kern_device *ret, size_t cap)
{
    if (cap > 0) {
        *ret = (struct kern_device){.memory_bytes = mem_available_bytes(), .n_cores = (uint32_t)pool_cpus()};
        cpu_name(ret->name, sizeof ret->name);
    }
    return 1;
}

static void cpu_close(struct kern_ctx *x)
{
    if (!x)
        return;
    x->pool = pool_free(x->pool);
    mem_free(x->scratch);
    mem_free((void *)x->slot_taken);
    mem_free(x);
}

static int cpu_open(const struct kern_config *config, struct kern_ctx **ret)
{
    if (config->device != 0)
        return -E_NODEV;
    if (config->n_threads < 1)
        return -E_INVAL;
    struct kern_ctx *x = mem_calloc(1, sizeof *x);
    if (!x)
        return -E_NOMEM;
    /* Process-wide, and what makes a tile's result independent of the number of threads: our pool is the only one. */
    openblas_set_num_threads(1);
    x->vec = vec_best();
    x->n_slots = config->n_threads;
    x->slot_taken = mem_calloc((size_t)x->n_slots, sizeof *x->slot_taken);
    const int r = x->slot_taken ? pool_new(config->n_threads, &x->pool) : -E_NOMEM;
    if (r < 0) {
        cpu_close(x);
        return r;
    }
    *ret = x;
    return 0;
}

static int cpu_alloc(struct kern_ctx *x, size_t n_bytes, void **ret)
{
    (void)x;
    void *mem = mem_alloc(n_bytes);
    if (!mem)
        return -E_NOMEM;
    *ret = mem;
    return 0;
}

static void cpu_free(struct kern_ctx *x, void *mem)
{
    (void)x;
    mem_free(mem);
}

static int cpu_zero_bytes(struct kern_ctx *x, void *mem, size_t n_bytes)
{
    (void)x;
    if (n_bytes > 0)
        memset(mem, 0, n_bytes);
    return 0;
}

static int cpu_copy(struct kern_ctx *x, void *dst, const void *src, size_t n_bytes, enum kern_copy direction)
{
    (void)x;
    (void)direction; /* all memory is the host's */
    if (n_bytes > 0)
        memmove(dst, src, n_bytes);
    return 0;
}

static int cpu_sync(struct kern_ctx *x)
{
    (void)x;
    return 0;
}

int cpu_scratch(struct kern_ctx *x, size_t n_bytes, void **ret)
{
    if (n_bytes > x->scratch_bytes) {
        void *mem = mem_alloc(n_bytes);
        if (!mem)
            return -E_NOMEM;
        mem_free(x->scratch);
        x->scratch = mem;
        x->scratch_bytes = n_bytes;
    }
    *ret = x->scratch;
    return 0;
}

int cpu_slot_take(struct kern_ctx *x)
{
    for (int i = 0;; i = (i + 1) % x->n_slots) {
        bool taken = false;
        if (atomic_compare_exchange_strong_explicit(&x->slot_taken[i], &taken, true, memory_order_acquire,
                                                    memory_order_relaxed))
            return i;
    }
}

void cpu_slot_give(struct kern_ctx *x, int slot)
{
    atomic_store_explicit(&x->slot_taken[slot], false, memory_order_release);
}

static const struct kern_ops cpu_ops = {
    .gemm = cpu_gemm,
    .linear_forward = cpu_linear_forward,
    .linear_backward = cpu_linear_backward,
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .layernorm_forward = cpu_layernorm_forward,
    .layernorm_backward = cpu_layernorm_backward,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .gelu_forward = cpu_gelu_forward,
    .gelu_backward = cpu_gelu_backward,
    .add = cpu_add,
    .cross_entropy_forward = cpu_cross_entropy_forward,
    .cross_entropy_backward = cpu_cross_entropy_backward,
    .exact_accumulate = cpu_exact_accumulate,
    .exact_add = cpu_exact_add,
    .exact_round = cpu_exact_round,
    .sum_squares = cpu_sum_squares,
    .adamw = cpu_adamw,
    .init_normal = cpu_init_normal,
};

#define CPU_BACKEND(backend_name, backend_ops)                                                                         \
    {                                                                                                                  \
        .abi = KERN_ABI, .size = sizeof(struct kern_backend), .name = (backend_name), .devices = cpu_devices,          \
        .open = cpu_open, .close = cpu_close, .alloc = cpu_alloc, .free = cpu_free, .zero = cpu_zero_bytes,            \
        .copy = cpu_copy, .sync = cpu_sync, .ops = (backend_ops), .host_memory = 1                                     \
    }

const struct kern_backend kern_cpu_backend = CPU_BACKEND("cpu", &cpu_ops);
const struct kern_backend kern_reference_backend = CPU_BACKEND("cpu-reference", &reference_ops);
