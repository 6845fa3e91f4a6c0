/* The job: model + data + optimizer + length of run, one YAML file. Reading it is job_yaml.c's business; here are the
 * values and their limits. A struct job is plain data, immutable after parsing. */
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

struct job {
    char name[NAME_MAX_LEN + 1];
    uint64_t seed;
    struct {
        enum job_arch arch;
        uint32_t n_layer, n_head, n_embd, n_ctx; /* n_ctx: positions and tokens of one sequence (T) */
        uint32_t n_vocab;                        /* 256 for the byte tokenizer */
    } model;
    struct {
        char *paths[JOB_DATA_PATHS_MAX]; /* files, folders, globs; relative to the job file's folder */
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

/* Tokens of one optimizer step: M * B * T. */
uint64_t job_step_tokens(const struct job *job);

#endif
