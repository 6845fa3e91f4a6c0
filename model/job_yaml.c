/* The shape of a job file, as a libcyaml schema, and its mistakes told with key and line. Values stay text here: what
 * libcyaml takes for a number is laxer ("4x" is 4) than what job.c wants.
 *
 * libcyaml reports a mistake through its log, as a sentence and a backtrace of fields with the line of the event
 * before. That line is off by one for an unknown key and missing for our own checks, so keys are looked up in the text
 * again. */
#include "model/job_raw.h"

#include <assert.h>
#include <cyaml/cyaml.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "model/job.h"

#define VALUE_MAX_LEN 4096 /* bytes of one value: a path */
#define KEY(section, key)                                                                                              \
    CYAML_FIELD_STRING_PTR(#key, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, section, key, 0, VALUE_MAX_LEN)
#define SECTION(section) CYAML_FIELD_MAPPING(#section, CYAML_FLAG_OPTIONAL, struct job_raw, section, section##_fields)

static const cyaml_schema_value_t path_value = {CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 1, VALUE_MAX_LEN)};

static const cyaml_schema_field_t model_fields[] = {
    KEY(struct job_raw_model, arch),
    KEY(struct job_raw_model, layers),
    KEY(struct job_raw_model, heads),
    KEY(struct job_raw_model, embd),
    KEY(struct job_raw_model, context),
    KEY(struct job_raw_model, vocab),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t data_fields[] = {
    CYAML_FIELD_SEQUENCE_COUNT("paths", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct job_raw_data, paths, n_paths,
                               &path_value, 1, JOB_DATA_PATHS_MAX),
    KEY(struct job_raw_data, validation),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t train_fields[] = {
    KEY(struct job_raw_train, steps),        KEY(struct job_raw_train, microbatches),
    KEY(struct job_raw_train, sequences),    KEY(struct job_raw_train, lr),
    KEY(struct job_raw_train, lr_min),       KEY(struct job_raw_train, warmup),
    KEY(struct job_raw_train, weight_decay), KEY(struct job_raw_train, beta1),
    KEY(struct job_raw_train, beta2),        KEY(struct job_raw_train, eps),
    KEY(struct job_raw_train, clip),         CYAML_FIELD_END,
};

static const cyaml_schema_field_t eval_fields[] = {
    KEY(struct job_raw_eval, every),
    KEY(struct job_raw_eval, microbatches),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t checkpoint_fields[] = {
    KEY(struct job_raw_checkpoint, every),
    KEY(struct job_raw_checkpoint, keep),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t top_fields[] = {
    KEY(struct job_raw, name),
    KEY(struct job_raw, seed),
    KEY(struct job_raw, reduction),
    KEY(struct job_raw, peers),
    SECTION(model),
    SECTION(data),
    SECTION(train),
    SECTION(eval),
    SECTION(checkpoint),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t top_value = {CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct job_raw, top_fields)};

/* What libcyaml said about one mistake. */
struct report {
    char text[512];    /* its first sentence, without "Load: " */
    char field[2][64]; /* innermost field first, then the one around it */
    unsigned line;     /* of the innermost backtrace entry that has one */
    unsigned n_fields;
    bool in_list;         /* the mistake is in a list's entry */
    bool second_document; /* more follows after the end of the first document */
};

/* A cyaml_log_fn_t. Its texts: "Load: <sentence>\n", then "Load: Backtrace:\n", then "  in mapping field 'x' (line: 1,
 * column: 2)\n" innermost first. */
__attribute__((format(printf, 3, 0))) static void listen(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    struct report *r = ctx;
    char line[512], field[64];
    const char *at;
    int n = 0;

    vsnprintf(line, sizeof(line), fmt, args);
    line[strcspn(line, "\n")] = '\0';
    if (level < CYAML_LOG_ERROR && strncmp(line, "Ignoring documents", 18) == 0)
        r->second_document = true;
    if (level != CYAML_LOG_ERROR)
        return;
    if (strncmp(line, "Load: ", 6) == 0) {
        if (!r->text[0] && strcmp(line + 6, "Backtrace:") != 0)
            snprintf(r->text, sizeof(r->text), "%s", line + 6);
        return;
    }
    if (r->n_fields == 0 && strstr(line, "in sequence entry"))
        r->in_list = true;
    at = strstr(line, "(line: ");
    if (at && r->line == 0)
        sscanf(at, "(line: %u", &r->line);
    if (sscanf(line, " in mapping field '%63[^']'%n", field, &n) == 1 && n > 0 && r->n_fields < 2)
        memcpy(r->field[r->n_fields++], field, sizeof(field));
}

/* The first line that is indented with a tab, which libyaml calls "character that cannot start any token". 0: none. */
static unsigned tab_line(const char *text, size_t len)
{
    unsigned line = 1;
    bool indent = true;

    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\t' && indent)
            return line;
        indent = text[i] == '\n' || (indent && text[i] == ' ');
        line += text[i] == '\n';
    }
    return 0;
}

/* What libcyaml expected, as people say it. */
static const char *expectation(const char *cyaml_type)
{
    if (strncmp(cyaml_type, "MAPPING", 7) == 0)
        return "must have keys below it";
    if (strncmp(cyaml_type, "SEQUENCE", 8) == 0)
        return "must be a list: [a, b]";
    return "must be a single value";
}

/* Turns a report into our sentence. */
static int explain(const char *text, size_t len, const struct report *r, cyaml_err_t err, struct reason *why)
{
    const char *section = r->n_fields > 1 ? r->field[1] : NULL, *key = r->n_fields > 0 ? r->field[0] : NULL;
    char path[160] = "the job";
    unsigned line = r->line, tab;

    if (err == CYAML_ERR_OOM)
        return reason_set(why, -E_NOMEM, "out of memory for the job");
    if (key) {
        snprintf(path, sizeof(path), "%s%s%s", section ? section : "", section ? "." : "", key);
        if (job_yaml_line(text, len, section, key, 0) > 0)
            line = job_yaml_line(text, len, section, key, 0);
    }
    if (err == CYAML_ERR_INVALID_KEY && strncmp(r->text, "Unexpected key: ", 16) == 0) {
        const char *bad = r->text + 16; /* here the fields of the backtrace are those around the bad key */

        line = job_yaml_line(text, len, key, bad, 0);
        return reason_set(why, -E_CONFIG, "line %u: unknown key \"%s\"%s%s", line ? line : r->line, bad,
                          key ? " under " : "", key ? key : "");
    }
    if (err == CYAML_ERR_LIBYAML_PARSER) {
        tab = tab_line(text, len);
        if (tab > 0)
            return reason_set(why, -E_CONFIG, "line %u: indented with a tab, which YAML does not allow", tab);
        return reason_set(why, -E_CONFIG, "at or after line %u: not valid YAML: %s", r->line ? r->line : 1,
                          strncmp(r->text, "libyaml: ", 9) == 0 ? r->text + 9 : r->text);
    }
    if (strncmp(r->text, "Mapping field already seen", 26) == 0)
        return reason_set(why, -E_CONFIG, "line %u: %s appears twice", job_yaml_line(text, len, section, key, 1), path);
    if (strncmp(r->text, "Expecting ", 10) == 0)
        return reason_set(why, -E_CONFIG, "line %u: %s%s %s", line ? line : 1, r->in_list ? "an entry of " : "", path,
                          expectation(r->text + 10));
    switch ((int)err) {
    case CYAML_ERR_ALIAS:
    case CYAML_ERR_INVALID_ALIAS:
        return reason_set(why, -E_CONFIG, "line %u: %s: YAML aliases (*name) are not supported", line, path);
    case CYAML_ERR_SEQUENCE_ENTRIES_MIN:
        return reason_set(why, -E_CONFIG, "line %u: %s must have at least one entry", line, path);
    case CYAML_ERR_SEQUENCE_ENTRIES_MAX:
        return reason_set(why, -E_CONFIG, "line %u: %s may have at most %d entries", line, path, JOB_DATA_PATHS_MAX);
    case CYAML_ERR_STRING_LENGTH_MIN:
        return reason_set(why, -E_CONFIG, "line %u: %s has an empty entry", line, path);
    case CYAML_ERR_STRING_LENGTH_MAX:
        return reason_set(why, -E_CONFIG, "line %u: %s is longer than %d bytes", line, path, VALUE_MAX_LEN);
    case CYAML_ERR_INTERNAL_ERROR: /* what libcyaml 1.3 says to a key that is no scalar */
        return reason_set(why, -E_CONFIG, "line %u: a key must be a word", r->line);
    default:
        return reason_set(why, -E_CONFIG, "line %u: %s: %s", line, path, r->text[0] ? r->text : cyaml_strerror(err));
    }
}

static cyaml_config_t config(struct report *r)
{
    return (cyaml_config_t){
        .log_fn = r ? listen : NULL,
        .log_ctx = r,
        .mem_fn = cyaml_mem,
        .log_level = CYAML_LOG_NOTICE,
        .flags = CYAML_CFG_NO_ALIAS, /* no expansion, so a small file stays small */
    };
}

int job_yaml_read(const char *text, size_t len, struct job_raw **ret, struct reason *why)
{
    struct report report = {0};
    const cyaml_config_t c = config(&report);
    cyaml_data_t *raw = NULL;
    const cyaml_err_t err = cyaml_load_data((const uint8_t *)text, len, &c, &top_value, &raw, NULL);

    if (err != CYAML_OK)
        return explain(text, len, &report, err, why);
    if (!raw)
        return reason_set(why, -E_CONFIG, "the job file is empty");
    if (report.second_document) {
        job_yaml_free(raw);
        return reason_set(why, -E_CONFIG, "a job file holds one YAML document, this one has more (a line \"---\")");
    }
    *ret = raw;
    return 0;
}

struct job_raw *job_yaml_free(struct job_raw *raw)
{
    const cyaml_config_t c = config(NULL);

    if (raw)
        cyaml_free(&c, &top_value, raw, 0);
    return NULL;
}

/* Does line [s, e) have key, as a whole word (quotes allowed) that a colon follows, outside a comment? */
static bool has_key(const char *s, const char *e, const char *key)
{
    const size_t n = strlen(key);

    for (const char *p = s; p < e; p++) {
        const char before = p > s ? p[-1] : ' ';
        const char *after = p + n;

        if (*p == '#' && before == ' ')
            return false;
        if ((size_t)(e - p) < n || memcmp(p, key, n) != 0 || !strchr(" {,\"'?", before))
            continue;
        while (after < e && (*after == '"' || *after == '\'' || *after == ' '))
            after++;
        if (after < e && *after == ':')
            return true;
    }
    return false;
}

unsigned job_yaml_line(const char *text, size_t len, const char *section, const char *key, unsigned n)
{
    const char *end = text + len;
    unsigned line = 1;
    bool inside = false;

    for (const char *s = text; s < end; line++) {
        const char *newline = memchr(s, '\n', (size_t)(end - s));
        const char *e = newline ? newline : end;
        const bool top = s < e && *s != ' ' && *s != '#' && *s != '\r' && *s != '-';
        const char *rest = s;

        if (top && section) {
            inside = has_key(s, e, section) && (size_t)(e - s) > strlen(section) &&
                     memcmp(s + (*s == '"' || *s == '\''), section, strlen(section)) == 0;
            rest = memchr(s, ':', (size_t)(e - s)); /* what follows on the section's own line: {key: value} */
            rest = rest ? rest + 1 : e;
        }
        if ((section ? inside : top) && has_key(rest, e, key) && n-- == 0)
            return line;
        s = e + 1;
    }
    return 0;
}
