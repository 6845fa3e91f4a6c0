/* Running one unit of GPT-2 on a device: pre-norm blocks, learned positions, tanh GELU, head tied to the embedding.
 * Every tensor between two kernels lives in `saved` (what backward reads) or `scratch` (what it does not); the layouts
 * are below. Invariant: a unit reads nothing of another unit but its input, so a span's bits do not depend on its cut.
 *
 * R = B*T rows. Parts lie one after another, each starting at a multiple of 64 bytes:
 *   block, saved:   ln1 (R,C) mean1 (R) rstd1 (R) qkv (R,3C) probs (B,H,T,T) att (R,C) mid (R,C)
 *                   ln2 (R,C) mean2 (R) rstd2 (R) fc (R,4C) gelu (R,4C)
 *   head, saved:    lnf (R,C) mean (R) rstd (R) logits (R,V) lse (R)
 *   scratch:        wide1 (R,4C) wide2 (R,4C) thin1 (R,C) thin2 (R,C): gradients of the backward pass
 * mid is the residual stream after attention. */
#include "model/unit.h"

#include <assert.h>

#include "model/gpt2.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        int r_ = (call);                                                                                               \
        if (r_ < 0)                                                                                                    \
            return r_;                                                                                                 \
    } while (0)

/* Cuts a block of memory into parts; with base NULL it only counts. */
struct cutter {
    char *base;
    size_t used; /* bytes */
};

static float *cut(struct cutter *c, size_t n)
{
    float *p = c->base ? (float *)(void *)(c->base + c->used) : NULL;

    c->used += (n * sizeof(float) + 63) & ~(size_t)63;
    return p;
}

struct saved_block {
    float *ln1, *mean1, *rstd1, *qkv, *probs, *att, *mid, *ln2, *mean2, *rstd2, *fc, *gelu;
};

struct saved_head {
    float *lnf, *mean, *rstd, *logits, *lse;
};

struct scratch {
    float *wide1, *wide2, *thin1, *thin2;
};

static size_t rows(const struct model *m)
{
    return (size_t)m->B * m->n_ctx;
}

static size_t cut_block(const struct model *m, void *base, struct saved_block *s)
{
    const size_t R = rows(m), C = m->n_embd;
    struct cutter c = {.base = base};

    s->ln1 = cut(&c, R * C);
    s->mean1 = cut(&c, R);
    s->rstd1 = cut(&c, R);
    s->qkv = cut(&c, R * 3 * C);
    s->probs = cut(&c, R * m->n_head * m->n_ctx);
    s->att = cut(&c, R * C);
    s->mid = cut(&c, R * C);
    s->ln2 = cut(&c, R * C);
    s->mean2 = cut(&c, R);
    s->rstd2 = cut(&c, R);
    s->fc = cut(&c, R * 4 * C);
    s->gelu = cut(&c, R * 4 * C);
    return c.used;
}

static size_t cut_head(const struct model *m, void *base, struct saved_head *s)
{
    const size_t R = rows(m);
    struct cutter c = {.base = base};

    s->lnf = cut(&c, R * m->n_embd);
    s->mean = cut(&c, R);
    s->rstd = cut(&c, R);
    s->logits = cut(&c, R * m->n_vocab);
    s->lse = cut(&c, R);
    return c.used;
}

static size_t cut_scratch(const struct model *m, void *base, struct scratch *s)
{
    const size_t R = rows(m), C = m->n_embd;
    struct cutter c = {.base = base};

    s->wide1 = cut(&c, R * 4 * C);
    s->wide2 = cut(&c, R * 4 * C);
    s->thin1 = cut(&c, R * C);
    s->thin2 = cut(&c, R * C);
    return c.used;
}

size_t unit_saved_bytes(const struct model *m, uint32_t u)
{
    struct saved_block block;
    struct saved_head head;

    assert(u < m->n_units);
    switch (m->units[u].kind) {
    case MODEL_UNIT_EMBEDDING:
        return 0;
    case MODEL_UNIT_BLOCK:
        return cut_block(m, NULL, &block);
    case MODEL_UNIT_HEAD:
        return cut_head(m, NULL, &head);
    }
    assert(0 && "a unit of no kind");
    return 0;
}

