/* The other end of MSG_STATUS_GET. A throw-away key: the lobby asks for the invite's capability, not for who one is. */
#include "scheduler/status_client.h"

#include <string.h>

#include "crypto/key.h"
#include "parallel/proto.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/net/net.h"

struct client {
    const struct invite *invite;
    struct net *net;
    struct net_key server;
    uint32_t n_open; /* dials that have not failed */
    bool asked;
    char *json;
};

static int client_open(struct client *c, struct reason *why)
{
    struct key_pair key;
    int r = key_generate(&key);
    if (r < 0)
        return r;
    struct net_config config = {.host = "127.0.0.1"};
    memcpy(config.curve_pub, key.curve_pub, NET_KEY_BYTES);
    memcpy(config.curve_secret, key.curve_secret, NET_KEY_BYTES);
    key_pair_wipe(&key);
    r = key_to_curve(&c->invite->coordinator, c->server.bytes);
    if (r < 0)
        return reason_set(why, -E_INVAL, "the invite names a key that cannot be; ask for it again");
    r = net_open(&config, &c->net, why);
    memset(config.curve_secret, 0, sizeof(config.curve_secret));
    return r;
}

/* Dials every address at once, so that one that swallows packets delays nobody. */
static int client_dial(struct client *c, struct reason *why)
{
    int r = reason_set(why, -E_INVAL, "the invite has no address in it; ask for it again");
    for (uint32_t i = 0; i < c->invite->n_addrs; i++) {
        uint16_t port[NET_CHANNELS] = {[NET_LOBBY] = c->invite->addrs[i].port};
        int d = net_dial(c->net, i + 1, &c->server, c->invite->addrs[i].host, port, 1u << NET_LOBBY);
        if (d == 0)
            c->n_open++;
        else
            r = reason_set(why, d, "cannot dial %s: %s", c->invite->addrs[i].host, status_text(d));
    }
    return c->n_open > 0 ? 0 : r;
}

static int client_ask(struct client *c)
{
    if (c->asked)
        return 0;
    cleanup_(msg_freep) struct msg *m = msg_new(MSG_STATUS_GET, 0);
    if (m == NULL)
        return -E_NOMEM;
    memcpy(m->status_get.job_id, c->invite->job_id, sizeof(m->status_get.job_id));
    memcpy(m->status_get.capability, c->invite->capability, sizeof(m->status_get.capability));
    cleanup_(blob_unrefp) struct blob *head = NULL;
    int r = proto_encode(m, &head);
    if (r == 0)
        r = net_send(c->net, &c->server, NET_LOBBY, head, NULL);
    c->asked = r == 0;
    return r;
}

static int client_message(struct client *c, struct blob *head, struct blob *body, struct reason *why)
{
    cleanup_(msg_freep) struct msg *m = NULL;
    int r = proto_decode(head, body, &m, why);
    if (r == -E_UNSUPPORTED)
        return 0;
    if (r < 0)
        return reason_wrap(why, r, "the coordinator's answer");
    if (m->type == MSG_REFUSE)
        return reason_set(why, m->refuse.code == MSG_REFUSAL_VERSION ? -E_VERSION : -E_AUTH,
                          "the coordinator refused: %s", m->refuse.text);
    if (m->type != MSG_STATUS || m->body == NULL)
        return 0;
    c->json = mem_alloc(m->body->size + 1);
    if (c->json == NULL)
        return -E_NOMEM;
    memcpy(c->json, m->body->data, m->body->size);
    c->json[m->body->size] = '\0';
    return 0;
}

static int client_event(struct client *c, const struct net_event *e, struct reason *why)
{
    switch (e->kind) {
    case NET_EVENT_UP:
        return client_ask(c);
    case NET_EVENT_MESSAGE:
        return client_message(c, e->head, e->body, why);
    case NET_EVENT_DOWN:
        return reason_set(why, -E_UNREACHABLE, "the coordinator went away before it answered: %s", e->why.text);
    case NET_EVENT_DIAL_FAILED:
        if (--c->n_open > 0)
            return 0;
        if (e->failure == NET_FAILURE_WRONG_KEY)
            return reason_set(why, -E_AUTH, "%s: the invite is of another run; ask for a new one", e->why.text);
        return reason_set(why, -E_UNREACHABLE, "%s; is the coordinator running, and are its ports open?", e->why.text);
    case NET_EVENT_NONE:
    case NET_EVENT_WAKE:
        break;
    }
    return 0;
}

static int client_run(struct client *c, int timeout_ms, struct reason *why)
{
    int64_t end = clock_now_ns() + timeout_ms * NS_PER_MS;
    int r = 0;
    while (r == 0 && c->json == NULL) {
        int64_t left = end - clock_now_ns();
        if (left <= 0)
            return reason_set(why, -E_UNREACHABLE,
                              "no answer from the coordinator at %s:%u within %d s; is it running?",
                              c->invite->addrs[0].host, c->invite->addrs[0].port, timeout_ms / 1000);
        struct net_event e = {0};
        r = net_poll(c->net, (int)(left / NS_PER_MS) + 1, &e);
        if (r == 0)
            r = client_event(c, &e, why);
        blob_unref(e.head);
        blob_unref(e.body);
    }
    return r;
}

int status_client_get(const struct invite *invite, int timeout_ms, char **ret_json, struct reason *why)
{
    struct client c = {.invite = invite};
    int r = client_open(&c, why);
    if (r == 0)
        r = client_dial(&c, why);
    if (r == 0)
        r = client_run(&c, timeout_ms, why);
    net_free(c.net);
    if (r < 0) {
        mem_free(c.json);
        return r;
    }
    *ret_json = c.json;
    return 0;
}
