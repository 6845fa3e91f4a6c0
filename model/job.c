/* From a job file's text to a job: one table of numbers with their limits and defaults, then what the table cannot say.
 * What the file's shape must be is job_yaml.c's business. Invariant: a job that job_parse gave satisfies every limit.
 */
#include "model/job.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/job_raw.h"
#include "model/tokenizer.h"
#include "runtime/base/mem.h"

struct source {
    const char *text;
    size_t len;
};

/* A mistake in a key's value, or in a section whose key is missing. */
__attribute__((format(printf, 5, 6))) static int refuse(const struct source *src, const char *section, const char *key,
                                                        struct reason *why, const char *fmt, ...)
{
    char sentence[REASON_TEXT_MAX];
    unsigned line = job_yaml_line(src->text, src->len, section, key, 0);
    va_list args;

    if (line == 0 && section)
        line = job_yaml_line(src->text, src->len, NULL, section, 0);
    va_start(args, fmt);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    va_end(args);
    if (line == 0)
        return reason_set(why, -E_CONFIG, "%s%s%s %s", section ? section : "", section ? "." : "", key, sentence);
    return reason_set(why, -E_CONFIG, "line %u: %s%s%s %s", line, section ? section : "", section ? "." : "", key,
                      sentence);
}

/* ---- numbers: one table ---- */

#define REQUIRED NAN /* as the default */

enum number_type { NUMBER_U32, NUMBER_U64, NUMBER_DOUBLE };

struct number {
    const char *section, *key;
    enum number_type type;
    size_t raw, out; /* offsets in struct job_raw and struct job */
    double min, max, fallback;
    bool above_min; /* min itself is not allowed */
};

#define N(s, k, t, o, ...)                                                                                             \
    {                                                                                                                  \
#s, #k, t, offsetof(struct job_raw, s.k), offsetof(struct job, o), __VA_ARGS__                                 \
    }

static const struct number numbers[] = {
    {NULL, "peers", NUMBER_U32, offsetof(struct job_raw, peers), offsetof(struct job, peers), 1, PEERS_MAX, 1, false},
    N(model, layers, NUMBER_U32, model.n_layer, 1, UNITS_MAX - 2, REQUIRED, false),
    N(model, heads, NUMBER_U32, model.n_head, 1, 1024, REQUIRED, false),
    N(model, embd, NUMBER_U32, model.n_embd, 1, 65536, REQUIRED, false),
    N(model, context, NUMBER_U32, model.n_ctx, 1, 65536, REQUIRED, false),
    N(model, vocab, NUMBER_U32, model.n_vocab, TOKENIZER_BYTE_VOCAB, 1 << 20, TOKENIZER_BYTE_VOCAB, false),
    N(data, validation, NUMBER_DOUBLE, data.validation, 0, 0.5, 0.1, true),
    N(train, steps, NUMBER_U64, train.steps, 1, JOB_STEPS_MAX, REQUIRED, false),
    N(train, microbatches, NUMBER_U32, train.microbatches, 1, MICROBATCHES_MAX, 16, false),
    N(train, sequences, NUMBER_U32, train.sequences, 1, JOB_SEQUENCES_MAX, 4, false),
    N(train, lr, NUMBER_DOUBLE, train.lr, 0, 10, 6e-4, true),
    N(train, weight_decay, NUMBER_DOUBLE, train.weight_decay, 0, 10, 0.1, false),
    N(train, beta1, NUMBER_DOUBLE, train.beta1, 0, 0.999999, 0.9, false),
    N(train, beta2, NUMBER_DOUBLE, train.beta2, 0, 0.999999, 0.95, false),
    N(train, eps, NUMBER_DOUBLE, train.eps, 1e-30, 1, 1e-8, false),
    N(train, clip, NUMBER_DOUBLE, train.clip, 0, 1e6, 1, false),
    N(eval, every, NUMBER_U64, eval.every, 0, JOB_STEPS_MAX, 50, false),
    N(eval, microbatches, NUMBER_U32, eval.microbatches, 1, MICROBATCHES_MAX, 8, false),
    N(checkpoint, every, NUMBER_U64, checkpoint.every, 0, JOB_STEPS_MAX, 100, false),
    N(checkpoint, keep, NUMBER_U32, checkpoint.keep, 1, 1000, 2, false),
};

/* What the limits of lr_min and warmup depend on is known only after the table above was read. */
static void late_numbers(const struct job *job, struct number ret[2])
{
    const struct number lr_min =
        N(train, lr_min, NUMBER_DOUBLE, train.lr_min, 0, job->train.lr, job->train.lr / 10, false);
    const struct number warmup = N(train, warmup, NUMBER_U64, train.warmup_steps, 0, (double)job->train.steps,
                                   (double)(job->train.steps / 20), false);

    ret[0] = lr_min;
    ret[1] = warmup;
}

static bool parse_count(const char *s, uint64_t *ret)
{
    uint64_t v = 0;

    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(v, UINT64_C(10), &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return false;
    }
    *ret = v;
    return true;
}

