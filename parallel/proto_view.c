/* The view: a list of peers that the coordinator vouches for. It travels as the very bytes that were signed, so that a
 * receiver verifies what it read and nobody depends on two encoders agreeing.
 *
 * Invariant: number and peers of a decoded view say what signed_bytes say. */
#include "parallel/proto_type.h"

#include <string.h>

#include "runtime/base/mem.h"

/* Part of what is signed: a signature over a view is a signature over nothing else. */
#define SEAL "shoal-view-1"

/* Room for the rest of the head around the signed bytes. */
#define SIGNED_MAX (HEAD_BYTES_MAX - 1024)

struct seal {
    char text[sizeof(SEAL)];
};

static const struct proto_field seal_fields[] = {
    {WORD(struct seal, "seal", text)},
};

static const struct proto_field peer_fields[] = {
    {BYTES(struct msg_view_peer, "key", key)},
    {U64(struct msg_view_peer, "incarnation", incarnation)},
    {WORDS(struct msg_view_peer, "addrs", addrs, n_addrs, ADDRS_MAX)},
    {U16(struct msg_view_peer, "control", control_port)},
    {U16(struct msg_view_peer, "bulk", bulk_port)},
};

static const struct proto_field signed_fields[] = {
    {U64(struct msg_view, "number", number)},
    {RECORDS(struct msg_view, "peers", peers, n_peers, PEERS_MAX, peer_fields)},
};

static const struct proto_field view_fields[] = {
    {BINS(struct msg_view, "view", signed_bytes, signed_size, SIGNED_MAX)},
    {BYTES(struct msg_view, "sig", sig)},
};

static struct proto_part signed_part(struct msg_view *view)
{
    return (struct proto_part){.fields = signed_fields, .n = FIELD_COUNT(signed_fields), .base = view};
}

static struct proto_part seal_part(struct seal *seal)
{
    return (struct proto_part){.fields = seal_fields, .n = FIELD_COUNT(seal_fields), .base = seal};
}

static int open_view(struct msg *m, struct reason *why)
{
    const struct proto_part part = signed_part(&m->view);
    struct proto_map *map = NULL;
    struct seal seal = {{0}};
    const struct proto_part sealed = seal_part(&seal);
    int r = proto_map_open(m->view.signed_bytes, m->view.signed_size, &map, why);

    if (r == 0)
        r = proto_map_read(map, &sealed, why);
    if (r == 0 && strcmp(seal.text, SEAL) != 0)
        r = reason_set(why, -E_PROTO, "what was signed is no view");
    if (r == 0)
        r = proto_map_read(map, &part, why);
    proto_map_close(map);
    return r;
}

static void view_done(struct msg *m)
{
    const struct proto_part part = signed_part(&m->view);

    proto_fields_free(&part);
}

static int check_view(const struct msg *m, struct reason *why)
{
    const struct msg_view *v = &m->view;

    if (v->signed_size == 0 || v->n_peers > PEERS_MAX || (v->n_peers > 0 && v->peers == NULL))
        return reason_set(why, -E_PROTO, "an unsigned view, or one of more than %u peers", PEERS_MAX);
    for (uint32_t i = 0; i < v->n_peers; i++) {
        for (uint32_t a = 0; a < v->peers[i].n_addrs && a < ADDRS_MAX; a++) {
            if (v->peers[i].addrs[a][0] == '\0')
                return reason_set(why, -E_PROTO, "an address of peer %u is empty", i);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (memcmp(v->peers[i].key.bytes, v->peers[j].key.bytes, KEY_BYTES) == 0)
                return reason_set(why, -E_PROTO, "peers %u and %u have the same key", j, i);
        }
    }
    return 0;
}

PROTO_TYPE(view, .check = check_view, .open = open_view, .done = view_done);

int msg_view_sign(struct msg_view *view, const struct key_pair *coordinator)
{
    struct seal seal = {SEAL};
    const struct proto_part parts[] = {seal_part(&seal), signed_part(view)};
    cleanup_(blob_unrefp) struct blob *packed = NULL;
    cleanup_mem_ void *bytes = NULL;
    uint8_t sig[SIGNATURE_BYTES];
    int r = proto_pack(parts, 2, SIGNED_MAX, &packed);

    if (r < 0)
        return r;
    bytes = mem_dup(packed->data, packed->size);
    if (bytes == NULL)
        return -E_NOMEM;
    r = key_sign(coordinator, bytes, packed->size, sig);
    if (r < 0)
        return r;
    mem_free(view->signed_bytes);
    view->signed_bytes = TAKE_PTR(bytes);
    view->signed_size = (uint32_t)packed->size;
    memcpy(view->sig, sig, sizeof(sig));
    return 0;
}

bool msg_view_verify(const struct msg_view *view, const struct key *coordinator)
{
    return view->signed_size > 0 && key_verify(coordinator, view->signed_bytes, view->signed_size, view->sig);
}
