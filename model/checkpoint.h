/* A checkpoint: a folder that Hugging Face transformers can load (model.safetensors with GPT-2 names, config.json), and
 * beside it what resuming needs (optimizer.safetensors, state.json, job.yaml). Written under a temporary name, synced,
 * then renamed: whole or not there. */
#ifndef SHOAL_MODEL_CHECKPOINT_H
#define SHOAL_MODEL_CHECKPOINT_H

#include "model/model.h"
#include "model/params.h"

struct checkpoint_state {
    uint64_t version; /* committed steps */
    uint64_t updates; /* of them not skipped */
    double loss;      /* of the last step, NaN at version 0 */
    uint64_t seed;
    uint64_t data_fingerprint;
    uint8_t hash[32]; /* model hash (design 6) at this version */
};

/* Writes DIR/step-00000042 from host memory: parts[tensor][part], fp32, tensor.n elements each. Keeps the newest `keep`
 * (>= 1) and removes older ones. *ret_path (mem_free; may be NULL) is the folder. */
int checkpoint_write(const char *dir, const struct model *m, const struct job *job, const char *job_text,
                     const struct checkpoint_state *state, float *const (*parts)[PARAMS_PARTS], uint32_t keep,
                     char **ret_path, struct reason *why);

/* The newest whole checkpoint below dir: 0 with *ret_path (mem_free), or -E_NOENT. */
int checkpoint_latest(const char *dir, char **ret_path, struct reason *why);

/* An opened (memory-mapped) checkpoint. Every tensor's presence, dtype, shape is checked against m at opening:
 * -E_CORRUPT / -E_CONFIG. */
struct checkpoint;
int checkpoint_open(const char *path, const struct model *m, struct checkpoint **ret, struct reason *why);
struct checkpoint *checkpoint_free(struct checkpoint *c);
const struct checkpoint_state *checkpoint_state(const struct checkpoint *c);
const float *checkpoint_part(const struct checkpoint *c, uint32_t tensor,
                             enum params_part part); /* tensor.n elements */

/* Reads the job of a checkpoint folder (its job.yaml) without opening the tensors. */
int checkpoint_job(const char *path, struct job *ret, char **ret_text, struct reason *why);

#endif
