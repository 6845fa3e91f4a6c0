/* Text from a checkpoint. See generate.h. The window is padded on the right with token 0 up to n_ctx: attention is
 * causal, so what stands behind the last token changes nothing before it. */
#include "model/generate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"
#include "model/unit.h"
#include "runtime/base/mem.h"

#define UNIT_TENSORS_MAX (sizeof(((struct model_unit *)0)->tensor) / sizeof(uint32_t))

struct generate {
    struct model *model;
    struct kern *kern;
    struct checkpoint_state state;
    float **values;            /* per tensor, device */
    float *boundary[2];        /* (1,T,C) each, device: a unit reads one and writes the other */
    void *saved, *scratch;     /* device; saved is as large as the largest unit's */
    int32_t *tokens, *targets; /* (1,T), device; targets are zero: the head's loss is of no interest */
    int32_t *window;           /* (1,T), host */
};

static int to_device(struct generate *g, uint32_t t, const struct checkpoint *c)
{
    const struct kern_backend *b = g->kern->backend;
    const size_t n_bytes = (size_t)g->model->tensors[t].n * sizeof(float);
    void *mem;
    int r = b->alloc(g->kern->ctx, n_bytes, &mem);

    if (r < 0)
        return r;
    g->values[t] = mem;
    return b->copy(g->kern->ctx, mem, checkpoint_part(c, t, PARAMS_VALUE), n_bytes, KERN_HOST_TO_DEVICE);
}

/* Everything that one forward pass needs besides the values. */
static int alloc_run(struct generate *g)
{
    const struct model *m = g->model;
    const size_t n_boundary = (size_t)model_boundary_elems(m) * sizeof(float), n_tokens = m->n_ctx * sizeof(int32_t);
    size_t n_saved = 0;
    void *mem[6] = {NULL};
    int r = 0;

    for (uint32_t u = 0; u < m->n_units; u++) {
        const size_t n = unit_saved_bytes(m, u);

        n_saved = n > n_saved ? n : n_saved;
    }
    const size_t sizes[6] = {n_boundary, n_boundary, n_saved, unit_scratch_bytes(m), n_tokens, n_tokens};

    for (int i = 0; r == 0 && i < 6; i++)
        r = g->kern->backend->alloc(g->kern->ctx, sizes[i], &mem[i]);
    g->boundary[0] = mem[0];
    g->boundary[1] = mem[1];
    g->saved = mem[2];
    g->scratch = mem[3];
    g->tokens = mem[4];
    g->targets = mem[5];
    g->window = mem_calloc(m->n_ctx, sizeof(int32_t));
    if (r < 0)
        return r;
    if (g->window == NULL)
        return -E_NOMEM;
    return g->kern->backend->zero(g->kern->ctx, g->targets, n_tokens);
}

static int load(struct generate *g, const char *path, struct reason *why)
{
    struct checkpoint *c;
    int r = checkpoint_open(path, g->model, &c, why);

    if (r < 0)
        return r;
    g->state = *checkpoint_state(c);
    g->values = mem_calloc(g->model->n_tensors, sizeof(*g->values));
    if (g->values == NULL)
        r = -E_NOMEM;
    for (uint32_t t = 0; r == 0 && t < g->model->n_tensors; t++)
        r = to_device(g, t, c);
    if (r == 0)
        r = alloc_run(g);
    if (r == 0)
        r = g->kern->backend->sync(g->kern->ctx); /* the copies read the mapped file */
    checkpoint_free(c);
    return r < 0 ? reason_set(why, r, "cannot load %s onto the device: %s", path, status_text(r)) : 0;
}

int generate_open(const char *path, struct kern *k, struct generate **ret, struct reason *why)
{
    struct generate *g = mem_calloc(1, sizeof(*g));
    struct job job;
    int r;

    if (g == NULL)
        return reason_set(why, -E_NOMEM, "no memory");
    g->kern = k;
    r = checkpoint_job(path, &job, NULL, why);
    if (r == 0) {
        job.train.sequences = 1;
        job.train.microbatches = 1;
        r = model_new(&job, &g->model, why);
        job_done(&job);
    }
    if (r == 0)
        r = load(g, path, why);
    if (r < 0) {
        generate_free(g);
        return r;
    }
    *ret = g;
    return 0;
}

struct generate *generate_free(struct generate *g)
{
    if (g == NULL)
        return NULL;
    void *const device[] = {g->boundary[0], g->boundary[1], g->saved, g->scratch, g->tokens, g->targets};

    for (uint32_t t = 0; g->values != NULL && t < g->model->n_tensors; t++)
        g->kern->backend->free(g->kern->ctx, g->values[t]);
    for (size_t i = 0; i < sizeof(device) / sizeof(device[0]); i++)
        g->kern->backend->free(g->kern->ctx, device[i]);
    mem_free(g->values);
    mem_free(g->window);
    model_free(g->model);
    return mem_free(g);
}

const struct model *generate_model(const struct generate *g)
{
    return g->model;
}

const struct checkpoint_state *generate_state(const struct generate *g)
{
    return &g->state;
}

