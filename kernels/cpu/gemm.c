/* Matrix products: tiles cut by shape, each one single-threaded OpenBLAS call, run by our pool. K is never cut across
 * tiles, and a tile's result depends on its shape alone, so the whole depends on M, N and K only. */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <string.h>

/* Small tiles keep more threads busy, large ones spend less on packing the operands: an edge of 256 costs some 4 % of
 * the speed of the whole, one of 128 some 8 %, one of 64 some 13 %. So a product is halved along its longer side until
 * there are enough tiles for a few cores, and further only while the tiles stay large. */
enum { FEW_TILES = 8, SMALL_EDGE = 128, MANY_TILES = 32, LARGE_EDGE = 256 };

struct tiles {
    struct kern_ctx *x;
    const struct cpu_gemm *g;
    int64_t rows, cols; /* of one tile */
    int64_t across;     /* tiles side by side */
};

void cpu_gemm_tile(const struct cpu_gemm *g, float alpha)
{
    cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans, g->trans_b ? CblasTrans : CblasNoTrans,
                (int)g->M, (int)g->N, (int)g->K, alpha, g->A, (int)g->lda, g->B, (int)g->ldb, g->beta, g->C,
                (int)g->ldc);
}

static void tile_run(void *arg, size_t part)
{
    const struct tiles *t = arg;
    struct cpu_gemm g = *t->g;
    const int64_t m0 = ((int64_t)part / t->across) * t->rows;
    const int64_t n0 = ((int64_t)part % t->across) * t->cols;
    g.A += g.trans_a ? m0 : m0 * g.lda;
    g.B += g.trans_b ? n0 * g.ldb : n0;
    g.C += m0 * g.ldc + n0;
    g.M = g.M - m0 < t->rows ? g.M - m0 : t->rows;
    g.N = g.N - n0 < t->cols ? g.N - n0 : t->cols;
    if (g.bias) { /* in place of the zeroing that beta = 0 would cost */
        for (int64_t m = 0; m < g.M; m++)
            memcpy(g.C + m * g.ldc, g.bias + n0, (size_t)g.N * sizeof *g.C);
        g.beta = 1.0f;
    }
    cpu_gemm_tile(&g, 1.0f);
}

/* Half of n, up to a multiple of 16: the kernels of OpenBLAS work on up to 16 rows or columns at a time. */
static int64_t half(int64_t n)
{
    return (n / 2 + 15) / 16 * 16;
}

void cpu_gemm_run(struct kern_ctx *x, const struct cpu_gemm *g)
{
    if (g->M == 0 || g->N == 0)
        return;
    struct tiles t = {.x = x, .g = g, .rows = g->M, .cols = g->N};
    int64_t n_tiles = 1;
    for (;;) {
        int64_t *edge = t.rows > t.cols ? &t.rows : &t.cols;
        if (n_tiles >= MANY_TILES || *edge < 2 * (n_tiles < FEW_TILES ? SMALL_EDGE : LARGE_EDGE))
            break;
        *edge = half(*edge);
        n_tiles = cpu_n_parts(g->M, t.rows) * cpu_n_parts(g->N, t.cols);
    }
    t.across = cpu_n_parts(g->N, t.cols);
    cpu_run(x, n_tiles, tile_run, &t);
}

int cpu_gemm(struct kern_ctx *x, int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, const float *A,
             const float *B, float beta, float *C)
{
    if (!cpu_dims_ok(M, N, K))
        return -E_INVAL;
    const struct cpu_gemm g = {
        .trans_a = trans_a,
        .trans_b = trans_b,
        .M = M,
        .N = N,
        .K = K,
        .A = A,
        .B = B,
        .C = C,
        .beta = beta,
        .lda = trans_a ? M
               : K > 0 ? K
                       : 1,
        .ldb = trans_b ? (K > 0 ? K : 1) : N,
        .ldc = N,
    };
    cpu_gemm_run(x, &g);
    return 0;
}
