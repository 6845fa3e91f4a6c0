/* Reading checkpoints. See checkpoint.h. A folder is whole when its state can be read and both tensor files have the
 * hashes that the state tells; only then is it compared with a model. */
#include "model/checkpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "model/checkpoint_files.h"
#include "model/digest.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"
#include "runtime/store/json.h"

struct checkpoint {
    struct checkpoint_state state;
    uint8_t optimizer_hash[HASH_BYTES];
    struct safetensors *values;    /* tensor t of the model is tensor t of the file */
    struct safetensors *optimizer; /* its moments are 2t and 2t + 1 */
};

static int read_state(struct checkpoint *c, const struct json *j, struct reason *why)
{
    struct checkpoint_state *s = &c->state;
    uint64_t format;
    int r;

    if ((r = json_get_u64(j, "format", &format, why)) < 0)
        return r;
    if (format != CHECKPOINT_FORMAT)
        return reason_set(why, -E_VERSION, "checkpoint format %" PRIu64 ", and this program reads %u", format,
                          CHECKPOINT_FORMAT);
    if ((r = json_get_u64(j, "version", &s->version, why)) < 0 ||
        (r = json_get_u64(j, "updates", &s->updates, why)) < 0 || (r = json_get_num(j, "loss", &s->loss, why)) < 0 ||
        (r = json_get_u64(j, "seed", &s->seed, why)) < 0 ||
        (r = json_get_u64(j, "data_fingerprint", &s->data_fingerprint, why)) < 0 ||
        (r = json_get_hex(j, "hash", s->hash, sizeof(s->hash), why)) < 0)
        return r;
    if (s->updates > s->version)
        return reason_set(why, -E_CORRUPT, "more updates than steps");
    return json_get_hex(j, "optimizer_hash", c->optimizer_hash, sizeof(c->optimizer_hash), why);
}

/* A file that a checkpoint must have: its being missing is damage. */
static int required(int r, struct reason *why)
{
    return r == -E_NOENT ? reason_wrap(why, -E_CORRUPT, "incomplete") : r;
}

static int load_state(struct checkpoint *c, const char *folder, struct reason *why)
{
    cleanup_mem_ char *path = file_join(folder, CHECKPOINT_STATE);
    struct json *j = NULL;
    int r;

    if (path == NULL)
        return reason_set(why, -E_NOMEM, "no memory");
    r = required(json_load(path, JSON_TEXT_MAX, &j, why), why);
    if (r < 0)
        return r;
    r = read_state(c, j, why);
    json_free(j);
    return r < 0 ? reason_wrap(why, r, "%s", path) : 0;
}

/* Opens one tensor file and compares the hash over its tensors' digests. */
static int load_tensors(const char *folder, const char *name, const uint8_t hash[HASH_BYTES], struct safetensors **ret,
                        struct reason *why)
{
    cleanup_mem_ char *path = file_join(folder, name);
    uint8_t digest[HASH_BYTES];
    struct hash whole;
    int r;

    if (path == NULL)
        return reason_set(why, -E_NOMEM, "no memory");
    r = required(safetensors_open(path, ret, why), why);
    if (r < 0)
        return r;
    hash_init(&whole);
    for (size_t i = 0; i < safetensors_count(*ret); i++) {
        hash_of(safetensors_at(*ret, i)->data, safetensors_at(*ret, i)->size, digest);
        hash_update(&whole, digest, sizeof(digest));
    }
    hash_final(&whole, digest);
    if (memcmp(digest, hash, HASH_BYTES) != 0)
        return reason_set(why, -E_CORRUPT, "%s: its hash is not the one in %s", path, CHECKPOINT_STATE);
    return 0;
}

