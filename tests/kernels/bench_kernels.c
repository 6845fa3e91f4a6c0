/* How fast the CPU kernels are, against the single-core sgemm of the same run: per operation the median time, GFLOP/s
 * or GB/s, and, for a whole transformer block, which part of its time the matrix products would need at that peak.
 *     bench_kernels [threads] */
#include "kernels/cpu/cpu.h"
#include "kernels/registry.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 15, FLOATS = 24 << 20 };

struct bench {
    struct kern k;
    float *mem, *at;
    double peak; /* flop/s of one core */
    int n_threads;
    int64_t B, T, C, H, V; /* of the shape under test */
};

static double now_s(void)
{
    return (double)clock_now_ns() * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct timing {
    double median, best; /* seconds of one call */
};

/* fn finds its operands in the arena, from the start on. */
static struct timing time_of(struct bench *b, void (*fn)(struct bench *b))
{
    double s[SAMPLES];
    for (int i = -1; i < SAMPLES; i++) { /* the first call is not counted */
        b->at = b->mem;
        const double t = now_s();
        fn(b);
        if (i >= 0)
            s[i] = now_s() - t;
    }
    qsort(s, SAMPLES, sizeof *s, by_size);
    return (struct timing){.median = s[SAMPLES / 2], .best = s[0]};
}

/* n floats of the arena, as init_normal left them or as an earlier operation did. */
static float *take(struct bench *b, int64_t n)
{
    float *a = b->at;
    b->at += (n + 15) / 16 * 16;
    if (b->at > b->mem + FLOATS)
        abort();
    return a;
}

static void report(struct bench *b, const char *name, struct timing t, double flops, double bytes)
{
    printf("  %-24s %9.1f us, best %9.1f us", name, t.median * 1e6, t.best * 1e6);
    if (flops > 0.0)
        printf(" %8.1f GFLOP/s  %3.0f %% of peak\n", flops / t.best * 1e-9,
               100.0 * flops / (t.best * b->peak * b->n_threads));
    else
        printf(" %8.1f GB/s\n", bytes / t.best * 1e-9);
}

static void peak(struct bench *b)
{
    enum { N = 768 };
    float *A = take(b, N * N), *B = take(b, N * N), *C = take(b, N * N);
    const struct cpu_gemm g = {.M = N, .N = N, .K = N, .A = A, .B = B, .C = C, .lda = N, .ldb = N, .ldc = N};
    cpu_gemm_tile(&g, 1.0f);
}

static double linear_flops(int64_t R, int64_t I, int64_t O)
{
    return 2.0 * (double)R * (double)I * (double)O;
}

/* One pair of functions per layer of a shape: the operands are the arena from its start. */
#define R_OF(b) ((b)->B * (b)->T)
static void qkv_forward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, 3 * C * C), *bias = take(b, 3 * C), *out = take(b, 3 * R * C);
    b->k.ops->linear_forward(b->k.ctx, out, in, w, bias, R, C, 3 * C);
}
static void qkv_backward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, 3 * C * C), *dout = take(b, 3 * R * C);
    float *din = take(b, R * C), *dw = take(b, 3 * C * C), *dbias = take(b, 3 * C);
    b->k.ops->linear_backward(b->k.ctx, din, dw, dbias, dout, in, w, R, C, 3 * C);
}
static void proj_forward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, C * C), *bias = take(b, C), *out = take(b, R * C);
    b->k.ops->linear_forward(b->k.ctx, out, in, w, bias, R, C, C);
}
static void proj_backward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, C * C), *dout = take(b, R * C);
    float *din = take(b, R * C), *dw = take(b, C * C), *dbias = take(b, C);
    b->k.ops->linear_backward(b->k.ctx, din, dw, dbias, dout, in, w, R, C, C);
}
static void up_forward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, 4 * C * C), *bias = take(b, 4 * C), *out = take(b, 4 * R * C);
    b->k.ops->linear_forward(b->k.ctx, out, in, w, bias, R, C, 4 * C);
}
static void up_backward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, 4 * C * C), *dout = take(b, 4 * R * C);
    float *din = take(b, R * C), *dw = take(b, 4 * C * C), *dbias = take(b, 4 * C);
    b->k.ops->linear_backward(b->k.ctx, din, dw, dbias, dout, in, w, R, C, 4 * C);
}
static void down_forward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, 4 * R * C), *w = take(b, 4 * C * C), *bias = take(b, C), *out = take(b, R * C);
    b->k.ops->linear_forward(b->k.ctx, out, in, w, bias, R, 4 * C, C);
}
static void down_backward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, 4 * R * C), *w = take(b, 4 * C * C), *dout = take(b, R * C);
    float *din = take(b, 4 * R * C), *dw = take(b, 4 * C * C), *dbias = take(b, C);
    b->k.ops->linear_backward(b->k.ctx, din, dw, dbias, dout, in, w, R, 4 * C, C);
}
static void attention_forward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *qkv = take(b, 3 * R * C), *out = take(b, R * C), *probs = take(b, R * b->H * b->T);
    b->k.ops->attention_forward(b->k.ctx, out, probs, qkv, b->B, b->T, C, b->H);
}
static void attention_backward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *qkv = take(b, 3 * R * C), *dout = take(b, R * C), *probs = take(b, R * b->H * b->T);
    float *dqkv = take(b, 3 * R * C);
    b->k.ops->attention_backward(b->k.ctx, dqkv, dout, qkv, probs, b->B, b->T, C, b->H);
}
static void layernorm_forward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, C), *bias = take(b, C), *out = take(b, R * C);
    float *mean = take(b, R), *rstd = take(b, R);
    b->k.ops->layernorm_forward(b->k.ctx, out, mean, rstd, in, w, bias, R, C);
}
static void layernorm_backward(struct bench *b)
{
    const int64_t R = R_OF(b), C = b->C;
    float *in = take(b, R * C), *w = take(b, C), *dout = take(b, R * C), *mean = take(b, R), *rstd = take(b, R);
    float *din = take(b, R * C), *dw = take(b, C), *dbias = take(b, C);
    b->k.ops->layernorm_backward(b->k.ctx, din, dw, dbias, dout, in, w, mean, rstd, R, C);
}
static void gelu_forward(struct bench *b)
{
    const int64_t n = 4 * R_OF(b) * b->C;
    float *in = take(b, n), *out = take(b, n);
    b->k.ops->gelu_forward(b->k.ctx, out, in, n);
}
static void gelu_backward(struct bench *b)
{
    const int64_t n = 4 * R_OF(b) * b->C;
    float *in = take(b, n), *dout = take(b, n), *din = take(b, n);
    b->k.ops->gelu_backward(b->k.ctx, din, dout, in, n);
}
static void add(struct bench *b)
{
    const int64_t n = R_OF(b) * b->C;
    float *a = take(b, n), *c = take(b, n);
    b->k.ops->add(b->k.ctx, a, a, c, n);
}
static void loss_forward(struct bench *b)
{
    static int32_t targets[4096];
    const int64_t R = R_OF(b);
    float *logits = take(b, R * b->V), *lse = take(b, R);
    double loss;
    b->k.ops->cross_entropy_forward(b->k.ctx, &loss, lse, logits, targets, R, b->V);
}
static void loss_backward(struct bench *b)
{
    static int32_t targets[4096];
    const int64_t R = R_OF(b);
    float *logits = take(b, R * b->V), *lse = take(b, R), *dlogits = take(b, R * b->V);
    b->k.ops->cross_entropy_backward(b->k.ctx, dlogits, logits, lse, targets, 1.0f, R, b->V);
}

