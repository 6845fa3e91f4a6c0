/* See wire.h. */
#include "parallel/wire.h"

#include <string.h>

#include "runtime/base/log.h"
#include "runtime/base/mem.h"

void wire_done(struct wire *w)
{
    mem_free(w->entries);
    *w = (struct wire){0};
}

static const struct wire_entry *find(const struct wire *w, const struct key *id)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (key_equal(&w->entries[i].id, id))
            return &w->entries[i];
    return NULL;
}

int wire_learn(struct wire *w, const struct key *id, struct net_key *ret_curve)
{
    const struct wire_entry *known = find(w, id);
    struct wire_entry e = {.id = *id};

    if (known) {
        if (ret_curve)
            *ret_curve = known->curve;
        return 0;
    }
    int status = key_to_curve(id, e.curve.bytes);

    if (status < 0)
        return status;
    if (w->n == w->cap) {
        uint32_t cap = w->cap ? 2 * w->cap : 16;
        struct wire_entry *p = mem_resize(w->entries, w->cap, cap, sizeof *p);

        if (!p)
            return -E_NOMEM;
        w->entries = p;
        w->cap = cap;
    }
    w->entries[w->n++] = e;
    if (ret_curve)
        *ret_curve = e.curve;
    return 0;
}

void wire_keep(struct wire *w, const struct key *ids, uint32_t n)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t k = 0; k < n; k++)
            if (key_equal(&w->entries[i].id, &ids[k])) {
                w->entries[kept++] = w->entries[i];
                break;
            }
    w->n = kept;
}

const struct key *wire_who(const struct wire *w, const struct net_key *curve)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (memcmp(w->entries[i].curve.bytes, curve->bytes, NET_KEY_BYTES) == 0)
            return &w->entries[i].id;
    return NULL;
}

enum net_channel wire_channel(enum msg_type type)
{
    switch (type) {
    case MSG_JOIN:
    case MSG_WELCOME:
    case MSG_REFUSE:
    case MSG_STATUS_GET:
    case MSG_STATUS:
        return NET_LOBBY;
    case MSG_BOUNDARY:
    case MSG_CHUNK:
    case MSG_STATE_CHUNK:
        return NET_BULK;
    default:
        return NET_CONTROL;
    }
}

int wire_send_curve(struct wire *w, const struct net_key *to, const struct msg *m)
{
    struct blob *head = NULL;
    int status = proto_encode(m, &head);

    if (status < 0) {
        log_warn("wire", "%s could not be encoded: %s", msg_name(m->type), status_text(status));
        return status;
    }
    status = net_send(w->net, to, wire_channel(m->type), head, m->body);
    blob_unref(head);
    return status;
}

int wire_send(struct wire *w, const struct key *to, const struct msg *m)
{
    const struct wire_entry *e = find(w, to);
    struct net_key curve;

    if (e)
        return wire_send_curve(w, &e->curve, m);
    if (wire_channel(m->type) != NET_LOBBY || key_to_curve(to, curve.bytes) < 0)
        return -E_NOENT;
    return wire_send_curve(w, &curve, m);
}

int wire_receive(struct wire *w, struct net_event *e, struct msg **ret, struct reason *why)
{
    int status = proto_decode(e->head, e->body, ret, why);

    e->head = blob_unref(e->head);
    e->body = blob_unref(e->body);
    if (status == 0 && wire_channel((*ret)->type) != e->channel) {
        status = reason_set(why, -E_PROTO, "%s on the wrong channel", msg_name((*ret)->type));
        *ret = msg_free(*ret);
    }
    if (status < 0) {
        w->refused++;
        log_debug("wire", "message refused: %s", reason_text(why, status));
    }
    return status;
}