/* Opens what can be checked without a model. */
static int open_whole(const char *path, struct checkpoint **ret, struct reason *why)
{
    struct checkpoint *c;
    int r;

    if (!file_exists(path))
        return reason_set(why, -E_NOENT, "no checkpoint %s", path);
    c = mem_calloc(1, sizeof(*c));
    if (c == NULL)
        return reason_set(why, -E_NOMEM, "no memory");
    if ((r = load_state(c, path, why)) < 0 ||
        (r = load_tensors(path, CHECKPOINT_MODEL, c->state.hash, &c->values, why)) < 0 ||
        (r = load_tensors(path, CHECKPOINT_OPTIMIZER, c->optimizer_hash, &c->optimizer, why)) < 0) {
        checkpoint_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

static int check_tensor(const struct checkpoint *c, const struct model *m, uint32_t t, enum params_part part,
                        struct reason *why)
{
    const struct safetensors *file = part == PARAMS_VALUE ? c->values : c->optimizer;
    const size_t at = part == PARAMS_VALUE ? t : 2 * (size_t)t + (part - PARAMS_MOMENT1);
    char name[CHECKPOINT_TENSOR_NAME_LEN];
    const struct safetensors_tensor *got = safetensors_at(file, at);
    struct safetensors_tensor want;

    checkpoint_tensor(m, t, part, name, &want);
    if (strcmp(got->name, want.name) != 0)
        return reason_set(why, -E_CONFIG, "tensor %zu is %.100s and should be %s", at, got->name, want.name);
    if (got->dtype != want.dtype)
        return reason_set(why, -E_CONFIG, "%s is %s and should be F32", want.name, safetensors_dtype_text(got->dtype));
    if (got->n_dims != want.n_dims || memcmp(got->dims, want.dims, sizeof(want.dims)) != 0)
        return reason_set(why, -E_CONFIG, "%s has another shape than the model's", want.name);
    return 0;
}

static int check_model(const struct checkpoint *c, const struct model *m, struct reason *why)
{
    if (safetensors_count(c->values) != m->n_tensors || safetensors_count(c->optimizer) != 2 * (size_t)m->n_tensors)
        return reason_set(why, -E_CONFIG, "%zu tensors and %zu moments where the model has %" PRIu32 " tensors",
                          safetensors_count(c->values), safetensors_count(c->optimizer), m->n_tensors);
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        for (enum params_part p = PARAMS_VALUE; p < PARAMS_PARTS; p++) {
            const int r = check_tensor(c, m, t, p, why);

            if (r < 0)
                return r;
        }
    }
    return 0;
}

int checkpoint_open(const char *path, const struct model *m, struct checkpoint **ret, struct reason *why)
{
    struct checkpoint *c;
    int r = open_whole(path, &c, why);

    if (r < 0)
        return r;
    r = check_model(c, m, why);
    if (r < 0) {
        checkpoint_free(c);
        return reason_wrap(why, r, "%s holds another model", path);
    }
    *ret = c;
    return 0;
}

struct checkpoint *checkpoint_free(struct checkpoint *c)
{
    if (c == NULL)
        return NULL;
    safetensors_free(c->values);
    safetensors_free(c->optimizer);
    return mem_free(c);
}

const struct checkpoint_state *checkpoint_state(const struct checkpoint *c)
{
    return &c->state;
}

const float *checkpoint_part(const struct checkpoint *c, uint32_t tensor, enum params_part part)
{
    assert(part < PARAMS_PARTS);
    if (part == PARAMS_VALUE)
        return safetensors_at(c->values, tensor)->data;
    return safetensors_at(c->optimizer, 2 * (size_t)tensor + (part - PARAMS_MOMENT1))->data;
}

/* Whether folder is a whole checkpoint of that version: 0, else why not. */
static int whole(const char *folder, uint64_t version, struct reason *why)
{
    struct checkpoint *c;
    struct job job;
    int r = open_whole(folder, &c, why);

    if (r < 0)
        return r;
    if (c->state.version != version)
        r = reason_set(why, -E_CORRUPT, "%s holds version %" PRIu64, folder, c->state.version);
    checkpoint_free(c);
    if (r < 0)
        return r;
    r = checkpoint_job(folder, &job, NULL, why);
    if (r == 0)
        job_done(&job);
    return r;
}

int checkpoint_latest(const char *dir, char **ret_path, struct reason *ret_damage, struct reason *why)
{
    struct reason first = {0};
    cleanup_mem_ uint64_t *versions = NULL;
    char name[CHECKPOINT_NAME_LEN];
    size_t n;
    int r = checkpoint_versions(dir, &versions, &n, why);

    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        cleanup_mem_ char *path = NULL;
        struct reason damage = {0};

        checkpoint_name(versions[i], name);
        path = file_join(dir, name);
        if (path == NULL)
            return reason_set(why, -E_NOMEM, "no memory");
        r = whole(path, versions[i], &damage);
        if (r == 0) {
            *ret_path = TAKE_PTR(path);
            if (ret_damage != NULL)
                *ret_damage = first;
            return 0;
        }
        if (first.text[0] == '\0')
            reason_set(&first, r, "%s", reason_text(&damage, r));
        if (r == -E_NOMEM)
            return reason_set(why, r, "no memory to look at %s", path);
        log_debug("checkpoint", "%s, ignoring", reason_text(&damage, r));
    }
    if (n > 0)
        return reason_set(why, -E_NOENT, "no whole checkpoint in %s, %zu damaged", dir, n);
    return reason_set(why, -E_NOENT, "no checkpoint in %s", dir);
}

int checkpoint_job(const char *path, struct job *ret, char **ret_text, struct reason *why)
{
    cleanup_mem_ char *file = file_join(path, CHECKPOINT_JOB);
    cleanup_mem_ char *text = NULL;
    size_t len;
    int r;

    if (file == NULL)
        return reason_set(why, -E_NOMEM, "no memory");
    r = file_read(file, JOB_TEXT_MAX, &text, &len, why);
    if (r < 0)
        return r;
    r = job_parse(text, len, NULL, ret, why);
    if (r < 0)
        return reason_wrap(why, r, "%s", file);
    if (ret_text != NULL)
        *ret_text = TAKE_PTR(text);
    return 0;
}
