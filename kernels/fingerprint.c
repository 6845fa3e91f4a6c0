/* The fingerprint of a numerics class: small layers, forward and backward, on inputs that init_normal makes the same on
 * every device, and a hash (64-bit FNV-1a) of what comes out. Long inner dimensions are among them, because matrix
 * libraries differ in how they cut them. */
#include "kernels/registry.h"
#include "runtime/base/mem.h"

#include <stdio.h>

enum {
    B = 2,
    T = 72,
    R = B * T,
    C = 64,
    H = 2,
    LONG = 1536, /* inner dimension of the long products */
    ARENA = 1 << 21
};

struct print {
    struct kern *k;
    float *arena; /* device memory: ARENA floats */
    float *host;  /* as many */
    size_t used;
    uint64_t hash;
    int status; /* the first failure */
};

static void hash_bytes(struct print *f, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        f->hash = (f->hash ^ p[i]) * UINT64_C(0x100000001b3);
}

/* n floats of the arena. */
static float *take(struct print *f, size_t n)
{
    float *at = f->arena + f->used;
    f->used += (n + 15) / 16 * 16;
    if (f->used > ARENA) {
        f->status = -E_INTERNAL;
        f->used = 0;
        return f->arena;
    }
    return at;
}

static void check(struct print *f, int status)
{
    if (f->status == 0)
        f->status = status;
}

static float *normal(struct print *f, size_t n)
{
    float *a = take(f, n);
    check(f, f->k->ops->init_normal(f->k->ctx, a, f->used, 0.0f, 0.25f, (int64_t)n));
    return a;
}

static void digest(struct print *f, const float *a, size_t n)
{
    const struct kern_backend *b = f->k->backend;
    check(f, b->copy(f->k->ctx, f->host, a, n * sizeof *a, KERN_DEVICE_TO_HOST));
    check(f, b->sync(f->k->ctx));
    if (f->status == 0)
        hash_bytes(f, f->host, n * sizeof *a);
}

static void print_layers(struct print *f)
{
    const struct kern_ops *o = f->k->ops;
    struct kern_ctx *x = f->k->ctx;
    const float *in = normal(f, R * C), *weight = normal(f, C), *bias = normal(f, C);
    float *norm = take(f, R * C), *mean = take(f, R), *rstd = take(f, R);
    check(f, o->layernorm_forward(x, norm, mean, rstd, in, weight, bias, R, C));
    const float *w_qkv = normal(f, C * 3 * C), *b_qkv = normal(f, 3 * C);
    float *qkv = take(f, R * 3 * C), *mixed = take(f, R * C), *probs = take(f, B * H * T * T);
    check(f, o->linear_forward(x, qkv, norm, w_qkv, b_qkv, R, C, 3 * C));
    check(f, o->attention_forward(x, mixed, probs, qkv, B, T, C, H));
    float *act = take(f, R * C);
    check(f, o->gelu_forward(x, act, mixed, R * C));
    digest(f, act, R * C);

    float *dact = take(f, R * C), *dqkv = take(f, R * 3 * C), *dnorm = take(f, R * C), *din = take(f, R * C);
    float *dw_qkv = take(f, C * 3 * C), *db_qkv = take(f, 3 * C), *dweight = take(f, C), *dbias = take(f, C);
    check(f, o->gelu_backward(x, dact, in, mixed, R * C));
    check(f, o->attention_backward(x, dqkv, dact, qkv, probs, B, T, C, H));
    check(f, o->linear_backward(x, dnorm, dw_qkv, db_qkv, dqkv, norm, w_qkv, R, C, 3 * C));
    check(f, o->layernorm_backward(x, din, dweight, dbias, dnorm, in, weight, mean, rstd, R, C));
    digest(f, din, R * C);
    digest(f, dw_qkv, C * 3 * C);
    digest(f, db_qkv, 3 * C);
    digest(f, dweight, C);
}