static bool parse_double(const char *s, double *ret)
{
    char *end;

    if (!*s || s[strspn(s, "0123456789+-.eE")] != '\0') /* no hexadecimal, no nan, no space */
        return false;
    *ret = strtod(s, &end);
    return *end == '\0' && isfinite(*ret);
}

static int read_number(const struct source *src, const struct job_raw *raw, const struct number *n, struct job *job,
                       struct reason *why)
{
    const char *s = *(char *const *)(const void *)((const char *)raw + n->raw);
    void *out = (char *)job + n->out;
    double value = n->fallback;
    uint64_t count = 0;

    if (!s && isnan(n->fallback))
        return refuse(src, n->section, n->key, why, "is missing");
    if (!s)
        count = n->type == NUMBER_DOUBLE ? 0 : (uint64_t)n->fallback;
    else if (n->type == NUMBER_DOUBLE && !parse_double(s, &value))
        return refuse(src, n->section, n->key, why, "must be a number, not \"%s\"", s);
    else if (n->type != NUMBER_DOUBLE && !parse_count(s, &count))
        return refuse(src, n->section, n->key, why, "must be a whole number, not \"%s\"", s);
    else if (n->type != NUMBER_DOUBLE)
        value = (double)count;
    if (n->above_min && !(value > n->min && value <= n->max))
        return refuse(src, n->section, n->key, why, "must be above %.15g and at most %.15g, not %s", n->min, n->max, s);
    if (!(value >= n->min && value <= n->max))
        return refuse(src, n->section, n->key, why, "must be %.15g to %.15g, not %s", n->min, n->max, s);
    switch (n->type) {
    case NUMBER_U32:
        *(uint32_t *)out = (uint32_t)count;
        break;
    case NUMBER_U64:
        *(uint64_t *)out = count;
        break;
    case NUMBER_DOUBLE:
        *(double *)out = value;
        break;
    }
    return 0;
}

/* ---- everything else ---- */

static int read_name(const struct source *src, const char *s, struct job *job, struct reason *why)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (!s)
        s = "job";
    if (!*s || strlen(s) > NAME_MAX_LEN)
        return refuse(src, NULL, "name", why, "must have 1 to %d characters", NAME_MAX_LEN);
    if (s[strspn(s, letters)] != '\0' || strchr("._-", *s))
        return refuse(src, NULL, "name", why,
                      "may hold letters, digits, '.', '_' and '-' and begins with a letter or digit, not \"%s\"", s);
    snprintf(job->name, sizeof(job->name), "%s", s);
    return 0;
}

static int read_choices(const struct source *src, const struct job_raw *raw, struct job *job, struct reason *why)
{
    const char *reduction = raw->reduction ? raw->reduction : "exact";
    const char *arch = raw->model.arch ? raw->model.arch : "gpt2";

    if (strcmp(reduction, "exact") == 0)
        job->reduction = JOB_REDUCTION_EXACT;
    else if (strcmp(reduction, "fast") == 0)
        job->reduction = JOB_REDUCTION_FAST;
    else
        return refuse(src, NULL, "reduction", why, "must be exact or fast, not \"%s\"", reduction);
    if (strcmp(arch, "gpt2") != 0)
        return refuse(src, "model", "arch", why, "must be gpt2, not \"%s\"", arch);
    job->model.arch = JOB_ARCH_GPT2;
    job->seed = 1;
    if (raw->seed && !parse_count(raw->seed, &job->seed))
        return refuse(src, NULL, "seed", why, "must be a whole number below 2^64, not \"%s\"", raw->seed);
    return 0;
}

static int read_paths(const struct source *src, const struct job_raw *raw, const char *base_dir, struct job *job,
                      struct reason *why)
{
    if (raw->data.n_paths == 0)
        return refuse(src, "data", "paths", why, "is missing");
    for (unsigned i = 0; i < raw->data.n_paths; i++) {
        const char *path = raw->data.paths[i];
        const bool relative = base_dir && base_dir[0] && path[0] != '/';
        const size_t n = (relative ? strlen(base_dir) + 1 : 0) + strlen(path) + 1;
        char *joined = mem_alloc(n);

        if (!joined)
            return reason_set(why, -E_NOMEM, "out of memory for the job");
        snprintf(joined, n, "%s%s%s", relative ? base_dir : "", relative ? "/" : "", path);
        job->data.paths[job->data.n_paths++] = joined;
    }
    return 0;
}

/* Limits that tie several keys together. */
static int check_whole(const struct source *src, const struct job *job, struct reason *why)
{
    const uint64_t microbatch = (uint64_t)job->train.sequences * job->model.n_ctx;
    const uint64_t boundary = microbatch * job->model.n_embd * sizeof(float);

    if (job->model.n_embd % job->model.n_head != 0)
        return refuse(src, "model", "heads", why, "must divide model.embd: %" PRIu32 " is not a multiple of %" PRIu32,
                      job->model.n_embd, job->model.n_head);
    if (boundary > BODY_BYTES_MAX)
        return refuse(src, "train", "sequences", why,
                      "x model.context x model.embd is too much: a microbatch's boundary tensor would have %" PRIu64
                      " bytes of at most %u; use more, smaller microbatches",
                      boundary, BODY_BYTES_MAX);
    if (job_step_tokens(job) > JOB_TOKENS_MAX)
        return refuse(src, "train", "microbatches", why,
                      "x train.sequences x model.context is too much: %" PRIu64 " tokens a step of at most %" PRIu64,
                      job_step_tokens(job), JOB_TOKENS_MAX);
    return 0;
}

