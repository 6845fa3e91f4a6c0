/* Writing checkpoints and removing old ones. See checkpoint.h. Everything goes into a folder whose name no reader looks
 * at; that folder gets its real name when all of it is on the disk. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/digest.h"
#include "runtime/base/jsonw.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"

void checkpoint_model_hash(const struct model *m, float *const (*parts)[PARAMS_PARTS], uint8_t ret[32])
{
    struct hash whole;
    uint8_t digest[HASH_BYTES];

    hash_init(&whole); /* digest_model without room for all digests */
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        digest_tensor(parts[t][PARAMS_VALUE], m->tensors[t].n, digest);
        hash_update(&whole, digest, sizeof(digest));
    }
    hash_final(&whole, ret);
}

/* The tensors of one file, in the order in which they lie in it: tensor by tensor, its parts from..to-1. */
struct tensor_file {
    const struct model *model;
    float *const (*parts)[PARAMS_PARTS];
    enum params_part from, to;
};

static int put_tensors(const struct tensor_file *f, struct safetensors_writer *w, uint8_t ret_hash[HASH_BYTES],
                       struct reason *why)
{
    struct hash whole;
    uint8_t digest[HASH_BYTES];

    hash_init(&whole);
    for (uint32_t t = 0; t < f->model->n_tensors; t++) {
        const int64_t n = f->model->tensors[t].n;

        for (enum params_part p = f->from; p < f->to; p++) {
            const int r = safetensors_writer_put(w, f->parts[t][p], (size_t)n * sizeof(float), why);

            if (r < 0)
                return r;
            digest_tensor(f->parts[t][p], n, digest);
            hash_update(&whole, digest, sizeof(digest));
        }
    }
    hash_final(&whole, ret_hash);
    return safetensors_writer_finish(w, why);
}

/* Writes the file and gives the hash over its tensors' digests. */
static int write_tensors(const struct tensor_file *f, const char *path, uint8_t ret_hash[HASH_BYTES],
                         struct reason *why)
{
    static const char *const metadata[] = {"format", "pt", NULL}; /* transformers asks for it */
    const uint32_t n_parts = f->to - f->from;
    const size_t n = (size_t)f->model->n_tensors * n_parts;
    cleanup_mem_ struct safetensors_tensor *specs = mem_calloc(n, sizeof(*specs));
    cleanup_mem_ char(*names)[CHECKPOINT_TENSOR_NAME_LEN] = mem_calloc(n, sizeof(*names));
    struct safetensors_writer *w;
    int r;

    if (specs == NULL || names == NULL)
        return reason_set(why, -E_NOMEM, "no memory to write %s", path);
    for (size_t i = 0; i < n; i++)
        checkpoint_tensor(f->model, (uint32_t)(i / n_parts), (enum params_part)(f->from + i % n_parts), names[i],
                          &specs[i]);
    r = safetensors_writer_new(path, specs, n, metadata, &w, why);
    if (r < 0)
        return r;
    r = put_tensors(f, w, ret_hash, why);
    safetensors_writer_free(w);
    return r;
}

/* Writes what w holds as a small file; frees w. */
static int write_json(struct jsonw *w, const char *path, struct reason *why)
{
    const char *text = jsonw_text(w);
    int r;

    if (text != NULL)
        r = file_write(path, text, strlen(text), 0644, why);
    else
        r = reason_set(why, -E_NOMEM, "no memory to write %s", path);
    jsonw_done(w);
    return r;
}

/* What GPT2Config of Hugging Face transformers reads. Bytes have no token that begins or ends a text; 0 (a byte that
 * no text holds) stands in for both, where GPT-2's own default lies outside our vocabulary. */
