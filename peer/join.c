/* See join.h. */
#include "peer/join.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define GIVE_UP_NS (10 * NS_PER_S) /* nobody answers for this long: say so and end */
#define RETRY_NS   (500 * NS_PER_MS)
#define ASK_NS     (2 * NS_PER_S)

static void dial_all(struct join *j, int64_t now)
{
    j->failed = 0;
    j->retry_at = now + RETRY_NS;
    for (uint32_t i = 0; i < j->invite->n_addrs; i++) {
        uint16_t port[NET_CHANNELS] = {[NET_LOBBY] = j->invite->addrs[i].port};

        if (net_dial(j->wire->net, JOIN_FIRST_DIAL_ID + i, &j->lobby, j->invite->addrs[i].host, port, 1u << NET_LOBBY) <
            0)
            j->failed++;
    }
}

int join_start(struct join *j, struct wire *wire, const struct invite *invite, const struct msg_join *hello,
               int64_t now, struct reason *why)
{
    *j = (struct join){.wire = wire, .invite = invite, .hello = *hello, .began_at = now};
    memcpy(j->hello.job_id, invite->job_id, sizeof j->hello.job_id);
    memcpy(j->hello.capability, invite->capability, sizeof j->hello.capability);
    int status = wire_learn(wire, &invite->coordinator, &j->lobby);

    if (status < 0)
        return reason_set(why, status,
                          "the invite names a coordinator's key that cannot be one; ask for a fresh invite");
    dial_all(j, now);
    return 0;
}

void join_done(struct join *j)
{
    for (uint32_t i = 0; j->wire && i < j->invite->n_addrs; i++)
        net_hangup(j->wire->net, JOIN_FIRST_DIAL_ID + i);
    msg_free(j->welcome);
    *j = (struct join){0};
}

static void ask(struct join *j, int64_t now)
{
    struct msg *m = msg_new(MSG_JOIN, 0);

    j->asked_at = now;
    if (!m)
        return;
    m->join = j->hello;
    wire_send_curve(j->wire, &j->lobby, m);
    msg_free(m);
}

/* Remembers the failure that tells most: another key or program at the address beats silence. */
static void note_failure(struct join *j, const struct net_event *e)
{
    bool definite = e->failure == NET_FAILURE_WRONG_KEY || e->failure == NET_FAILURE_NOT_SHOAL ||
                    e->failure == NET_FAILURE_NOT_ADMITTED;

    j->failed++;
    if (j->failure && !definite)
        return;
    if (e->failure == NET_FAILURE_WRONG_KEY)
        j->failure =
            reason_set(&j->why, -E_AUTH,
                       "the coordinator's key is not the one in the invite: %s; ask for a fresh invite", e->why.text);
    else if (e->failure == NET_FAILURE_NOT_SHOAL)
        j->failure = reason_set(&j->why, -E_UNREACHABLE, "%s; ask whether the invite is still current", e->why.text);
    else
        j->failure = reason_set(&j->why, -E_UNREACHABLE, "%s", e->why.text);
}

static int refused(const struct msg_refuse *r, struct reason *why)
{
    int status = r->code == MSG_REFUSAL_VERSION ? -E_VERSION : r->code == MSG_REFUSAL_OVER ? -E_CLOSED : -E_AUTH;

    return reason_set(why, status, "the coordinator refused: %s", r->text);
}

static int on_message(struct join *j, struct net_event *e, struct reason *why)
{
    struct msg *m = NULL;
    int status = wire_receive(j->wire, e, &m, why);

    if (status == -E_VERSION)
        return reason_wrap(why, status, "the coordinator speaks another version");
    if (status < 0)
        return 0;
    if (m->type == MSG_WELCOME && m->body && !j->welcome) {
        j->welcome = m;
        return 1;
    }
    status = m->type == MSG_REFUSE ? refused(&m->refuse, why) : 0;
    msg_free(m);
    return status;
}

int join_event(struct join *j, struct net_event *e, int64_t now, struct reason *why)
{
    switch (e->kind) {
    case NET_EVENT_MESSAGE:
        return on_message(j, e, why);
    case NET_EVENT_UP:
        if (j->up == 0) {
            j->up = 1 + e->dial_id - JOIN_FIRST_DIAL_ID;
            for (uint32_t i = 0; i < j->invite->n_addrs; i++)
                if (i + 1 != j->up)
                    net_hangup(j->wire->net, JOIN_FIRST_DIAL_ID + i);
            ask(j, now);
        }
        return 0;
    case NET_EVENT_DOWN:
        j->up = 0;
        j->failed = j->invite->n_addrs;
        return 0;
    case NET_EVENT_DIAL_FAILED:
        note_failure(j, e);
        return 0;
    default:
        return 0;
    }
}

int join_tick(struct join *j, int64_t now, struct reason *why)
{
    if (j->up) {
        if (now - j->asked_at > ASK_NS)
            ask(j, now);
        if (now - j->began_at > 2 * GIVE_UP_NS)
            return reason_set(why, -E_TIMEOUT,
                              "the coordinator's address answers, but the coordinator does not; try again later");
        return 0;
    }
    if (j->failed < j->invite->n_addrs)
        return 0;
    if (j->failure == -E_AUTH || now - j->began_at > GIVE_UP_NS) {
        if (!j->failure)
            return reason_set(why, -E_UNREACHABLE, "the coordinator's lobby closed the link again and again");
        *why = j->why;
        return j->failure == -E_AUTH ? j->failure
                                     : reason_set(why, j->failure,
                                                  "%s (tried for %d s at %u addresses): is the coordinator running, "
                                                  "and can this machine reach it?",
                                                  j->why.text, (int)(GIVE_UP_NS / NS_PER_S), j->invite->n_addrs);
    }
    if (now >= j->retry_at)
        dial_all(j, now);
    return 0;
}
