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

/* The model hash of the values parts[tensor][PARAMS_VALUE], host memory, fp32, tensor.n elements each. Any thread. */
void checkpoint_model_hash(const struct model *m, float *const (*parts)[PARAMS_PARTS], uint8_t ret[32]);

/* Writes DIR/step-00000042 (made with the folders above it; one of this version is replaced) from host memory:
 * parts[tensor][part], fp32, tensor.n elements each. state->hash must be the values' hash: -E_CORRUPT if not, and
 * nothing is written. Keeps the newest `keep` (>= 1) by version, and the one just written in any case; removes older
 * ones and what a crash left half-written. *ret_path (mem_free; may be NULL) is the folder. -E_IO, -E_PERM, -E_NOMEM:
 * nothing new is there. One writer per dir at a time; any thread. */
int checkpoint_write(const char *dir, const struct model *m, const struct job *job, const char *job_text,
                     const struct checkpoint_state *state, float *const (*parts)[PARAMS_PARTS], uint32_t keep,
                     char **ret_path, struct reason *why);

/* The newest whole checkpoint below dir: 0 with *ret_path (mem_free), or -E_NOENT. Reads and hashes it all;
 * half-written and damaged ones are passed over: ret_damage (may be NULL) says what is wrong with the newest of them,
 * or is empty. */
int checkpoint_latest(const char *dir, char **ret_path, struct reason *ret_damage, struct reason *why);

/* An opened (memory-mapped) checkpoint. At opening all tensors are hashed and compared with what was written
 * (-E_CORRUPT), and every tensor's presence, dtype, shape is checked against m (-E_CONFIG: whole, but another model's).
 * -E_NOENT: no such folder. -E_VERSION: written by a later Shoal. m is not kept. */
struct checkpoint;
int checkpoint_open(const char *path, const struct model *m, struct checkpoint **ret, struct reason *why);
struct checkpoint *checkpoint_free(struct checkpoint *c); /* NULL ok; returns NULL */
const struct checkpoint_state *checkpoint_state(const struct checkpoint *c);
const float *checkpoint_part(const struct checkpoint *c, uint32_t tensor,
                             enum params_part part); /* tensor.n elements, host, until checkpoint_free */

/* Reads the job of a checkpoint folder (its job.yaml) without opening the tensors. Relative data paths stay as they
 * stand in the text. *ret is to be job_done, *ret_text (may be NULL) mem_freed. */
int checkpoint_job(const char *path, struct job *ret, char **ret_text, struct reason *why);

#endif