static int write_config(const struct model *m, const char *path, struct reason *why)
{
    struct jsonw w;

    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_array(&w, "architectures");
    jsonw_str(&w, NULL, "GPT2LMHeadModel");
    jsonw_array_end(&w);
    jsonw_str(&w, "model_type", "gpt2");
    jsonw_int(&w, "n_layer", m->n_layer);
    jsonw_int(&w, "n_head", m->n_head);
    jsonw_int(&w, "n_embd", m->n_embd);
    jsonw_int(&w, "n_positions", m->n_ctx);
    jsonw_int(&w, "n_ctx", m->n_ctx);
    jsonw_int(&w, "vocab_size", m->n_vocab);
    jsonw_str(&w, "activation_function", "gelu_new");
    jsonw_num(&w, "layer_norm_epsilon", 1e-5);
    jsonw_num(&w, "embd_pdrop", 0);
    jsonw_num(&w, "attn_pdrop", 0);
    jsonw_num(&w, "resid_pdrop", 0);
    jsonw_bool(&w, "scale_attn_weights", true);
    jsonw_bool(&w, "tie_word_embeddings", true);
    jsonw_int(&w, "bos_token_id", 0);
    jsonw_int(&w, "eos_token_id", 0);
    jsonw_str(&w, "torch_dtype", "float32");
    jsonw_object_end(&w);
    return write_json(&w, path, why);
}

static void put_u64(struct jsonw *w, const char *key, uint64_t value)
{
    char text[32];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    jsonw_str(w, key, text);
}

static void put_hash(struct jsonw *w, const char *key, const uint8_t hash[HASH_BYTES])
{
    char hex[HASH_HEX_LEN + 1];

    hash_hex(hash, hex);
    jsonw_str(w, key, hex);
}

static int write_state(const struct job *job, const struct checkpoint_state *state, const uint8_t optimizer[HASH_BYTES],
                       const char *path, struct reason *why)
{
    struct jsonw w;

    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_int(&w, "format", CHECKPOINT_FORMAT);
    jsonw_str(&w, "job", job->name);
    put_u64(&w, "version", state->version);
    put_u64(&w, "updates", state->updates);
    jsonw_num(&w, "loss", state->loss);
    put_u64(&w, "seed", state->seed);
    put_u64(&w, "data_fingerprint", state->data_fingerprint);
    put_hash(&w, "hash", state->hash);
    put_hash(&w, "optimizer_hash", optimizer);
    jsonw_object_end(&w);
    return write_json(&w, path, why);
}

/* One checkpoint being written: where, and from what. */
struct source {
    const struct model *model;
    const struct job *job;
    const char *job_text;
    const struct checkpoint_state *state;
    float *const (*parts)[PARAMS_PARTS];
};

/* Fills the new folder: the state last, because it tells the hashes of the rest. */
static int write_folder(const struct source *s, const char *folder, struct reason *why)
{
    cleanup_mem_ char *model = file_join(folder, CHECKPOINT_MODEL);
    cleanup_mem_ char *optimizer = file_join(folder, CHECKPOINT_OPTIMIZER);
    cleanup_mem_ char *config = file_join(folder, CHECKPOINT_CONFIG);
    cleanup_mem_ char *job = file_join(folder, CHECKPOINT_JOB);
    cleanup_mem_ char *state = file_join(folder, CHECKPOINT_STATE);
    const struct tensor_file values = {s->model, s->parts, PARAMS_VALUE, PARAMS_VALUE + 1};
    const struct tensor_file moments = {s->model, s->parts, PARAMS_MOMENT1, PARAMS_PARTS};
    uint8_t hash[HASH_BYTES], optimizer_hash[HASH_BYTES];
    int r;

    if (model == NULL || optimizer == NULL || config == NULL || job == NULL || state == NULL)
        return reason_set(why, -E_NOMEM, "no memory to write %s", folder);
    if ((r = file_remove_tree(folder, why)) < 0 || (r = file_make_dirs(folder, why)) < 0)
        return r;
    r = write_tensors(&values, model, hash, why);
    if (r < 0)
        return r;
    if (memcmp(hash, s->state->hash, sizeof(hash)) != 0)
        return reason_set(why, -E_CORRUPT, "the values of version %" PRIu64 " do not have the hash that they should",
                          s->state->version);
    if ((r = write_tensors(&moments, optimizer, optimizer_hash, why)) < 0 ||
        (r = write_config(s->model, config, why)) < 0 ||
        (r = file_write(job, s->job_text, strlen(s->job_text), 0644, why)) < 0 ||
        (r = write_state(s->job, s->state, optimizer_hash, state, why)) < 0)
        return r;
    return file_sync_dir(folder, why);
}

