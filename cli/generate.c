/* `shoal generate CHECKPOINT`: let a trained model speak. Forward passes only, on this machine. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/rundir.h"
#include "kernels/registry.h"
#include "model/generate.h"
#include "runtime/base/jsonw.h"
#include "runtime/base/mem.h"
#include "runtime/base/pool.h"
#include "runtime/store/file.h"

#define TOKENS_MAX 1000000

struct generate_args {
    struct command_args common;
    const char *prompt, *device;
    uint64_t tokens, top_k, seed, threads;
    double temperature;
};

/* What was generated so far; printed at once for people, collected for programs. */
struct output {
    bool json;
    bool terminal;
    uint8_t last; /* byte printed */
    char *text;
    size_t len, cap;
};

/* Whether a terminal would obey the byte instead of showing it; U+0080 to U+009F are commands too. */
static bool is_control(uint8_t before, uint8_t byte)
{
    if (before == 0xc2 && byte >= 0x80 && byte < 0xa0)
        return true;
    return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
}

static int output_put(void *arg, const uint8_t *bytes, size_t n)
{
    struct output *o = arg;
    if (!o->json) {
        for (size_t i = 0; i < n; i++) {
            int c = o->terminal && is_control(o->last, bytes[i]) ? '?' : bytes[i];
            putchar(c);
            o->last = bytes[i];
        }
        return fflush(stdout) == 0 ? 0 : 1; /* the reader has gone: enough */
    }
    if (o->len + n >= o->cap)
        return -E_TOOBIG;
    memcpy(o->text + o->len, bytes, n);
    o->len += n;
    o->text[o->len] = '\0';
    return 0;
}

/* The checkpoint folder itself, or the newest one in a run's folder. */
static int find_checkpoint(const char *word, char **ret, struct reason *why)
{
    cleanup_mem_ char *state = file_join(word, "state.json");
    if (state == NULL)
        return -E_NOMEM;
    if (file_exists(state)) {
        *ret = mem_strdup(word);
        return *ret == NULL ? -E_NOMEM : 0;
    }
    if (!file_exists(word))
        return reason_set(why, -E_NOENT, "there is no %s; give a checkpoint or the folder of a run, as runs/gpt-nano",
                          word);
    cleanup_mem_ char *checkpoints = rundir_checkpoints(word);
    if (checkpoints == NULL)
        return -E_NOMEM;
    int r = checkpoint_latest(checkpoints, ret, NULL, why);
    if (r == -E_NOENT)
        return reason_set(why, r, "there is no checkpoint in %s yet; a run writes one at its end at the latest", word);
    return r;
}

static int print_json(const struct generate_args *a, const char *path, const struct generate *g, const struct output *o)
{
    struct jsonw w;
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "event", "text");
    jsonw_str(&w, "checkpoint", path);
    jsonw_int(&w, "step", (int64_t)generate_state(g)->version);
    jsonw_str(&w, "prompt", a->prompt == NULL ? "" : a->prompt);
    jsonw_str(&w, "text", o->text);
    jsonw_object_end(&w);
    const char *text = jsonw_text(&w);
    if (text != NULL)
        printf("%s\n", text);
    jsonw_done(&w);
    return text == NULL ? -E_NOMEM : 0;
}

static int speak(const struct generate_args *a, const char *path, struct generate *g, struct reason *why)
{
    const char *prompt = a->prompt == NULL ? "" : a->prompt;
    struct output o = {.json = a->common.json, .cap = a->tokens + 1, .terminal = isatty(STDOUT_FILENO)};
    cleanup_mem_ char *text = o.json ? mem_calloc(o.cap, 1) : NULL;
    o.text = text;
    if (o.json && text == NULL)
        return -E_NOMEM;
    const struct generate_options options = {
        .prompt = (const uint8_t *)prompt,
        .n_prompt = strlen(prompt),
        .n_tokens = a->tokens,
        .temperature = a->temperature,
        .top_k = (uint32_t)a->top_k,
        .seed = a->seed,
    };
    if (!o.json)
        printf("%s", prompt);
    int r = generate_text(g, &options, output_put, &o, why);
    if (r < 0)
        return r;
    if (o.json)
        return print_json(a, path, g, &o);
    printf("\n");
    return 0;
}

static int generate_run(void *args, struct reason *why)
{
    const struct generate_args *a = args;
    cleanup_mem_ char *path = NULL;
    int r = find_checkpoint(a->common.words[0], &path, why);
    if (r < 0)
        return r;
    struct kern k = {0};
    r = kern_open(a->device, a->threads > 0 ? (int)a->threads : pool_cpus(), &k, why);
    if (r < 0)
        return r;
    struct generate *g = NULL;
    r = generate_open(path, &k, &g, why);
    if (r == 0)
        r = speak(a, path, g, why);
    generate_free(g);
    kern_close(&k);
    return r;
}

static const struct option generate_options_table[] = {
    {"prompt", "TEXT", OPTION_TEXT, offsetof(struct generate_args, prompt), .unset = "nothing",
     .help = "how the text begins"},
    {"tokens", "N", OPTION_COUNT, offsetof(struct generate_args, tokens), .fallback = "256", .min = 1,
     .max = TOKENS_MAX, .help = "how much to generate; a token is a byte"},
    {"temperature", "F", OPTION_NUMBER, offsetof(struct generate_args, temperature), .fallback = "0.8", .max = 100,
     .help = "0 always takes the likeliest token, 1 follows the model's probabilities"},
    {"top-k", "N", OPTION_COUNT, offsetof(struct generate_args, top_k), .fallback = "40", .max = 1e6,
     .help = "choose among the N likeliest tokens; 0: all"},
    {"seed", "N", OPTION_COUNT, offsetof(struct generate_args, seed), .fallback = "1",
     .help = "the same seed gives the same text"},
    {"device", "DEVICE", OPTION_TEXT, offsetof(struct generate_args, device), .unset = "the best there is",
     .help = "what to compute with; shoal devices lists them"},
    {"threads", "N", OPTION_COUNT, offsetof(struct generate_args, threads), .fallback = "0", .max = 1024,
     .help = "threads of a CPU device; 0: one for each core"},
};

const struct command command_generate = {
    .name = "generate",
    .summary = "let a trained model write text",
    .words = "CHECKPOINT | RUN",
    .min_words = 1,
    .max_words = 1,
    .about = "Loads a checkpoint (for a run's folder: its newest one) and continues the prompt.",
    .example = "shoal generate runs/gpt-nano --prompt \"The \"",
    .options = generate_options_table,
    .n_options = sizeof(generate_options_table) / sizeof(generate_options_table[0]),
    .args_size = sizeof(struct generate_args),
    .run = generate_run,
};