size_t unit_scratch_bytes(const struct model *m)
{
    struct scratch s;

    return cut_scratch(m, NULL, &s);
}

const float *unit_logits(const struct model *m, void *saved)
{
    struct saved_head s;

    cut_head(m, saved, &s);
    return s.logits;
}

static int block_forward(const struct unit_run *run, float *out)
{
    const struct model *m = run->model;
    const struct kern_ops *k = run->kern->ops;
    struct kern_ctx *x = run->kern->ctx;
    const int64_t B = m->B, T = m->n_ctx, C = m->n_embd, R = B * T;
    float *const *p = run->params;
    struct saved_block s;

    cut_block(m, run->saved, &s);
    TRY(k->layernorm_forward(x, s.ln1, s.mean1, s.rstd1, run->in, p[GPT2_LN1_W], p[GPT2_LN1_B], R, C));
    TRY(k->linear_forward(x, s.qkv, s.ln1, p[GPT2_QKV_W], p[GPT2_QKV_B], R, C, 3 * C));
    TRY(k->attention_forward(x, s.att, s.probs, s.qkv, B, T, C, m->n_head));
    TRY(k->linear_forward(x, s.mid, s.att, p[GPT2_ATTN_PROJ_W], p[GPT2_ATTN_PROJ_B], R, C, C));
    TRY(k->add(x, s.mid, run->in, s.mid, R * C));
    TRY(k->layernorm_forward(x, s.ln2, s.mean2, s.rstd2, s.mid, p[GPT2_LN2_W], p[GPT2_LN2_B], R, C));
    TRY(k->linear_forward(x, s.fc, s.ln2, p[GPT2_FC_W], p[GPT2_FC_B], R, C, 4 * C));
    TRY(k->gelu_forward(x, s.gelu, s.fc, R * 4 * C));
    TRY(k->linear_forward(x, out, s.gelu, p[GPT2_MLP_PROJ_W], p[GPT2_MLP_PROJ_B], R, 4 * C, C));
    return k->add(x, out, s.mid, out, R * C);
}

static int block_backward(const struct unit_run *run, const float *dout, float *din, float *const *g)
{
    const struct model *m = run->model;
    const struct kern_ops *k = run->kern->ops;
    struct kern_ctx *x = run->kern->ctx;
    const int64_t B = m->B, T = m->n_ctx, C = m->n_embd, R = B * T;
    float *const *p = run->params;
    struct saved_block s;
    struct scratch t;
    float *dmid;

    cut_block(m, run->saved, &s);
    cut_scratch(m, run->scratch, &t);
    /* The MLP: mid -> out. */
    TRY(k->linear_backward(x, t.wide1, g[GPT2_MLP_PROJ_W], g[GPT2_MLP_PROJ_B], dout, s.gelu, p[GPT2_MLP_PROJ_W], R,
                           4 * C, C));
    TRY(k->gelu_backward(x, t.wide2, t.wide1, s.fc, R * 4 * C));
    TRY(k->linear_backward(x, t.thin1, g[GPT2_FC_W], g[GPT2_FC_B], t.wide2, s.ln2, p[GPT2_FC_W], R, C, 4 * C));
    dmid = t.thin2;
    TRY(k->layernorm_backward(x, dmid, g[GPT2_LN2_W], g[GPT2_LN2_B], t.thin1, s.mid, p[GPT2_LN2_W], s.mean2, s.rstd2, R,
                              C));
    TRY(k->add(x, dmid, dout, dmid, R * C)); /* always the stream first, then the branch */
    /* Attention: in -> mid. */
    TRY(k->linear_backward(x, t.thin1, g[GPT2_ATTN_PROJ_W], g[GPT2_ATTN_PROJ_B], dmid, s.att, p[GPT2_ATTN_PROJ_W], R, C,
                           C));
    TRY(k->attention_backward(x, t.wide1, t.thin1, s.qkv, s.probs, B, T, C, m->n_head));
    TRY(k->linear_backward(x, t.thin1, g[GPT2_QKV_W], g[GPT2_QKV_B], t.wide1, s.ln1, p[GPT2_QKV_W], R, C, 3 * C));
    TRY(k->layernorm_backward(x, din, g[GPT2_LN1_W], g[GPT2_LN1_B], t.thin1, run->in, p[GPT2_LN1_W], s.mean1, s.rstd1,
                              R, C));
    return k->add(x, din, dmid, din, R * C);
}

