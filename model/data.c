/* Samples from the job's text, which lies in memory whole. Finding and reading the files is data_files.c's business.
 * Invariant: n_train + n_validation bytes, each part longer than a sequence; nothing changes after data_open. */
#include "model/data.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "model/data_files.h"
#include "model/tokenizer.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

struct data {
    uint8_t *text;
    size_t n_train, n_validation; /* validation follows training */
    uint64_t key;                 /* of the sample positions */
    uint32_t B, T;
    uint32_t n_eval; /* sequences of one evaluation */
};

_Static_assert(MICROBATCHES_MAX <= 1 << 12 && JOB_SEQUENCES_MAX <= 1 << 12, "a sample's counter has 12 bits for each");
_Static_assert(JOB_STEPS_MAX <= UINT64_C(1) << 40, "a sample's counter has 40 bits for the step");

int data_open(const struct job *job, struct data **ret, struct reason *why)
{
    struct data *d = mem_calloc(1, sizeof(*d));
    size_t n;
    int r;

    if (!d)
        return reason_set(why, -E_NOMEM, "out of memory for the data");
    r = data_files_read(job->data.paths, job->data.n_paths, &d->text, &n, why);
    if (r < 0) {
        data_free(d);
        return r;
    }
    d->n_validation = (size_t)floor((double)n * job->data.validation);
    d->n_train = n - d->n_validation;
    d->key = rng_key(job->seed, "sample");
    d->B = job->train.sequences;
    d->T = job->model.n_ctx;
    d->n_eval = job->eval.microbatches * d->B;
    if (d->n_train < (size_t)d->T + 1 || d->n_validation < (size_t)d->T + 1) {
        r = reason_set(why, -E_CONFIG,
                       "data.paths: %zu bytes of text are too few: training gets %zu and validation %zu, each needs at "
                       "least model.context + 1 = %" PRIu32,
                       n, d->n_train, d->n_validation, d->T + 1);
        data_free(d);
        return r;
    }
    *ret = d;
    return 0;
}

struct data *data_free(struct data *d)
{
    if (!d)
        return NULL;
    mem_free(d->text);
    return mem_free(d);
}

uint64_t data_train_tokens(const struct data *d)
{
    return d->n_train;
}

uint64_t data_validation_tokens(const struct data *d)
{
    return d->n_validation;
}

/* Number b of a microbatch: the T tokens from position at, and their targets. */
static void sequence(const struct data *d, size_t at, uint32_t b, int32_t *tokens, int32_t *targets)
{
    const size_t out = (size_t)b * d->T;

    assert(at + d->T < d->n_train + d->n_validation);
    tokenizer_encode(d->text + at, d->T, tokens + out);
    tokenizer_encode(d->text + at + 1, d->T, targets + out);
}

void data_sample(const struct data *d, uint64_t step, uint32_t microbatch, int32_t *tokens, int32_t *targets)
{
    assert(step < JOB_STEPS_MAX && microbatch < MICROBATCHES_MAX);
    for (uint32_t b = 0; b < d->B; b++) {
        const uint64_t x = rng_at(d->key, step << 24 | (uint64_t)microbatch << 12 | b);
        /* Scaled, not taken modulo: no division, and a bias of at most n / 2^64. */
        const size_t at = (size_t)(((unsigned __int128)x * (d->n_train - d->T)) >> 64);

        sequence(d, at, b, tokens, targets);
    }
}

/* Where validation sequence q starts: the first at the first token, the last at the last possible one. */
static size_t eval_start(const struct data *d, uint32_t q)
{
    const uint64_t last = d->n_validation - d->T - 1;

    return d->n_train + (size_t)(d->n_eval > 1 ? (unsigned __int128)q * last / (d->n_eval - 1) : 0);
}

void data_eval_sample(const struct data *d, uint32_t i, int32_t *tokens, int32_t *targets)
{
    assert((uint64_t)i * d->B < d->n_eval);
    for (uint32_t b = 0; b < d->B; b++)
        sequence(d, eval_start(d, i * d->B + b), b, tokens, targets);
}

double data_unigram_loss(const struct data *d)
{
    uint64_t counts[TOKENIZER_BYTE_VOCAB] = {0};
    const double total = (double)d->n_train + TOKENIZER_BYTE_VOCAB;
    double sum = 0.0;

    for (size_t i = 0; i < d->n_train; i++)
        counts[d->text[i]]++;
    for (uint32_t q = 0; q < d->n_eval; q++) {
        const uint8_t *target = d->text + eval_start(d, q) + 1;

        for (uint32_t t = 0; t < d->T; t++)
            sum -= log(((double)counts[target[t]] + 1.0) / total);
    }
    return sum / ((double)d->n_eval * d->T);
}

uint64_t data_fingerprint(const struct data *d)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < d->n_train + d->n_validation; i++)
        h = (h ^ d->text[i]) * UINT64_C(0x100000001b3);
    return h;
}
