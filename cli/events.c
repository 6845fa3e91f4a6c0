/* Notes as lines for people, and the live line. The live line is erased before anything else is written, so the text
 * that scrolls by is the same as without a terminal, less the step lines. */
#include "cli/events.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/events_json.h"
#include "runtime/base/mem.h"

#define LIVE_MAX 256

struct events {
    struct events_config config;
    bool live;   /* a live line is on the screen */
    bool closed; /* the reader has gone */
    bool told_end;
    double step_seconds; /* smoothed, for the time left; 0 = none yet */
};

int events_new(const struct events_config *config, struct events **ret)
{
    struct events *e = mem_calloc(1, sizeof(*e));
    if (e == NULL)
        return -E_NOMEM;
    e->config = *config;
    if (e->config.columns <= 0)
        e->config.columns = 80;
    *ret = e;
    return 0;
}

struct events *events_free(struct events *e)
{
    if (e != NULL && e->live && !e->closed)
        fprintf(e->config.out, "\n");
    return mem_free(e);
}

bool events_told_end(const struct events *e)
{
    return e->told_end;
}

static void flush(struct events *e)
{
    if (e->closed || (fflush(e->config.out) == 0 && !ferror(e->config.out)))
        return;
    e->closed = true;
    if (e->config.on_closed != NULL)
        e->config.on_closed(e->config.on_closed_arg);
}

static void erase(struct events *e)
{
    if (e->live)
        fprintf(e->config.out, "\r\033[K");
    e->live = false;
}

void events_line(struct events *e, const char *fmt, ...)
{
    if (e->config.json || e->closed)
        return;
    va_list ap;
    va_start(ap, fmt);
    erase(e);
    vfprintf(e->config.out, fmt, ap);
    fputc('\n', e->config.out);
    va_end(ap);
    flush(e);
}

void events_duration(double seconds, char ret[32])
{
    if (!isfinite(seconds) || seconds < 0)
        snprintf(ret, 32, "?");
    else if (seconds < 9.995)
        snprintf(ret, 32, "%.2f s", seconds);
    else if (seconds < 59.5)
        snprintf(ret, 32, "%.0f s", seconds);
    else if (seconds < 3599.5)
        snprintf(ret, 32, "%dm%02ds", (int)round(seconds) / 60, (int)round(seconds) % 60);
    else if (seconds < 1e8)
        snprintf(ret, 32, "%dh%02dm", (int)(seconds / 3600 + 1e-9), (int)fmod(seconds / 60, 60));
    else
        snprintf(ret, 32, "years");
}

static void rate_text(double tokens_per_s, char ret[32])
{
    if (tokens_per_s >= 1e6)
        snprintf(ret, 32, "%.2fM tok/s", tokens_per_s / 1e6);
    else if (tokens_per_s >= 1e4)
        snprintf(ret, 32, "%.1fk tok/s", tokens_per_s / 1e3);
    else
        snprintf(ret, 32, "%.0f tok/s", tokens_per_s);
}

/* A step as one line; the live form ends with the time left, the lasting one with the gradient's norm. */
static void step_text(struct events *e, const struct note *n, char ret[LIVE_MAX])
{
    char rate[32], tail[64], seconds[32];
    rate_text(n->tokens_per_s, rate);
    events_duration(n->seconds, seconds);
    if (e->config.terminal) {
        double left = n->steps_total > n->step ? (double)(n->steps_total - n->step) * e->step_seconds : 0;
        char eta[32];
        events_duration(left, eta);
        snprintf(tail, sizeof(tail), "%s left", eta);
    } else {
        snprintf(tail, sizeof(tail), "norm %.3f", n->norm);
    }
    snprintf(ret, LIVE_MAX, "step %llu/%llu  loss %.4f  %s  %s  %u peer%s  %s%s", (unsigned long long)n->step,
             (unsigned long long)n->steps_total, n->loss, rate, seconds, n->n_peers, n->n_peers == 1 ? "" : "s", tail,
             n->skipped ? "  skipped: a gradient was not finite" : "");
}