static int head_forward(const struct unit_run *run, double *ret_loss)
{
    const struct model *m = run->model;
    const struct kern_ops *k = run->kern->ops;
    struct kern_ctx *x = run->kern->ctx;
    const int64_t C = m->n_embd, V = m->n_vocab, R = (int64_t)rows(m);
    float *const *p = run->params;
    struct saved_head s;

    cut_head(m, run->saved, &s);
    TRY(k->layernorm_forward(x, s.lnf, s.mean, s.rstd, run->in, p[GPT2_LNF_W], p[GPT2_LNF_B], R, C));
    TRY(k->gemm(x, 0, 1, R, V, C, s.lnf, p[GPT2_HEAD_WTE], 0.0f, s.logits));
    return k->cross_entropy_forward(x, ret_loss, s.lse, s.logits, run->targets, R, V);
}

static int head_backward(const struct unit_run *run, float *din, float *const *g, float loss_scale)
{
    const struct model *m = run->model;
    const struct kern_ops *k = run->kern->ops;
    struct kern_ctx *x = run->kern->ctx;
    const int64_t C = m->n_embd, V = m->n_vocab, R = (int64_t)rows(m);
    float *const *p = run->params;
    struct saved_head s;
    struct scratch t;

    cut_head(m, run->saved, &s);
    cut_scratch(m, run->scratch, &t);
    /* In place: logits are the largest tensor of the model and nobody reads them afterwards. */
    TRY(k->cross_entropy_backward(x, s.logits, s.logits, s.lse, run->targets, loss_scale, R, V));
    TRY(k->gemm(x, 1, 0, V, C, R, s.logits, s.lnf, 0.0f, g[GPT2_HEAD_WTE]));
    TRY(k->gemm(x, 0, 0, R, C, V, s.logits, p[GPT2_HEAD_WTE], 0.0f, t.thin1));
    return k->layernorm_backward(x, din, g[GPT2_LNF_W], g[GPT2_LNF_B], t.thin1, run->in, p[GPT2_LNF_W], s.mean, s.rstd,
                                 R, C);
}

int unit_forward(const struct unit_run *run, uint32_t u, float *out, double *ret_loss)
{
    const struct model *m = run->model;
    double loss;

    assert(u < m->n_units && run->params);
    switch (m->units[u].kind) {
    case MODEL_UNIT_EMBEDDING:
        assert(run->tokens && out);
        return run->kern->ops->embedding_forward(run->kern->ctx, out, run->tokens, run->params[GPT2_WTE],
                                                 run->params[GPT2_WPE], m->B, m->n_ctx, m->n_embd, m->n_vocab);
    case MODEL_UNIT_BLOCK:
        assert(run->in && run->saved && out && out != run->in);
        return block_forward(run, out);
    case MODEL_UNIT_HEAD:
        assert(run->in && run->saved && run->targets);
        TRY(head_forward(run, &loss));
        if (ret_loss)
            *ret_loss = loss;
        return 0;
    }
    assert(0 && "a unit of no kind");
    return -E_INTERNAL;
}

int unit_backward(const struct unit_run *run, uint32_t u, const float *dout, float *din, float *const *grads,
                  float loss_scale)
{
    const struct model *m = run->model;

    assert(u < m->n_units && run->params && grads);
    switch (m->units[u].kind) {
    case MODEL_UNIT_EMBEDDING:
        assert(run->tokens && dout);
        return run->kern->ops->embedding_backward(run->kern->ctx, grads[GPT2_WTE], grads[GPT2_WPE], dout, run->tokens,
                                                  m->B, m->n_ctx, m->n_embd, m->n_vocab, m->n_ctx);
    case MODEL_UNIT_BLOCK:
        assert(run->in && run->saved && run->scratch && dout && din && din != dout);
        return block_backward(run, dout, din, grads);
    case MODEL_UNIT_HEAD:
        assert(run->in && run->saved && run->scratch && run->targets && din);
        return head_backward(run, din, grads, loss_scale);
    }
    assert(0 && "a unit of no kind");
    return -E_INTERNAL;
}