static int run_unit(struct generate *g, uint32_t u)
{
    const struct model_unit *unit = &g->model->units[u];
    float *params[UNIT_TENSORS_MAX];
    const struct unit_run run = {
        .model = g->model,
        .kern = g->kern,
        .scratch = g->scratch,
        .params = params,
        .tokens = g->tokens,
        .targets = g->targets,
        .in = u > 0 ? g->boundary[(u - 1) % 2] : NULL,
        .saved = g->saved,
    };
    double loss; /* of the zero targets: not looked at */

    for (uint32_t i = 0; i < unit->n_tensors; i++)
        params[i] = g->values[unit->tensor[i]];
    return unit_forward(&run, u, g->boundary[u % 2], &loss);
}

int generate_logits(struct generate *g, const int32_t *tokens, size_t n, size_t first, float *ret_logits)
{
    const struct model *m = g->model;
    const struct kern_backend *b = g->kern->backend;
    const size_t V = m->n_vocab;
    int r;

    assert(first < n && n <= m->n_ctx);
    for (size_t i = 0; i < m->n_ctx; i++) {
        g->window[i] = i < n ? tokens[i] : 0;
        if (g->window[i] < 0 || (size_t)g->window[i] >= V)
            return -E_INVAL;
    }
    r = b->copy(g->kern->ctx, g->tokens, g->window, m->n_ctx * sizeof(int32_t), KERN_HOST_TO_DEVICE);
    for (uint32_t u = 0; r == 0 && u < m->n_units; u++)
        r = run_unit(g, u);
    if (r == 0)
        r = b->copy(g->kern->ctx, ret_logits, unit_logits(m, g->saved) + first * V, (n - first) * V * sizeof(float),
                    KERN_DEVICE_TO_HOST);
    return r == 0 ? b->sync(g->kern->ctx) : r;
}

struct candidate {
    float logit;
    int32_t token;
};

/* The likelier first, of equals the smaller token. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

int generate_pick(const float *logits, uint32_t n_vocab, double temperature, uint32_t top_k, struct rng *rng,
                  int32_t *ret_token)
{
    const uint32_t n = top_k > 0 && top_k < n_vocab ? top_k : n_vocab;
    cleanup_mem_ struct candidate *c = mem_calloc(n_vocab, sizeof(*c));
    double total = 0, at;

    assert(n_vocab > 0 && temperature >= 0);
    if (c == NULL)
        return -E_NOMEM;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (!isfinite(logits[i]))
            return -E_NUMERIC;
        c[i] = (struct candidate){logits[i], (int32_t)i};
    }
    qsort(c, n_vocab, sizeof(*c), compare_candidates);
    if (temperature == 0) {
        *ret_token = c[0].token;
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        total += exp(((double)c[i].logit - (double)c[0].logit) / temperature);
    at = rng_unit(rng) * total;
    for (uint32_t i = 0; i < n; i++) {
        at -= exp(((double)c[i].logit - (double)c[0].logit) / temperature);
        if (at < 0 || i == n - 1) { /* rounding may leave a crumb behind the last one */
            *ret_token = c[i].token;
            break;
        }
    }
    return 0;
}

/* The last tokens of the text so far, at most n_ctx. */
struct tail {
    int32_t *tokens;
    size_t n, cap;
};

static void tail_add(struct tail *t, int32_t token)
{
    assert(t->cap > 0);
    if (t->n == t->cap) {
        memmove(t->tokens, t->tokens + 1, (t->cap - 1) * sizeof(int32_t));
        t->n--;
    }
    t->tokens[t->n++] = token;
}

static void tail_start(struct tail *t, const struct generate_options *o)
{
    const size_t n = o->n_prompt < t->cap ? o->n_prompt : t->cap;

    if (n > 0) {
        tokenizer_encode(o->prompt + (o->n_prompt - n), n, t->tokens);
        t->n = n;
    } else {
        tail_add(t, '\n');
    }
}

int generate_text(struct generate *g, const struct generate_options *options,
                  int (*sink)(void *arg, const uint8_t *bytes, size_t n), void *arg, struct reason *why)
{
    const struct model *m = g->model;
    cleanup_mem_ int32_t *tokens = mem_calloc(m->n_ctx, sizeof(int32_t));
    cleanup_mem_ float *logits = mem_calloc(m->n_vocab, sizeof(float));
    struct tail tail = {tokens, 0, m->n_ctx};
    struct rng rng = rng_make(options->seed, "generate");

    if (!(options->temperature >= 0) || !isfinite(options->temperature))
        return reason_set(why, -E_INVAL, "a temperature of %g makes no sense", options->temperature);
    if (tokens == NULL || logits == NULL)
        return reason_set(why, -E_NOMEM, "no memory to generate text");
    tail_start(&tail, options);
    for (uint64_t i = 0; i < options->n_tokens; i++) {
        int32_t token;
        uint8_t byte;
        int r = generate_logits(g, tail.tokens, tail.n, tail.n - 1, logits);

        if (r == 0)
            r = generate_pick(logits, m->n_vocab, options->temperature, options->top_k, &rng, &token);
        if (r < 0)
            return reason_set(why, r, "generating text: %s", status_text(r));
        tail_add(&tail, token);
        tokenizer_decode(&token, 1, &byte);
        r = sink(arg, &byte, 1);
        if (r != 0)
            return r < 0 ? r : 0;
    }
    return 0;
}
