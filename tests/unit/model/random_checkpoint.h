/* A checkpoint of a small model with random values, larger than a new model's so that every term of the forward pass
 * matters: what the generation test and print_logits start from. */
#ifndef SHOAL_TESTS_UNIT_MODEL_RANDOM_CHECKPOINT_H
#define SHOAL_TESTS_UNIT_MODEL_RANDOM_CHECKPOINT_H

#include <string.h>

#include "model/checkpoint.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

static const char random_job_text[] = "name: random\n"
                                      "model: {layers: 2, heads: 2, embd: 16, context: 12}\n"
                                      "data: {paths: [text]}\n"
                                      "train: {steps: 1}\n";

static inline int random_values(const struct model *m, float *(*parts)[PARAMS_PARTS])
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const struct model_tensor *tensor = &m->tensors[t];

        for (int p = 0; p < PARAMS_PARTS; p++) {
            parts[t][p] = mem_calloc((size_t)tensor->n, sizeof(float));
            if (parts[t][p] == NULL)
                return -E_NOMEM;
        }
        for (int64_t i = 0; i < tensor->n; i++)
            parts[t][PARAMS_VALUE][i] = tensor->init_mean + 0.2f * rng_normal_at(rng_key(1, tensor->name), (uint64_t)i);
    }
    return 0;
}

/* Writes it below dir; *ret_path is its folder (mem_free). */
static inline int random_checkpoint(const char *dir, char **ret_path, struct reason *why)
{
    struct checkpoint_state state = {.seed = 1};
    float *(*parts)[PARAMS_PARTS] = NULL;
    struct model *m = NULL;
    struct job job;
    int r = job_parse(random_job_text, strlen(random_job_text), NULL, &job, why);

    if (r < 0)
        return r;
    r = model_new(&job, &m, why);
    if (r == 0) {
        parts = mem_calloc(m->n_tensors, sizeof(*parts));
        r = parts != NULL ? random_values(m, parts) : -E_NOMEM;
    }
    if (r == 0) {
        checkpoint_model_hash(m, (float *const(*)[PARAMS_PARTS])parts, state.hash);
        r = checkpoint_write(dir, m, &job, random_job_text, &state, (float *const(*)[PARAMS_PARTS])parts, 1, ret_path,
                             why);
    }
    for (uint32_t t = 0; parts != NULL && t < m->n_tensors; t++) {
        for (int p = 0; p < PARAMS_PARTS; p++)
            mem_free(parts[t][p]);
    }
    mem_free(parts);
    model_free(m);
    job_done(&job);
    return r;
}

#endif
