/* Notes as JSON. The names are a promise to scripts: add fields, never rename one. */
#include "cli/events_json.h"

#include <assert.h>

static void json_peer(struct jsonw *w, const struct note *n)
{
    static const char *const states[] = {
        [NOTE_PEER_JOINED] = "joined", [NOTE_PEER_LEFT] = "left", [NOTE_PEER_DEAD] = "dead"};
    char hex[KEY_HEX_LEN + 1];
    key_hex(&n->key, hex);
    jsonw_str(w, "id", hex);
    jsonw_str(w, "state", states[n->peer_state]);
    jsonw_str(w, "name", n->name == NULL ? "" : n->name);
    jsonw_str(w, "why", n->text == NULL ? "" : n->text);
}

static void json_step(struct jsonw *w, const struct note *n)
{
    jsonw_int(w, "step", (int64_t)n->step);
    jsonw_int(w, "steps_total", (int64_t)n->steps_total);
    jsonw_num(w, "loss", n->loss);
    jsonw_num(w, "tokens_per_s", n->tokens_per_s);
    jsonw_num(w, "seconds", n->seconds);
    jsonw_int(w, "epoch", (int64_t)n->epoch);
    jsonw_int(w, "peers", n->n_peers);
    jsonw_num(w, "norm", n->norm);
    jsonw_num(w, "lr", n->lr);
    jsonw_bool(w, "skipped", n->skipped);
}

static void json_released(struct jsonw *w, const struct note *n)
{
    char hex[KEY_HEX_LEN + 1];
    key_hex(&n->key, hex);
    jsonw_str(w, "id", hex);
    jsonw_str(w, "name", n->name == NULL ? "" : n->name);
    jsonw_int(w, "step", (int64_t)n->step);
    jsonw_int(w, "leases", n->n_leases);
    jsonw_num(w, "seconds", n->seconds);
}

static void json_done(struct jsonw *w, const struct note *n)
{
    char hex[HASH_HEX_LEN + 1];
    hash_hex(n->hash, hex);
    jsonw_int(w, "steps", (int64_t)n->step);
    jsonw_num(w, "loss", n->loss);
    jsonw_str(w, "hash", hex);
    jsonw_num(w, "eval_loss", n->eval_loss);
    jsonw_num(w, "unigram_loss", n->unigram_loss);
    jsonw_str(w, "checkpoint", n->text == NULL ? "" : n->text);
}

void events_json(struct jsonw *w, const struct note *n)
{
    static const char *const names[] = {
        [NOTE_INVITE] = "invite",
        [NOTE_WAITING] = "waiting",
        [NOTE_PEER] = "peer",
        [NOTE_PLAN] = "plan",
        [NOTE_STEP] = "step",
        [NOTE_EVAL] = "eval",
        [NOTE_CHECKPOINT] = "checkpoint",
        [NOTE_WARNING] = "warning",
        [NOTE_RELEASED] = "released",
        [NOTE_ROLLBACK] = "rollback",
        [NOTE_DONE] = "done",
        [NOTE_STOPPED] = "stopped",
    };
    const char *text = n->text == NULL ? "" : n->text;
    assert((size_t)n->kind < sizeof(names) / sizeof(names[0]));
    jsonw_object(w, NULL);
    jsonw_str(w, "event", names[n->kind]);
    switch (n->kind) {
    case NOTE_INVITE:
        jsonw_str(w, "invite", text);
        break;
    case NOTE_WAITING:
    case NOTE_WARNING:
        jsonw_str(w, "text", text);
        break;
    case NOTE_PEER:
        json_peer(w, n);
        break;
    case NOTE_PLAN:
        jsonw_int(w, "epoch", (int64_t)n->epoch);
        jsonw_int(w, "peers", n->n_peers);
        jsonw_num(w, "predicted_seconds", n->seconds);
        jsonw_str(w, "plan", text);
        break;
    case NOTE_STEP:
        json_step(w, n);
        break;
    case NOTE_EVAL:
        jsonw_int(w, "step", (int64_t)n->step);
        jsonw_num(w, "loss", n->loss);
        break;
    case NOTE_CHECKPOINT:
        jsonw_int(w, "step", (int64_t)n->step);
        jsonw_str(w, "path", text);
        break;
    case NOTE_RELEASED:
        json_released(w, n);
        break;
    case NOTE_ROLLBACK:
        jsonw_int(w, "step", (int64_t)n->step);
        jsonw_str(w, "text", text);
        break;
    case NOTE_DONE:
        json_done(w, n);
        break;
    case NOTE_STOPPED:
        jsonw_int(w, "step", (int64_t)n->step);
        jsonw_str(w, "why", text);
        break;
    }
    jsonw_object_end(w);
}