static int read_job(const struct source *src, const struct job_raw *raw, const char *base_dir, struct job *job,
                    struct reason *why)
{
    struct number late[2];
    int r = read_name(src, raw->name, job, why);

    if (r == 0)
        r = read_choices(src, raw, job, why);
    for (size_t i = 0; r == 0 && i < sizeof(numbers) / sizeof(numbers[0]); i++)
        r = read_number(src, raw, &numbers[i], job, why);
    if (r < 0)
        return r;
    late_numbers(job, late);
    for (size_t i = 0; r == 0 && i < 2; i++)
        r = read_number(src, raw, &late[i], job, why);
    if (r == 0)
        r = check_whole(src, job, why);
    if (r == 0)
        r = read_paths(src, raw, base_dir, job, why);
    return r;
}

int job_parse(const char *text, size_t len, const char *base_dir, struct job *ret, struct reason *why)
{
    const struct source src = {text, len};
    struct job job = {0};
    struct job_raw *raw = NULL;
    int r;

    if (len > JOB_TEXT_MAX)
        return reason_set(why, -E_CONFIG, "a job file has at most %u bytes, this one has %zu", JOB_TEXT_MAX, len);
    r = job_yaml_read(text, len, &raw, why);
    if (r < 0)
        return r;
    r = read_job(&src, raw, base_dir, &job, why);
    job_yaml_free(raw);
    if (r < 0) {
        job_done(&job);
        return r;
    }
    *ret = job;
    return 0;
}

/* The whole file as a NUL-terminated text of *ret_len bytes. */
static int read_text(const char *path, char **ret_text, size_t *ret_len, struct reason *why)
{
    cleanup_mem_ char *text = mem_alloc(JOB_TEXT_MAX + 2);
    FILE *f;
    size_t n;
    int error;

    if (!text)
        return reason_set(why, -E_NOMEM, "out of memory for the job");
    f = fopen(path, "rbe");
    if (!f)
        return reason_set(why, errno == ENOENT ? -E_NOENT : -E_IO, "cannot open job file %s: %s", path,
                          strerror(errno));
    errno = 0;
    n = fread(text, 1, JOB_TEXT_MAX + 1, f);
    error = ferror(f) ? errno : 0;
    fclose(f);
    if (error)
        return reason_set(why, -E_IO, "cannot read job file %s: %s", path, strerror(error));
    text[n] = '\0';
    *ret_text = TAKE_PTR(text);
    *ret_len = n;
    return 0;
}

int job_load(const char *path, struct job *ret, char **ret_text, struct reason *why)
{
    cleanup_mem_ char *text = NULL, *dir = mem_strdup(path);
    char *slash;
    size_t len = 0;
    int r;

    if (!dir)
        return reason_set(why, -E_NOMEM, "out of memory for the job");
    slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0'; /* "/job.yaml" lies in "/" */
    r = read_text(path, &text, &len, why);
    if (r < 0)
        return r;
    r = job_parse(text, len, slash ? dir : NULL, ret, why);
    if (r < 0)
        return reason_wrap(why, r, "%s", path);
    if (ret_text)
        *ret_text = TAKE_PTR(text);
    return 0;
}

void job_done(struct job *job)
{
    for (size_t i = 0; i < job->data.n_paths; i++)
        mem_free(job->data.paths[i]);
    *job = (struct job){0};
}

uint64_t job_step_tokens(const struct job *job)
{
    return (uint64_t)job->train.microbatches * job->train.sequences * job->model.n_ctx;
}

static void add_name(char *ret, size_t size, const char *section, const char *key)
{
    size_t len = strlen(ret);

    snprintf(ret + len, size - len, "%s%s.%s", len > 0 ? ", " : "", section, key);
}

static void add_difference(const struct number *n, const struct job *a, const struct job *b, char *ret, size_t size)
{
    static const size_t sizes[] = {[NUMBER_U32] = 4, [NUMBER_U64] = 8, [NUMBER_DOUBLE] = sizeof(double)};

    if (memcmp((const char *)a + n->out, (const char *)b + n->out, sizes[n->type]) != 0)
        add_name(ret, size, n->section, n->key);
}

void job_differences(const struct job *a, const struct job *b, char *ret, size_t size)
{
    struct number late[2];

    ret[0] = '\0';
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].section != NULL && strcmp(numbers[i].section, "eval") != 0 &&
            strcmp(numbers[i].section, "checkpoint") != 0)
            add_difference(&numbers[i], a, b, ret, size);
    late_numbers(a, late);
    for (size_t i = 0; i < sizeof(late) / sizeof(late[0]); i++)
        add_difference(&late[i], a, b, ret, size);
    if (a->reduction != b->reduction)
        snprintf(ret + strlen(ret), size - strlen(ret), "%sreduction", ret[0] != '\0' ? ", " : "");
}