static void show_step(struct events *e, const struct note *n)
{
    /* Half of the newest, half of what was: settles within a few steps of a change of plan. */
    e->step_seconds = e->step_seconds == 0 ? n->seconds : 0.5 * e->step_seconds + 0.5 * n->seconds;
    char line[LIVE_MAX];
    step_text(e, n, line);
    erase(e);
    if (e->config.terminal) {
        fprintf(e->config.out, "%.*s", e->config.columns - 1, line);
        e->live = true;
    } else {
        fprintf(e->config.out, "%s\n", line);
    }
}

static void show_peer(struct events *e, const struct note *n)
{
    char id[KEY_SHORT_LEN + 1];
    key_short(&n->key, id);
    const char *verb = n->peer_state == NOTE_PEER_JOINED ? "joined"
                       : n->peer_state == NOTE_PEER_LEFT ? "left"
                                                         : "is gone";
    bool named = n->name != NULL && n->name[0] != '\0', told = n->text != NULL && n->text[0] != '\0';
    fprintf(e->config.out, "peer %s%s%s%s %s%s%s\n", id, named ? " (" : "", named ? n->name : "", named ? ")" : "",
            verb, told ? ": " : "", told ? n->text : "");
}

/* A text of several lines that may lack its last newline. */
static void show_lines(struct events *e, const char *text)
{
    size_t len = strlen(text);
    fprintf(e->config.out, "%s%s", text, len > 0 && text[len - 1] != '\n' ? "\n" : "");
}

static void show_done(struct events *e, const struct note *n)
{
    char hex[HASH_HEX_LEN + 1];
    hash_hex(n->hash, hex);
    FILE *out = e->config.out;
    fprintf(out, "done: %llu steps, loss %.4f\n", (unsigned long long)n->step, n->loss);
    if (isfinite(n->eval_loss))
        fprintf(out, "validation loss %.4f (letter frequencies alone: %.4f)\n", n->eval_loss, n->unigram_loss);
    fprintf(out, "model hash %s\n", hex);
    if (n->text != NULL && n->text[0] != '\0')
        fprintf(out, "checkpoint %s\n", n->text);
}

static void show(struct events *e, const struct note *n)
{
    FILE *out = e->config.out;
    const char *text = n->text == NULL ? "" : n->text;
    unsigned long long step = n->step;
    if (n->kind == NOTE_STEP) {
        show_step(e, n);
        return;
    }
    if (n->kind == NOTE_INVITE && !e->config.show_invite)
        return;
    erase(e);
    switch (n->kind) {
    case NOTE_INVITE:
        fprintf(out, "To add a machine, type there:\n\n  shoal peer %s\n\n", text);
        break;
    case NOTE_WAITING:
        fprintf(out, "%s\n", text);
        break;
    case NOTE_PEER:
        show_peer(e, n);
        break;
    case NOTE_PLAN:
        show_lines(e, text);
        break;
    case NOTE_EVAL:
        fprintf(out, "step %llu: validation loss %.4f\n", step, n->loss);
        break;
    case NOTE_CHECKPOINT:
        fprintf(out, "step %llu: checkpoint %s\n", step, text);
        break;
    case NOTE_WARNING:
        fprintf(out, "warning: %s\n", text);
        break;
    case NOTE_ROLLBACK:
        fprintf(out, "%s\n", text);
        break;
    case NOTE_DONE:
        show_done(e, n);
        break;
    case NOTE_STOPPED:
        fprintf(e->config.err, "shoal: %s\n", text);
        break;
    case NOTE_STEP:
        break;
    }
}

void events_note(void *arg, const struct note *note)
{
    struct events *e = arg;
    if (note->kind == NOTE_STOPPED)
        e->told_end = true;
    if (e->closed)
        return;
    if (!e->config.json) {
        show(e, note);
    } else {
        struct jsonw w;
        jsonw_init(&w);
        events_json(&w, note);
        const char *text = jsonw_text(&w);
        if (text != NULL)
            fprintf(e->config.out, "%s\n", text);
        jsonw_done(&w);
    }
    flush(e);
}
