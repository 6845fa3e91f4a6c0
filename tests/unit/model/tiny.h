/* A job small enough to differentiate by hand: what the model tests share. */
#ifndef SHOAL_TESTS_UNIT_MODEL_TINY_H
#define SHOAL_TESTS_UNIT_MODEL_TINY_H

#include "model/job.h"

static inline struct job tiny_job(void)
{
    return (struct job){
        .name = "tiny",
        .seed = 7,
        .model = {.arch = JOB_ARCH_GPT2, .n_layer = 2, .n_head = 2, .n_embd = 12, .n_ctx = 6, .n_vocab = 17},
        .data = {.validation = 0.1},
        .train = {.steps = 100,
                  .microbatches = 4,
                  .sequences = 2,
                  .lr = 1e-3,
                  .lr_min = 1e-4,
                  .warmup_steps = 10,
                  .weight_decay = 0.1,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-8,
                  .clip = 1.0},
        .eval = {.every = 10, .microbatches = 2},
        .checkpoint = {.every = 10, .keep = 2},
        .reduction = JOB_REDUCTION_EXACT,
        .peers = 1,
    };
}

#endif
