/* A model as data: its units, its tensors, and which unit uses which tensor. Immutable after model_new; any thread.
 *
 * GPT-2: unit 0 is the embedding (wte, wpe), units 1..L are the blocks, unit L+1 is the head (ln_f and wte again: a
 * tied tensor has two uses). Tensors are numbered in canonical order: the order of first use, and within a unit the
 * order in which Hugging Face's GPT-2 lists them. */
#ifndef SHOAL_MODEL_MODEL_H
#define SHOAL_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "model/job.h"
#include "runtime/base/bounds.h"

#define MODEL_USES_MAX 2

struct model_tensor {
    char name[TENSOR_NAME_MAX_LEN + 1]; /* Hugging Face name, e.g. "h.0.attn.c_attn.weight" */
    uint32_t n_dims;
    int64_t dims[TENSOR_DIMS_MAX];
    int64_t n; /* elements */
    uint32_t n_uses;
    uint32_t use_unit[MODEL_USES_MAX]; /* the unit of each use, ascending */
    bool decay;                /* weight decay applies (matrices and embeddings' matrices, not biases or norms) */
    float init_mean, init_std; /* std 0: filled with mean */
};

struct model_unit {
    enum { MODEL_UNIT_EMBEDDING, MODEL_UNIT_BLOCK, MODEL_UNIT_HEAD } kind;
    uint32_t n_tensors;
    uint32_t tensor[16]; /* tensor numbers, in the order unit_forward expects them */
    uint32_t use[16];    /* which use of that tensor this is */
};

struct model {
    uint32_t n_layer, n_head, n_embd, n_ctx, n_vocab;
    uint32_t B; /* sequences of one microbatch */
    uint32_t M; /* microbatches of one step */
    uint32_t n_units, n_tensors;
    struct model_unit *units;
    struct model_tensor *tensors;
    int64_t n_params; /* tied tensors counted once */
};

/* Builds the model of a job. -E_CONFIG (why tells the number that does not fit), -E_NOMEM. */
int model_new(const struct job *job, struct model **ret, struct reason *why);
struct model *model_free(struct model *m); /* NULL ok; returns NULL */

/* The number of the tensor called name, or -E_NOENT. */
int model_find(const struct model *m, const char *name);

/* Elements of the boundary tensor of one microbatch: B * T * C. */
int64_t model_boundary_elems(const struct model *m);

#endif
