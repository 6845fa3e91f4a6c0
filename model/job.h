/* The job: model + data + optimizer + length of run, one YAML file. Reading it is job_yaml.c's business; here are the
 * values and their limits. A struct job is plain data, immutable after parsing.
 *
 *   key                 type    default    meaning
 *   name                text    job        letters, digits, '.', '_', '-'; at most 64; begins with a letter or digit
 *   seed                count   1          initial parameters and choice of samples
 *   reduction           choice  exact      exact: the same bits on every fleet; fast: fp32 sums, depends on the plan
 *   peers               count   1          peers to wait for before the first plan
 *   model.arch          choice  gpt2
 *   model.layers        count   required   blocks
 *   model.heads         count   required   attention heads; divides embd
 *   model.embd          count   required   width of the residual stream
 *   model.context       count   required   tokens of one sequence
 *   model.vocab         count   256        at least 256: tokens are bytes
 *   data.paths          list    required   files, folders, globs, read in this order (data.h); relative to the job file
 *   data.validation     number  0.1        the text's tail kept for validation, a fraction above 0, at most 0.5
 *   train.steps         count   required   optimizer steps
 *   train.microbatches  count   16         of one step
 *   train.sequences     count   4          of one microbatch
 *   train.lr            number  0.0006     highest learning rate
 *   train.lr_min        number  lr / 10    learning rate of the last step
 *   train.warmup        count   steps / 20 steps of linear warm-up
 *   train.weight_decay  number  0.1        of matrices and embeddings
 *   train.beta1, beta2  number  0.9, 0.95  AdamW's decay of the moments
 *   train.eps           number  1e-8       AdamW's epsilon
 *   train.clip          number  1          global gradient norm above which gradients are scaled down; 0: never
 *   eval.every          count   50         steps between validations; 0: only at the end
 *   eval.microbatches   count   8          of one validation
 *   checkpoint.every    count   100        steps between checkpoints; 0: only at the end
 *   checkpoint.keep     count   2          newest checkpoints kept
 *
 * The limits stand in the table of job.c. Unknown keys are refused. */
#ifndef SHOAL_MODEL_JOB_H
#define SHOAL_MODEL_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/bounds.h"
#include "runtime/base/status.h"

enum job_arch { JOB_ARCH_GPT2 };
enum job_reduction { JOB_REDUCTION_EXACT, JOB_REDUCTION_FAST };

#define JOB_DATA_PATHS_MAX 64
#define JOB_SEQUENCES_MAX  4096u               /* sequences of one microbatch */
#define JOB_STEPS_MAX      (UINT64_C(1) << 40) /* of one run; data.c numbers samples by it */
#define JOB_TOKENS_MAX     (UINT64_C(1) << 32) /* tokens of one step */

struct job {
    char name[NAME_MAX_LEN + 1];
    uint64_t seed;
    struct {
        enum job_arch arch;
        uint32_t n_layer, n_head, n_embd, n_ctx; /* n_ctx: positions and tokens of one sequence (T) */
        uint32_t n_vocab;                        /* 256 for the byte tokenizer */
    } model;
    struct {
        char *paths[JOB_DATA_PATHS_MAX]; /* files, folders, globs; made relative to base_dir */
        size_t n_paths;
        double validation; /* fraction of the text kept for validation, its tail, (0, 0.5] */
    } data;
    struct {
        uint64_t steps;
        uint32_t microbatches; /* M per step */
        uint32_t sequences;    /* B: sequences of one microbatch */
        double lr, lr_min;
        uint64_t warmup_steps;
        double weight_decay, beta1, beta2, eps;
        double clip; /* global gradient norm; 0 = no clipping */
    } train;
    struct {
        uint64_t every;        /* steps; 0 = only at the end */
        uint32_t microbatches; /* of one evaluation */
    } eval;
    struct {
        uint64_t every; /* steps; 0 = only at the end */
        uint32_t keep;  /* newest checkpoints kept */
    } checkpoint;
    enum job_reduction reduction;
    uint32_t peers; /* how many peers the coordinator waits for before it makes the first plan */
};

/* Parses and validates a job file's text. base_dir (may be NULL) is what relative data paths are relative to. A wrong
 * key, type or value is named with its line: -E_CONFIG. On success *ret owns its strings: job_done. */
int job_parse(const char *text, size_t len, const char *base_dir, struct job *ret, struct reason *why);
int job_load(const char *path, struct job *ret, char **ret_text,
             struct reason *why); /* ret_text: the file's text, mem_free; may be NULL */
void job_done(struct job *job);   /* zeroed ok */

/* The keys that decide what is trained and have other values in b, as "train.lr, train.steps"; "" for none. Neither the
 * seed nor what data.paths names is compared. */
void job_differences(const struct job *a, const struct job *b, char *ret, size_t size);

/* Tokens of one optimizer step: M * B * T. */
uint64_t job_step_tokens(const struct job *job);

#endif