enum { STATE_N = 1 << 20 };
static void exact_accumulate(struct bench *b)
{
    uint32_t flag = 0;
    float *grad = take(b, STATE_N);
    b->k.ops->exact_accumulate(b->k.ctx, (int64_t *)(void *)take(b, 2 * STATE_N), grad, 1.0f, &flag, STATE_N);
}
static void exact_add(struct bench *b)
{
    int64_t *a = (int64_t *)(void *)take(b, 2 * STATE_N), *c = (int64_t *)(void *)take(b, 2 * STATE_N);
    b->k.ops->exact_add(b->k.ctx, a, c, STATE_N);
}
static void exact_round(struct bench *b)
{
    int64_t *a = (int64_t *)(void *)take(b, 2 * STATE_N);
    b->k.ops->exact_round(b->k.ctx, take(b, STATE_N), a, STATE_N);
}
static void sum_squares(struct bench *b)
{
    double sum;
    b->k.ops->sum_squares(b->k.ctx, &sum, take(b, STATE_N), STATE_N);
}
static void adamw(struct bench *b)
{
    const struct kern_adamw h = {1.0f, 1e-9f, 0.9f, 0.95f, 0.1f, 0.05f, 10.0f, 20.0f, 1e-8f, 0.1f};
    float *p = take(b, STATE_N), *m = take(b, STATE_N), *v = take(b, STATE_N), *g = take(b, STATE_N);
    b->k.ops->adamw(b->k.ctx, p, m, v, g, &h, STATE_N);
}
static void init_normal(struct bench *b)
{
    b->k.ops->init_normal(b->k.ctx, take(b, STATE_N), 1, 0.0f, 0.02f, STATE_N);
}

