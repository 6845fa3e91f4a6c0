/* Who may shake hands: the ZAP handler (ZeroMQ RFC 27). It is answered from the net's own thread, so the admitted set
 * needs no lock. The domain names the socket: the lobby takes any key that CURVE has proved, as long as it has room;
 * control and bulk take admitted keys only. The User-Id of a connection becomes its key in hex; nothing else says who
 * sent a message.
 *
 * ZAP is asked once per connection: net_admit deals with links that are up. */
#include "runtime/net/net_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* version, request id, domain, address, identity, mechanism, credentials */
#define ZAP_FRAMES     7
#define ZAP_FRAMES_MAX (ZAP_FRAMES + 1)

static int compare_keys(const void *a, const void *b)
{
    return memcmp(a, b, NET_KEY_BYTES);
}

bool net_admitted(const struct net *n, const struct net_key *key)
{
    return n->n_admitted > 0 && bsearch(key, n->admitted, n->n_admitted, sizeof *key, compare_keys);
}

int net_admit(struct net *n, const struct net_key *keys, size_t n_keys)
{
    struct net_key *copy = NULL;
    if (n_keys > 0) {
        size_t bytes;
        if (!size_mul(n_keys, sizeof *keys, &bytes) || !(copy = mem_dup(keys, bytes)))
            return -E_NOMEM;
        qsort(copy, n_keys, sizeof *copy, compare_keys);
    }
    mem_free(n->admitted);
    n->admitted = copy;
    n->n_admitted = n_keys;
    NET_EACH(it, &n->links)
    {
        struct net_link *l = NET_OF(it, struct net_link, all);
        if (l->dial_id != 0 || l->channels == 1u << NET_LOBBY || net_admitted(n, &l->key))
            continue;
        net_hello_bye(l, NET_BYE_NOT_ADMITTED);
        net_link_cut(l, "its key is no longer admitted");
    }
    return 0;
}

static void hex_of(const uint8_t *bytes, size_t n, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        ret[2 * i] = digits[bytes[i] >> 4];
        ret[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret[2 * n] = '\0';
}

int net_key_from_hex(const char *hex, struct net_key *ret)
{
    struct net_key key;
    if (strlen(hex) != 2 * NET_KEY_BYTES || strspn(hex, "0123456789abcdef") != 2 * NET_KEY_BYTES)
        return -E_PROTO;
    for (size_t i = 0; i < NET_KEY_BYTES; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1]};
        key.bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    *ret = key;
    return 0;
}

static bool frame_is(zmq_msg_t *frame, const char *text)
{
    return zmq_msg_size(frame) == strlen(text) && memcmp(zmq_msg_data(frame), text, strlen(text)) == 0;
}

/* The ZAP status for a request: 200, 300 (come back later), 400 (no). */
static const char *judge(const struct net *n, zmq_msg_t *frames, size_t n_frames, struct net_key *ret_key)
{
    if (n_frames != ZAP_FRAMES || !frame_is(&frames[0], "1.0") || !frame_is(&frames[5], "CURVE") ||
        zmq_msg_size(&frames[6]) != NET_KEY_BYTES)
        return "400";
    memcpy(ret_key->bytes, zmq_msg_data(&frames[6]), NET_KEY_BYTES);
    if (frame_is(&frames[2], "lobby"))
        return n->n_lobby_links < NET_LOBBY_LINKS_MAX ? "200" : "300";
    return net_admitted(n, ret_key) ? "200" : "400";
}

static void answer(struct net *n, zmq_msg_t *request_id, const char *status, const struct net_key *key)
{
    char user[2 * NET_KEY_BYTES + 1] = "";
    if (strcmp(status, "200") == 0)
        hex_of(key->bytes, NET_KEY_BYTES, user);
    zmq_send(n->zap, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, zmq_msg_data(request_id), zmq_msg_size(request_id), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, status, 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, user, strlen(user), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, "", 0, ZMQ_DONTWAIT);
}

/* Answers every question that waits. REP: a reply to a connection that is gone is dropped by zmq. */
void net_zap_serve(struct net *n)
{
    for (;;) {
        zmq_msg_t frames[ZAP_FRAMES_MAX], frame;
        size_t n_frames = 0;
        bool more = true;
        while (more) {
            zmq_msg_init(&frame);
            if (zmq_msg_recv(&frame, n->zap, ZMQ_DONTWAIT) < 0) {
                zmq_msg_close(&frame);
                break;
            }
            more = zmq_msg_more(&frame);
            if (n_frames < ZAP_FRAMES_MAX) { /* one more than is right is enough to see that it is wrong */
                zmq_msg_init(&frames[n_frames]);
                zmq_msg_move(&frames[n_frames++], &frame);
            }
            zmq_msg_close(&frame);
        }
        if (n_frames == 0)
            return;
        struct net_key key = {{0}};
        const char *status = more ? "400" : judge(n, frames, n_frames, &key);
        if (n_frames >= 2)
            answer(n, &frames[1], status, &key);
        for (size_t i = 0; i < n_frames; i++)
            zmq_msg_close(&frames[i]);
    }
}

int net_zap_open(struct net *n, struct reason *why)
{
    n->zap = zmq_socket(n->ctx, ZMQ_REP);
    int linger = 0, fd = -1;
    size_t len = sizeof fd;
    if (!n->zap || zmq_setsockopt(n->zap, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(n->zap, "inproc://zeromq.zap.01") != 0 || zmq_getsockopt(n->zap, ZMQ_FD, &fd, &len) != 0)
        return reason_set(why, -E_IO, "cannot start the handshake's gatekeeper: %s", zmq_strerror(errno));
    return net_source_add(n, &n->zap_source, NET_SOURCE_ZAP, fd, EPOLLIN, n);
}