/* Gives the finished folder its name. One that has it already is renamed away first: a crash in between costs that
 * version, older ones are still there. */
static int publish(const char *temp, const char *old, const char *final, struct reason *why)
{
    int r;

    if (file_exists(final)) {
        r = file_remove_tree(old, why);
        if (r < 0)
            return r;
        if (rename(final, old) < 0)
            return reason_set(why, -E_IO, "cannot rename %s: %s", final, strerror(errno));
    }
    if (rename(temp, final) < 0)
        return reason_set(why, -E_IO, "cannot rename %s to %s: %s", temp, final, strerror(errno));
    return 0;
}

static void remove_best_effort(const char *dir, const char *name)
{
    cleanup_mem_ char *path = file_join(dir, name);
    struct reason why = {0};
    const int r = path != NULL ? file_remove_tree(path, &why) : -E_NOMEM;

    if (r < 0)
        log_debug("checkpoint", "%s, ignoring", reason_text(&why, r));
}

/* Removes all but the newest keep (never version `written`) and what has a hidden name. Best effort: the new checkpoint
 * is there whatever happens here. */
static void prune(const char *dir, uint32_t keep, uint64_t written)
{
    cleanup_mem_ uint64_t *versions = NULL;
    char name[CHECKPOINT_NAME_LEN];
    char **names = NULL;
    size_t n_versions = 0, n_names = 0;

    if (checkpoint_versions(dir, &versions, &n_versions, NULL) < 0 || file_list(dir, &names, &n_names, NULL) < 0)
        return;
    for (size_t i = keep; i < n_versions; i++) {
        checkpoint_name(versions[i], name);
        if (versions[i] != written)
            remove_best_effort(dir, name);
    }
    for (size_t i = 0; i < n_names; i++) {
        if (strncmp(names[i], CHECKPOINT_HIDDEN, strlen(CHECKPOINT_HIDDEN)) == 0)
            remove_best_effort(dir, names[i]);
    }
    file_names_free(names, n_names);
}

int checkpoint_write(const char *dir, const struct model *m, const struct job *job, const char *job_text,
                     const struct checkpoint_state *state, float *const (*parts)[PARAMS_PARTS], uint32_t keep,
                     char **ret_path, struct reason *why)
{
    const struct source source = {m, job, job_text, state, parts};
    char name[CHECKPOINT_NAME_LEN], hidden[2 * CHECKPOINT_NAME_LEN], hidden_old[2 * CHECKPOINT_NAME_LEN];
    cleanup_mem_ char *temp = NULL, *old = NULL, *final = NULL;
    int r;

    assert(keep >= 1);
    checkpoint_name(state->version, name);
    snprintf(hidden, sizeof(hidden), CHECKPOINT_HIDDEN "new-%s", name);
    snprintf(hidden_old, sizeof(hidden_old), CHECKPOINT_HIDDEN "old-%s", name);
    final = file_join(dir, name);
    temp = file_join(dir, hidden);
    old = file_join(dir, hidden_old);
    if (final == NULL || temp == NULL || old == NULL)
        return reason_set(why, -E_NOMEM, "no memory to write a checkpoint");
    r = write_folder(&source, temp, why);
    if (r == 0)
        r = publish(temp, old, final, why);
    if (r < 0) {
        file_remove_tree(temp, NULL);
        return reason_wrap(why, r, "writing the checkpoint %s", final);
    }
    r = file_sync_dir(dir, why);
    if (r < 0)
        return reason_wrap(why, r, "writing the checkpoint %s", final);
    prune(dir, keep, state->version);
    if (ret_path != NULL)
        *ret_path = TAKE_PTR(final);
    return 0;
}
