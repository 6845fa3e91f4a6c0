/* A model as data. This file checks the job's numbers and owns the arrays; what the architecture's tensors are is
 * gpt2.c's business, what they compute unit.c's. Invariant: after model_new nothing changes. */
#include "model/model.h"

#include <inttypes.h>
#include <string.h>

#include "model/gpt2.h"
#include "runtime/base/mem.h"
#include "runtime/base/status.h"

/* Sizes of one tensor and of one microbatch's activations must stay far from the end of int64. */
#define WIDTH_MAX (1u << 20)

static int check(const struct job *job, struct reason *why)
{
    if (job->model.n_layer < 1 || job->model.n_layer > UNITS_MAX - 2)
        return reason_set(why, -E_CONFIG, "model.layers must be 1 to %d, not %" PRIu32, UNITS_MAX - 2,
                          job->model.n_layer);
    if (job->model.n_embd < 1 || job->model.n_embd > WIDTH_MAX)
        return reason_set(why, -E_CONFIG, "model.embd must be 1 to %u, not %" PRIu32, WIDTH_MAX, job->model.n_embd);
    if (job->model.n_head < 1 || job->model.n_embd % job->model.n_head != 0)
        return reason_set(why, -E_CONFIG, "model.embd (%" PRIu32 ") must be a multiple of model.heads (%" PRIu32 ")",
                          job->model.n_embd, job->model.n_head);
    if (job->model.n_ctx < 1 || job->model.n_ctx > WIDTH_MAX)
        return reason_set(why, -E_CONFIG, "model.context must be 1 to %u, not %" PRIu32, WIDTH_MAX, job->model.n_ctx);
    if (job->model.n_vocab < 1 || job->model.n_vocab > WIDTH_MAX)
        return reason_set(why, -E_CONFIG, "model.vocab must be 1 to %u, not %" PRIu32, WIDTH_MAX, job->model.n_vocab);
    if (job->train.sequences < 1 || job->train.sequences > JOB_SEQUENCES_MAX)
        return reason_set(why, -E_CONFIG, "train.sequences must be 1 to %u, not %" PRIu32, JOB_SEQUENCES_MAX,
                          job->train.sequences);
    if (job->train.microbatches < 1 || job->train.microbatches > MICROBATCHES_MAX)
        return reason_set(why, -E_CONFIG, "train.microbatches must be 1 to %d, not %" PRIu32, MICROBATCHES_MAX,
                          job->train.microbatches);
    return 0;
}

int model_new(const struct job *job, struct model **ret, struct reason *why)
{
    struct model *m;
    int r = check(job, why);

    if (r < 0)
        return r;
    m = mem_calloc(1, sizeof(*m));
    if (!m)
        return reason_set(why, -E_NOMEM, "out of memory for the model's description");
    m->n_layer = job->model.n_layer;
    m->n_head = job->model.n_head;
    m->n_embd = job->model.n_embd;
    m->n_ctx = job->model.n_ctx;
    m->n_vocab = job->model.n_vocab;
    m->B = job->train.sequences;
    m->M = job->train.microbatches;
    m->n_units = gpt2_n_units(m->n_layer);
    m->n_tensors = gpt2_n_tensors(m->n_layer);
    m->units = mem_calloc(m->n_units, sizeof(*m->units));
    m->tensors = mem_calloc(m->n_tensors, sizeof(*m->tensors));
    if (!m->units || !m->tensors) {
        model_free(m);
        return reason_set(why, -E_NOMEM, "out of memory for the model's description");
    }
    gpt2_build(m);
    *ret = m;
    return 0;
}

struct model *model_free(struct model *m)
{
    if (!m)
        return NULL;
    mem_free(m->units);
    mem_free(m->tensors);
    return mem_free(m);
}

int model_find(const struct model *m, const char *name)
{
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (strcmp(m->tensors[t].name, name) == 0)
            return (int)t;
    return -E_NOENT;
}

int64_t model_boundary_elems(const struct model *m)
{
    return (int64_t)m->B * m->n_ctx * m->n_embd;
}
