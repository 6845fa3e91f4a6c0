/* See links.h. */
#include "peer/links.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"

#define BACKOFF_MIN_NS (100 * NS_PER_MS)
#define BACKOFF_MAX_NS (2 * NS_PER_S)

void links_init(struct links *l, struct wire *wire, const struct key *self, const struct key *coordinator)
{
    *l = (struct links){.wire = wire, .self = *self, .coordinator = *coordinator, .next_dial_id = LINKS_FIRST_DIAL_ID};
}

void links_done(struct links *l)
{
    mem_free(l->peers);
    *l = (struct links){0};
}

static struct links_peer *find(struct links *l, const struct key *key)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (key_equal(&l->peers[i].at.key, key))
            return &l->peers[i];
    return NULL;
}

static bool is_up(const struct links_peer *p)
{
    return p->dialled_up || p->accepted_up;
}

static void tell(struct links *l, struct msg *m)
{
    if (m)
        wire_send(l->wire, &l->coordinator, m);
    msg_free(m);
}

static void report(struct links *l, const struct links_peer *p, const char *why)
{
    struct msg *m = msg_new(MSG_LINK, l->term);

    if (m) {
        m->link.key = p->at.key;
        m->link.up = is_up(p);
        snprintf(m->link.text, sizeof m->link.text, "%s", why ? why : "");
    }
    tell(l, m);
}

void links_report_all(struct links *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (is_up(&l->peers[i]))
            report(l, &l->peers[i], NULL);
}

static void acknowledge(struct links *l)
{
    struct msg *m = msg_new(MSG_VIEW_ACK, l->term);

    if (m)
        m->view_ack.number = l->view;
    tell(l, m);
}

/* Those who left the view are hung up; what is known of the others stays. */
static int adopt(struct links *l, const struct msg_view *v)
{
    struct links_peer *peers = mem_calloc(v->n_peers ? v->n_peers : 1, sizeof *peers);
    struct net_key *curves = mem_calloc(v->n_peers ? v->n_peers : 1, sizeof *curves);
    struct key *ids = mem_calloc(v->n_peers + 1, sizeof *ids);
    uint32_t n = 0;

    if (!peers || !curves || !ids) {
        mem_free(peers);
        mem_free(curves);
        mem_free(ids);
        return -E_NOMEM;
    }
    for (uint32_t i = 0; i < v->n_peers; i++) {
        struct links_peer *old = find(l, &v->peers[i].key);

        if (key_equal(&v->peers[i].key, &l->self) || wire_learn(l->wire, &v->peers[i].key, &curves[n]) < 0)
            continue;
        if (old && old->at.incarnation == v->peers[i].incarnation) {
            peers[n] = *old;
            old->dial_id = 0;
        }
        ids[n] = v->peers[i].key;
        peers[n++].at = v->peers[i];
    }
    ids[n] = l->coordinator;
    wire_keep(l->wire, ids, n + 1);
    net_admit(l->wire->net, curves, n);
    for (uint32_t i = 0; i < l->n; i++)
        if (l->peers[i].dial_id)
            net_hangup(l->wire->net, l->peers[i].dial_id);
    mem_free(curves);
    mem_free(ids);
    mem_free(l->peers);
    l->peers = peers;
    l->n = n;
    l->view = v->number;
    return 0;
}

void links_on_view(struct links *l, const struct msg *m, int64_t now)
{
    (void)now;
    l->term = m->term;
    if (!msg_view_verify(&m->view, &l->coordinator)) {
        log_warn("links", "a view with a bad signature, ignoring");
        return;
    }
    if (m->view.number > l->view && adopt(l, &m->view) < 0) {
        log_warn("links", "out of memory over a view, ignoring");
        return;
    }
    acknowledge(l);
}

static void dial(struct links *l, struct links_peer *p, int64_t now)
{
    struct net_key curve;
    uint16_t port[NET_CHANNELS] = {[NET_CONTROL] = p->at.control_port, [NET_BULK] = p->at.bulk_port};

    p->retry_at = now + p->backoff_ns;
    if (p->at.n_addrs == 0 || wire_learn(l->wire, &p->at.key, &curve) < 0)
        return;
    const char *host = p->at.addrs[p->next_addr++ % p->at.n_addrs];

    p->dial_id = l->next_dial_id++;
    if (net_dial(l->wire->net, p->dial_id, &curve, host, port, 1u << NET_CONTROL | 1u << NET_BULK) < 0)
        p->dial_id = 0;
}

void links_on_dial(struct links *l, const struct msg *m, int64_t now)
{
    for (uint32_t i = 0; i < m->dial.n_keys; i++) {
        struct links_peer *p = find(l, &m->dial.keys[i]);

        if (!p)
            continue;
        if (is_up(p)) {
            report(l, p, NULL);
            continue;
        }
        p->wanted = true;
        p->backoff_ns = BACKOFF_MIN_NS;
        if (!p->dial_id)
            dial(l, p, now);
    }
}

bool links_on_event(struct links *l, const struct net_event *e, int64_t now)
{
    const struct key *who = wire_who(l->wire, &e->key);
    struct links_peer *p = who ? find(l, who) : NULL;

    if (!p)
        return false;
    switch (e->kind) {
    case NET_EVENT_UP:
        *(e->dial_id ? &p->dialled_up : &p->accepted_up) = true;
        p->backoff_ns = BACKOFF_MIN_NS;
        report(l, p, NULL);
        return true;
    case NET_EVENT_DOWN:
    case NET_EVENT_DIAL_FAILED:
        if (e->dial_id != 0 && e->dial_id != p->dial_id)
            return true; /* of an older dial */
        *(e->dial_id ? &p->dialled_up : &p->accepted_up) = false;
        if (e->dial_id)
            p->dial_id = 0;
        p->retry_at = now + p->backoff_ns;
        p->backoff_ns = 2 * p->backoff_ns < BACKOFF_MAX_NS ? 2 * p->backoff_ns : BACKOFF_MAX_NS;
        if (!is_up(p))
            report(l, p, e->why.text);
        return true;
    default:
        return false;
    }
}

void links_tick(struct links *l, int64_t now)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct links_peer *p = &l->peers[i];

        if (p->wanted && !is_up(p) && !p->dial_id && now >= p->retry_at)
            dial(l, p, now);
    }
}
