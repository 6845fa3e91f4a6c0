/* The job's text: files, folders and globs in the order the job lists them, the tail kept for validation. Which samples
 * a microbatch holds depends on (seed, step, microbatch) and the text alone, for ever. Read-only after opening; any
 * thread.
 *
 * A folder gives the files right in it (not those of its folders, nor hidden ones), a glob what glob(3) finds; both in
 * byte order of their names. A file reached twice, by a link or by two patterns, is read once. */
#ifndef SHOAL_MODEL_DATA_H
#define SHOAL_MODEL_DATA_H

#include "model/job.h"

struct data;

/* Opens and joins the job's files. Missing or empty data: -E_NOENT / -E_CONFIG with a sentence. Files that are not
 * regular text (a NUL byte in the first 4 KiB) found through a folder or glob are skipped; named directly they are
 * refused. The training and the validation part must each hold one sequence and its last target: T + 1 bytes. */
int data_open(const struct job *job, struct data **ret, struct reason *why);
struct data *data_free(struct data *d); /* NULL ok; returns NULL */

uint64_t data_train_tokens(const struct data *d);
uint64_t data_validation_tokens(const struct data *d);

/* tokens, targets: (B,T) each, host; targets[b][t] is the token after tokens[b][t]. Sequence b begins at
 *     floor(x * n / 2^64), n = training tokens - T,
 *     x = rng_at(rng_key(seed, "sample"), step * 2^24 + microbatch * 2^12 + b). */
void data_sample(const struct data *d, uint64_t step, uint32_t microbatch, int32_t *tokens, int32_t *targets);
/* Microbatch i < job.eval.microbatches of the validation. All validation sequences are spread evenly over the text from
 * its first to its last token, and are disjoint if it is long enough. */
void data_eval_sample(const struct data *d, uint32_t i, int32_t *tokens, int32_t *targets);

/* Cross-entropy (nats per token) on the evaluation samples of a unigram byte model fitted on the training text with
 * add-one smoothing: the loss that a model which knows letter frequencies and nothing else would have. */
double data_unigram_loss(const struct data *d);

/* BLAKE2b-256 is not ours to call here: a 64-bit fingerprint (FNV-1a) of the joined text, kept in checkpoints to notice
 * changed data. */
uint64_t data_fingerprint(const struct data *d);

#endif
