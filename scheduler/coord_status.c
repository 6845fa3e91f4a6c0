/* The run's state for `shoal status`: one JSON object. See coord_impl.h. */
#include <math.h>

#include "scheduler/coord_impl.h"

static const char *phase_text(const struct coord *c)
{
    switch (c->phase) {
    case COORD_GATHER:
        return "waiting for peers";
    case COORD_CONNECT:
        return "connecting the peers";
    case COORD_SETUP:
        return "setting up the peers' state";
    case COORD_RUN:
        return "training";
    case COORD_STALLED:
        return "going back to the last checkpoint";
    case COORD_ENDING:
        return "writing the last checkpoint";
    case COORD_OVER:
        break;
    }
    return "over";
}

/* The peer's units and its part of each one's microbatches. */
static void peer_work(const struct coord *c, const struct coord_peer *p, struct jsonw *w)
{
    jsonw_array(w, "spans");
    for (uint32_t s = 0; p->plan_peer != UINT32_MAX && s < c->plan.n_stages; s++) {
        const struct plan_stage *st = &c->plan.stages[s];
        double total = 0, own = -1;

        for (uint32_t h = 0; h < st->n_holders; h++) {
            total += c->plan.holders[st->first_holder + h].weight;
            if (c->plan.holders[st->first_holder + h].peer == p->plan_peer)
                own = c->plan.holders[st->first_holder + h].weight;
        }
        if (own < 0)
            continue;
        jsonw_object(w, NULL);
        jsonw_int(w, "first_unit", st->u0);
        jsonw_int(w, "last_unit", st->u1 - 1);
        jsonw_num(w, "share", own / total);
        jsonw_object_end(w);
    }
    jsonw_array_end(w);
}

static void one_peer(const struct coord *c, const struct coord_peer *p, struct jsonw *w)
{
    char id[KEY_HEX_LEN + 1];
    double seconds = 0;

    key_hex(&p->join.key, id);
    for (uint32_t u = 0; p->profiled && u < c->config.model->n_units; u++)
        seconds += p->forward_s[u] + p->backward_s[u];
    jsonw_object(w, NULL);
    jsonw_str(w, "id", id);
    jsonw_str(w, "name", p->join.name);
    jsonw_str(w, "device", p->join.device);
    jsonw_int(w, "threads", p->join.n_threads);
    jsonw_int(w, "memory_bytes", (int64_t)(p->profiled ? p->memory_bytes : p->join.memory_bytes));
    jsonw_str(w, "state",
              !p->admitted                 ? "gone"
              : !p->linked                 ? "connecting"
              : !p->profiled               ? "measuring"
              : p->plan_peer == UINT32_MAX ? "standing by"
              : coord_is_joining(c, p)     ? "joining"
              : p->ready                   ? "working"
                                           : "setting up");
    jsonw_num(w, "microbatch_seconds", p->profiled ? seconds : NAN);
    jsonw_num(w, "busy_seconds", (double)p->heartbeat.busy_ns / 1e9);
    peer_work(c, p, w);
    jsonw_object_end(w);
}

void coord_status(const struct coord *c, struct jsonw *w)
{
    jsonw_str(w, "job", c->config.job->name);
    jsonw_str(w, "state", phase_text(c));
    jsonw_int(w, "step", (int64_t)c->version);
    jsonw_int(w, "steps", (int64_t)c->config.stop_after);
    jsonw_num(w, "loss", c->version > 0 ? c->loss : NAN);
    jsonw_num(w, "eval_loss", c->eval_loss > 0 ? c->eval_loss : NAN);
    jsonw_num(w, "seconds_per_step", c->seconds > 0 ? c->seconds : NAN);
    jsonw_num(w, "predicted_seconds", c->plan.predicted_seconds > 0 ? c->plan.predicted_seconds : NAN);
    jsonw_num(w, "tokens_per_s", c->seconds > 0 ? c->tokens_per_s : NAN);
    jsonw_int(w, "epoch", (int64_t)c->plan.epoch);
    jsonw_int(w, "view", (int64_t)c->view);
    jsonw_array(w, "peers");
    for (uint32_t i = 0; i < c->n_peers; i++)
        one_peer(c, c->peers[i], w);
    jsonw_array_end(w);
}
