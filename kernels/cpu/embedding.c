/* Token and position embeddings. Backward scatters: it is cut by columns, so that each element of dwte is summed by one
 * thread in order of (b, t). */
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { COLS = 64 }; /* columns per part of backward */

struct job {
    const struct vec *vec;
    const int32_t *tokens;
    const float *wte, *wpe, *dout;
    float *out, *dwte, *dwpe;
    int64_t B, T, C, rows;
};

bool cpu_ids_ok(const int32_t *ids, int64_t n, int64_t n_ids)
{
    bool ok = true;
    for (int64_t i = 0; i < n; i++)
        ok &= ids[i] >= 0 && ids[i] < n_ids;
    return ok;
}

static void forward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t r0 = (int64_t)part * j->rows;
    const int64_t r1 = r0 + cpu_part_len(j->B * j->T, j->rows, part);
    for (int64_t r = r0; r < r1; r++)
        j->vec->add(j->out + r * j->C, j->wte + j->tokens[r] * j->C, j->wpe + (r % j->T) * j->C, j->C);
}

int cpu_embedding_forward(struct kern_ctx *x, float *out, const int32_t *tokens, const float *wte, const float *wpe,
                          int64_t B, int64_t T, int64_t C, int64_t V)
{
    if (!cpu_dims_ok(B, T, C, V, B * T) || !cpu_ids_ok(tokens, B * T, V))
        return -E_INVAL;
    struct job j = {.vec = x->vec, .tokens = tokens, .wte = wte, .wpe = wpe, .out = out, .B = B, .T = T, .C = C};
    j.rows = cpu_rows_per_part(C);
    cpu_run(x, cpu_n_parts(B * T, j.rows), forward_part, &j);
    return 0;
}

static void backward_part(void *arg, size_t part)
{
    const struct job *j = arg;
    const int64_t c0 = (int64_t)part * COLS;
    const int64_t n = cpu_part_len(j->C, COLS, part);
    for (int64_t b = 0; b < j->B; b++)
        for (int64_t t = 0; t < j->T; t++) {
            const int64_t r = b * j->T + t;
            const float *d = j->dout + r * j->C + c0;
            float *to_token = j->dwte + j->tokens[r] * j->C + c0;
            float *to_position = j->dwpe + t * j->C + c0;
            j->vec->add(to_token, to_token, d, n);
            j->vec->add(to_position, to_position, d, n);
        }
}

int cpu_embedding_backward(struct kern_ctx *x, float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                           int64_t B, int64_t T, int64_t C, int64_t V, int64_t P)
{
    if (!cpu_dims_ok(B, T, C, V, P, B * T) || P < T || !cpu_ids_ok(tokens, B * T, V))
        return -E_INVAL;
    cpu_zero(x, dwte, V * C);
    cpu_zero(x, dwpe, P * C);
    struct job j = {.vec = x->vec, .tokens = tokens, .dout = dout, .dwte = dwte, .dwpe = dwpe, .B = B, .T = T, .C = C};
    cpu_run(x, cpu_n_parts(C, COLS), backward_part, &j);
    return 0;
}
