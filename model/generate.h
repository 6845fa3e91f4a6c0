/* Text from a checkpoint: the model's values on a device, forward only, one sequence at a time. Each new token runs the
 * whole window again through the very units that training runs; nothing is cached, nothing is a second implementation.
 * Called from the thread that owns the device. */
#ifndef SHOAL_MODEL_GENERATE_H
#define SHOAL_MODEL_GENERATE_H

#include "kernels/kern.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "runtime/base/rng.h"

struct generate;

/* Loads the values of the checkpoint folder at path onto k, which must outlive the result. What checkpoint_job and
 * checkpoint_open say; -E_NOMEM (device memory too). */
int generate_open(const char *path, struct kern *k, struct generate **ret, struct reason *why);
struct generate *generate_free(struct generate *g); /* NULL ok; returns NULL */

const struct model *generate_model(const struct generate *g); /* with B = M = 1 */
const struct checkpoint_state *generate_state(const struct generate *g);

/* Logits (n - first, n_vocab), host, of the tokens after each of tokens[first..n-1], given those before it.
 * 0 <= first < n <= n_ctx; tokens outside the vocabulary: -E_INVAL. */
int generate_logits(struct generate *g, const int32_t *tokens, size_t n, size_t first, float *ret_logits);

/* Chooses one of n_vocab tokens: the likeliest of all (the first of equals) at temperature 0, else one of the top_k
 * likeliest (0: all) with probability softmax(logits / temperature). -E_NUMERIC: a logit is NaN or infinite; -E_NOMEM.
 */
int generate_pick(const float *logits, uint32_t n_vocab, double temperature, uint32_t top_k, struct rng *rng,
                  int32_t *ret_token);

struct generate_options {
    const uint8_t *prompt; /* bytes; not repeated in the output. An empty one stands for a line's end */
    size_t n_prompt;
    uint64_t n_tokens;  /* to be generated */
    double temperature; /* >= 0 */
    uint32_t top_k;     /* 0: all */
    uint64_t seed;      /* the same seed gives the same text */
};

/* Generates n_tokens, each given to sink as it comes (bytes, as tokenizer_decode has them). A sink that returns
 * non-zero ends it: negative is forwarded, positive makes 0. -E_INVAL: options that make no sense. */
int generate_text(struct generate *g, const struct generate_options *options,
                  int (*sink)(void *arg, const uint8_t *bytes, size_t n), void *arg, struct reason *why);

#endif
