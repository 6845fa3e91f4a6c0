/* What the writer and the reader of checkpoints share: names of folders and files, and of tensors in them. Inside
 * model/checkpoint*.c only. */
#ifndef SHOAL_MODEL_CHECKPOINT_FILES_H
#define SHOAL_MODEL_CHECKPOINT_FILES_H

#include "model/model.h"
#include "model/params.h"
#include "runtime/store/safetensors.h"

#define CHECKPOINT_FORMAT 1u /* of state.json and optimizer.safetensors; another one is refused with both numbers */

#define CHECKPOINT_MODEL     "model.safetensors"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define CHECKPOINT_CONFIG    "config.json"
#define CHECKPOINT_STATE     "state.json"
#define CHECKPOINT_JOB       "job.yaml"

#define CHECKPOINT_NAME_LEN 32

/* The folder's name: "step-00000042". */
void checkpoint_name(uint64_t version, char ret[CHECKPOINT_NAME_LEN]);

/* Whether name is one that checkpoint_name makes; of which version. */
bool checkpoint_name_version(const char *name, uint64_t *ret);

/* How the names of folders begin that are being written or on their way out. */
#define CHECKPOINT_HIDDEN ".checkpoint-"

/* The versions that have a folder below dir, newest first, whole or not. *ret is mem_freed. -E_NOENT: no folder dir. */
int checkpoint_versions(const char *dir, uint64_t **ret, size_t *ret_n, struct reason *why);

/* How part of tensor t of m is called in its file, and its dtype, shape and size. GPT2LMHeadModel of Hugging Face
 * transformers calls its parameters "transformer." and the model's name; lm_head.weight is tied to wte and left out. */
#define CHECKPOINT_TENSOR_NAME_LEN (TENSOR_NAME_MAX_LEN + 32)
void checkpoint_tensor(const struct model *m, uint32_t t, enum params_part part, char name[CHECKPOINT_TENSOR_NAME_LEN],
                       struct safetensors_tensor *ret);

#endif