static void print_loss(struct print *f)
{
    const struct kern_ops *o = f->k->ops;
    struct kern_ctx *x = f->k->ctx;
    int32_t targets[R];
    for (int r = 0; r < R; r++)
        targets[r] = r * 31 % LONG;
    int32_t *device_targets = (int32_t *)(void *)take(f, R);
    check(f, f->k->backend->copy(x, device_targets, targets, sizeof targets, KERN_HOST_TO_DEVICE));
    const float *in = normal(f, R * C), *weight = normal(f, C * LONG);
    float *logits = take(f, R * LONG), *lse = take(f, R), *din = take(f, R * C), *dweight = take(f, C * LONG);
    double loss = 0.0;
    check(f, o->linear_forward(x, logits, in, weight, NULL, R, C, LONG));
    check(f, o->cross_entropy_forward(x, &loss, lse, logits, device_targets, R, LONG));
    check(f, o->cross_entropy_backward(x, logits, logits, lse, device_targets, 1.0f / R, R, LONG));
    check(f, o->linear_backward(x, din, dweight, NULL, logits, in, weight, R, C, LONG));
    hash_bytes(f, &loss, sizeof loss);
    digest(f, lse, R);
    digest(f, din, R * C); /* sums over LONG */
    digest(f, dweight, C * LONG);
    float *outer = take(f, C * C);
    check(f, o->gemm(x, 0, 1, C, C, LONG, weight, dweight, 0.0f, outer));
    digest(f, outer, C * C);
}

/* Products of odd and uneven shapes: edges of tiles are where libraries differ, too. */
static void print_products(struct print *f)
{
    static const struct {
        int trans_a, trans_b;
        int64_t m, n, k;
    } shapes[] = {{0, 0, 1, 77, 129}, {0, 0, 65, 3, 257}, {1, 0, 37, 131, 5}, {0, 1, 97, 33, 300}, {1, 1, 7, 13, 511}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t m = shapes[i].m, n = shapes[i].n, k = shapes[i].k;
        const float *a = normal(f, (size_t)(m * k)), *b = normal(f, (size_t)(k * n));
        float *c = take(f, (size_t)(m * n));
        check(f, f->k->ops->gemm(f->k->ctx, shapes[i].trans_a, shapes[i].trans_b, m, n, k, a, b, 0.0f, c));
        digest(f, c, (size_t)(m * n));
    }
}

/* Values below the smallest normal number, which hardware that flushes them to zero gets wrong: an AdamW step whose
 * second moments and updates are, and their sum with others. */
static void print_subnormal(struct print *f)
{
    enum { N = 16 };
    const struct kern_ops *o = f->k->ops;
    const struct kern_adamw h = {.grad_scale = 1.0f,
                                 .lr = 0x1p-20f,
                                 .beta1 = 0.5f,
                                 .beta2 = 0.75f,
                                 .one_minus_beta1 = 0.5f,
                                 .one_minus_beta2 = 0.25f,
                                 .inv_bias1 = 1.0f,
                                 .inv_bias2 = 1.0f,
                                 .eps = 0x1p-10f};
    float start[N];
    float *in[4];
    for (size_t a = 0; a < 4; a++) {
        for (int i = 0; i < N; i++)
            start[i] = (float)(i + 1 + (int)a) * (a == 3 ? 0x1p-66f : 0x1p-140f); /* g squared is subnormal */
        in[a] = take(f, N);
        check(f, f->k->backend->copy(f->k->ctx, in[a], start, sizeof start, KERN_HOST_TO_DEVICE));
        check(f, f->k->backend->sync(f->k->ctx)); /* start is written again */
    }
    check(f, o->adamw(f->k->ctx, in[0], in[1], in[2], in[3], &h, N));
    for (size_t a = 0; a < 3; a++)
        digest(f, in[a], N);
    float *sum = take(f, N);
    check(f, o->add(f->k->ctx, sum, in[1], in[2], N));
    digest(f, sum, N);
}

int kern_fingerprint(struct kern *k, char ret[17])
{
    struct print f = {.k = k, .hash = UINT64_C(0xcbf29ce484222325)};
    void *arena = NULL;
    f.status = k->backend->alloc(k->ctx, ARENA * sizeof(float), &arena);
    f.arena = arena;
    f.host = mem_alloc(ARENA * sizeof(float));
    if (!f.host)
        check(&f, -E_NOMEM);
    if (f.status == 0) {
        print_layers(&f);
        print_loss(&f);
        print_products(&f);
        print_subnormal(&f);
    }
    mem_free(f.host);
    k->backend->free(k->ctx, arena);
    if (f.status == 0)
        snprintf(ret, 17, "%016llx", (unsigned long long)f.hash);
    return f.status;
}
