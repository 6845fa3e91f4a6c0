/* The coordinator died and is back while its peers lived on (design 7): they connect by themselves, take over the new
 * term from its view, drop the work of the step under way, and say by heartbeat what they hold. Who missed the last
 * commit gets it; who is not back in time is dealt with like any death. Then the step's leases are handed out anew.
 * Nothing is leased in this phase. See coord_impl.h. */
#include <inttypes.h>
#include <stdio.h>

#include "runtime/base/clock.h"
#include "scheduler/coord_impl.h"

#define SAID_NS (5 * NS_PER_S)

void coord_first_event(struct coord *c)
{
    for (uint32_t i = 0; i < c->n_peers; i++)
        c->peers[i]->heard_at = c->peers[i]->unlinked_at = c->now_ns;
    if (c->regather_until == INT64_MAX)
        c->regather_until = c->now_ns + c->config.dead_ns;
    if (c->goes_back)
        coord_start_again(c);
    c->waiting_said_at = c->now_ns - SAID_NS;
    c->committed_at = c->progress_at = c->now_ns;
}

bool coord_reattaches(const struct coord *c)
{
    return c->phase == COORD_REATTACH;
}

static bool is_back(const struct coord *c, const struct coord_peer *p)
{
    return p->linked && p->view_acked >= c->restart_view && p->heartbeat.epoch == c->plan.epoch &&
           p->heartbeat.version == c->version;
}

static uint32_t missing(const struct coord *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->plan.n_peers; i++)
        n += coord_alive(c, i) && !is_back(c, c->plan_peers[i]);
    return n;
}

static void say(struct coord *c, uint32_t n_missing)
{
    char text[128];

    if (n_missing > 0 && c->now_ns - c->waiting_said_at < SAID_NS)
        return;
    c->waiting_said_at = c->now_ns;
    if (n_missing > 0)
        snprintf(text, sizeof text, "waiting for %u peers of before to come back", n_missing);
    else
        snprintf(text, sizeof text, "the peers of before are back: going on with step %" PRIu64, c->version + 1);
    coord_note(c, &(struct note){.kind = NOTE_WAITING, .text = text});
}

void coord_reattach(struct coord *c)
{
    uint32_t unit = 0, n_missing;

    if (c->phase != COORD_REATTACH)
        return;
    if (!coord_covered(c, &unit)) {
        coord_warn(c, "nobody is left who holds unit %u of the model", unit);
        coord_rollback(c);
        return;
    }
    n_missing = missing(c);
    say(c, n_missing);
    if (n_missing > 0)
        return;
    coord_start_steps(c);
    for (uint32_t i = 0; i < c->plan.n_peers && c->phase == COORD_RUN; i++)
        if (coord_alive(c, i) && c->plan_peers[i]->leaving)
            coord_let_go(c, c->plan_peers[i], "it asked to while the coordinator was away");
}

void coord_reattach_heard(struct coord *c, struct coord_peer *p)
{
    const struct msg_heartbeat *h = &p->heartbeat;

    if (c->phase != COORD_REATTACH || p->plan_peer == UINT32_MAX)
        return;
    if (h->epoch == c->plan.epoch && h->version + 1 == c->version && c->has_commit) {
        if (c->now_ns - p->told_at > COORD_RESEND_NS || p->told_at == 0)
            coord_tell_commit(c, p);
    } else if (h->epoch != c->plan.epoch || h->version != c->version) {
        char text[160];

        snprintf(text, sizeof text,
                 "it holds version %" PRIu64 " of plan %" PRIu64 ", the ledger knows %" PRIu64 " of plan %" PRIu64,
                 h->version, h->epoch, c->version, c->plan.epoch);
        coord_bye(c, p, MSG_BYE_FENCED, "this peer's state is not the run's; start it again to take part anew");
        coord_lost(c, p, NOTE_PEER_DEAD, text);
    }
    coord_reattach(c);
}