struct entry {
    const char *name;
    void (*fn)(struct bench *b);
    double flops, bytes;
    int per_block; /* how often a transformer block has it */
};

static void bench_entries(struct bench *b, const struct entry *e, size_t n)
{
    struct timing block = {0};
    double block_flops = 0.0;
    b->k.ops->init_normal(b->k.ctx, b->mem, 7, 0.0f, 0.05f, FLOATS);
    for (size_t i = 0; i < n; i++) {
        const struct timing t = time_of(b, e[i].fn);
        report(b, e[i].name, t, e[i].flops, e[i].bytes);
        block.median += t.median * e[i].per_block;
        block.best += t.best * e[i].per_block;
        block_flops += e[i].flops * e[i].per_block;
    }
    if (block_flops > 0.0)
        report(b, "a block", block, block_flops, 0.0);
}

static void bench_shape(struct bench *b, int64_t B, int64_t T, int64_t C, int64_t H, int64_t V)
{
    b->B = B, b->T = T, b->C = C, b->H = H, b->V = V;
    const int64_t R = B * T;
    const double rc = 4.0 * (double)(R * C), rv = 4.0 * (double)(R * V);
    /* Only the lower triangle counts: half of the square is not work. */
    const double att = linear_flops(R, C, T + 1);
    const struct entry entries[] = {
        {"qkv forward", qkv_forward, linear_flops(R, C, 3 * C), 0.0, 1},
        {"qkv backward", qkv_backward, 2.0 * linear_flops(R, C, 3 * C), 0.0, 1},
        {"proj forward", proj_forward, linear_flops(R, C, C), 0.0, 1},
        {"proj backward", proj_backward, 2.0 * linear_flops(R, C, C), 0.0, 1},
        {"up forward", up_forward, linear_flops(R, C, 4 * C), 0.0, 1},
        {"up backward", up_backward, 2.0 * linear_flops(R, C, 4 * C), 0.0, 1},
        {"down forward", down_forward, linear_flops(R, C, 4 * C), 0.0, 1},
        {"down backward", down_backward, 2.0 * linear_flops(R, C, 4 * C), 0.0, 1},
        {"attention forward", attention_forward, att, 0.0, 1},
        {"attention backward", attention_backward, 2.0 * att, 0.0, 1},
        {"layernorm forward", layernorm_forward, 0.0, 2.0 * rc, 2},
        {"layernorm backward", layernorm_backward, 0.0, 3.0 * rc, 2},
        {"gelu forward", gelu_forward, 0.0, 8.0 * rc, 1},
        {"gelu backward", gelu_backward, 0.0, 12.0 * rc, 1},
        {"add", add, 0.0, 3.0 * rc, 2},
        {"cross-entropy forward", loss_forward, 0.0, rv, 0},
        {"cross-entropy backward", loss_backward, 0.0, 2.0 * rv, 0},
    };
    printf("B=%d T=%d C=%d H=%d V=%d, %d threads\n", (int)B, (int)T, (int)C, (int)H, (int)V, b->n_threads);
    bench_entries(b, entries, sizeof entries / sizeof *entries);
}

static void bench_state(struct bench *b)
{
    const double n = STATE_N;
    const struct entry entries[] = {
        {"exact_accumulate", exact_accumulate, 0.0, 20.0 * n, 0},
        {"exact_add", exact_add, 0.0, 24.0 * n, 0},
        {"exact_round", exact_round, 0.0, 12.0 * n, 0},
        {"sum_squares", sum_squares, 0.0, 4.0 * n, 0},
        {"adamw", adamw, 0.0, 28.0 * n, 0},
        {"init_normal", init_normal, 0.0, 4.0 * n, 0},
    };
    printf("STATE kernels, %d elements, %d threads\n", STATE_N, b->n_threads);
    bench_entries(b, entries, sizeof entries / sizeof *entries);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_threads = argc > 1 ? atoi(argv[1]) : pool_cpus()};
    struct reason why = {0};
    if (kern_open("cpu", b.n_threads, &b.k, &why) < 0) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    b.mem = mem_calloc(FLOATS, sizeof *b.mem);
    if (!b.mem)
        return 1;
    b.k.ops->init_normal(b.k.ctx, b.mem, 7, 0.0f, 0.05f, FLOATS);
    b.peak = 2.0 * 768.0 * 768.0 * 768.0 / time_of(&b, peak).best;
    printf("one core's sgemm: %.1f GFLOP/s; inner loops: %s\n", b.peak * 1e-9, vec_best()->name);
    bench_shape(&b, 8, 128, 256, 4, 257);
    bench_shape(&b, 4, 128, 768, 12, 8192);
    bench_state(&b);
    mem_free(b.mem);
    kern_close(&b.k);
    return 0;
}
