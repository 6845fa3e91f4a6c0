/* GPT-2's tensors: names, shapes, initialization (Radford et al. 2019; names as Hugging Face's GPT2Model has them). */
#ifndef SHOAL_MODEL_GPT2_H
#define SHOAL_MODEL_GPT2_H

#include "model/model.h"

/* Positions of a block's and the head's tensors in model_unit order: what unit.c indexes params and grads with. */
enum gpt2_embedding_tensor { GPT2_WTE, GPT2_WPE, GPT2_EMBEDDING_TENSORS };
enum gpt2_block_tensor {
    GPT2_LN1_W,
    GPT2_LN1_B,
    GPT2_QKV_W,
    GPT2_QKV_B,
    GPT2_ATTN_PROJ_W,
    GPT2_ATTN_PROJ_B,
    GPT2_LN2_W,
    GPT2_LN2_B,
    GPT2_FC_W,
    GPT2_FC_B,
    GPT2_MLP_PROJ_W,
    GPT2_MLP_PROJ_B,
    GPT2_BLOCK_TENSORS
};
enum gpt2_head_tensor { GPT2_LNF_W, GPT2_LNF_B, GPT2_HEAD_WTE, GPT2_HEAD_TENSORS };

/* How many units and tensors a model of n_layer blocks has. */
uint32_t gpt2_n_units(uint32_t n_layer);
uint32_t gpt2_n_tensors(uint32_t n_layer);

/* Fills units[n_units] and tensors[n_tensors], zeroed before, from m's numbers. */
void gpt2_build(struct model *m);

#endif
