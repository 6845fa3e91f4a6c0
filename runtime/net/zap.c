/* Who may shake hands: the ZAP handler (ZeroMQ RFC 27). It is answered from the net's own thread, so the admitted set
 * needs no lock. The domain names the socket: the lobby takes any key that CURVE has proved, as long as it has room;
 * control and bulk take admitted keys only. The User-Id of a connection becomes its key in hex; nothing else says who
 * sent a message. ZAP is asked once per connection: net_admit deals with links that are up.
 *
 * We also give each connection its routing id, as the property "Identity" of the answer. Left to itself libzmq takes
 * the id that the client names or else counts up from a random number, and aborts when the two meet (add_out_pipe in
 * 4.3.4 asserts): a stranger that claims many ids and connects often could kill us. Our id only replaces the client's
 * if zmq's thread has first looked for the answer in vain and parsed the client's properties; so no question is
 * answered before a couple of milliseconds have passed. */
#include "runtime/net/net_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

/* Of the question, on a ROUTER: its own routing id, delimiter, version, request id, domain, address, identity,
 * mechanism, credentials. */
enum {
    FRAME_ROUTE,
    FRAME_DELIMITER,
    FRAME_VERSION,
    FRAME_REQUEST,
    FRAME_DOMAIN,
    FRAME_ADDRESS,
    FRAME_IDENTITY,
    FRAME_MECHANISM,
    FRAME_CREDENTIALS,
    FRAMES
};
#define ANSWER_AFTER_NS     (2 * NS_PER_MS)
#define IDENTITY_PROPERTY   "\x08Identity\0\0\0\x10"
#define IDENTITY_NAME_BYTES (sizeof IDENTITY_PROPERTY - 1)

struct question {
    struct net_node node; /* in net.zap_questions, oldest first */
    int64_t due_ns;
    zmq_msg_t frame[FRAMES];
};

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

/* The ZAP status for a question: 200, 500 (no room), 400 (no). 300 would say "come back later", but zmq tells the
 * client nothing then. */
static const char *judge(const struct net *n, zmq_msg_t *frame, struct net_key *ret_key)
{
    if (!frame_is(&frame[FRAME_VERSION], "1.0") || !frame_is(&frame[FRAME_MECHANISM], "CURVE") ||
        zmq_msg_size(&frame[FRAME_CREDENTIALS]) != NET_KEY_BYTES)
        return "400";
    memcpy(ret_key->bytes, zmq_msg_data(&frame[FRAME_CREDENTIALS]), NET_KEY_BYTES);
    if (frame_is(&frame[FRAME_DOMAIN], "lobby"))
        return n->bound[NET_LOBBY]->n_open < 2 * n->guests_max ? "200" : "500"; /* flow.c makes room */
    return net_admitted(n, ret_key) ? "200" : "400";
}

static void question_free(struct question *q)
{
    net_node_remove(&q->node);
    for (int i = 0; i < FRAMES; i++)
        zmq_msg_close(&q->frame[i]);
    mem_free(q);
}

/* ROUTER drops the answer by itself if the connection is gone. */
static void answer(struct net *n, struct question *q)
{
    struct net_key key;
    const char *status = judge(n, q->frame, &key);
    char user[2 * NET_KEY_BYTES + 1] = "";
    uint8_t identity[IDENTITY_NAME_BYTES + NET_RID_BYTES] = IDENTITY_PROPERTY;
    size_t identity_bytes = 0;
    if (strcmp(status, "200") == 0 && getrandom(identity + IDENTITY_NAME_BYTES, NET_RID_BYTES, 0) == NET_RID_BYTES) {
        identity[IDENTITY_NAME_BYTES] |= 1; /* ids that begin with 0 are libzmq's */
        identity_bytes = sizeof identity;
        hex_of(key.bytes, NET_KEY_BYTES, user);
    }
    zmq_msg_send(&q->frame[FRAME_ROUTE], n->zap, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_msg_send(&q->frame[FRAME_REQUEST], n->zap, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, user[0] ? status : status[0] == '2' ? "500" : status, 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, user, strlen(user), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(n->zap, identity, identity_bytes, ZMQ_DONTWAIT);
}

/* The next question: 1, 0 when there is none, -E_PROTO for one that is not like RFC 27 says, -E_NOMEM. */
static int question_next(struct net *n, struct question **ret)
{
    struct question *q = mem_calloc(1, sizeof *q);
    if (!q)
        return -E_NOMEM;
    net_node_init(&q->node);
    for (int i = 0; i < FRAMES; i++)
        zmq_msg_init(&q->frame[i]);
    int n_frames = 0;
    for (bool more = true; more; n_frames++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, n->zap, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            question_free(q);
            return 0;
        }
        more = zmq_msg_more(&frame);
        if (n_frames < FRAMES)
            zmq_msg_move(&q->frame[n_frames], &frame);
        zmq_msg_close(&frame);
    }
    if (n_frames != FRAMES) {
        question_free(q);
        return -E_PROTO;
    }
    *ret = q;
    return 1;
}

void net_zap_serve(struct net *n)
{
    struct question *q;
    for (int rc; (rc = question_next(n, &q)) != 0;) {
        if (rc == -E_NOMEM) {
            n->broken = rc;
            return;
        }
        if (rc != 1)
            continue; /* only this process can ask here: the handshake just times out */
        q->due_ns = clock_now_ns() + ANSWER_AFTER_NS;
        net_node_append(&n->zap_questions, &q->node);
    }
}

void net_zap_answer_due(struct net *n, int64_t now_ns)
{
    bool answered = false;
    NET_EACH(it, &n->zap_questions)
    {
        struct question *q = NET_OF(it, struct question, node);
        if (q->due_ns > now_ns)
            break;
        answer(n, q);
        question_free(q);
        answered = true;
    }
    if (answered)
        net_zap_serve(n); /* sending may have taken in, unsignalled, what asks next */
}

int64_t net_zap_next_ns(const struct net *n)
{
    if (net_node_empty(&n->zap_questions))
        return INT64_MAX;
    return NET_OF(n->zap_questions.next, struct question, node)->due_ns;
}

int net_zap_open(struct net *n, struct reason *why)
{
    n->zap = zmq_socket(n->ctx, ZMQ_ROUTER);
    int linger = 0, fd = -1, unlimited = 0;
    size_t len = sizeof fd;
    if (!n->zap || zmq_setsockopt(n->zap, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_setsockopt(n->zap, ZMQ_SNDHWM, &unlimited, sizeof unlimited) != 0 ||
        zmq_bind(n->zap, "inproc://zeromq.zap.01") != 0 || zmq_getsockopt(n->zap, ZMQ_FD, &fd, &len) != 0)
        return reason_set(why, -E_IO, "cannot start the handshake's gatekeeper: %s", zmq_strerror(errno));
    return net_source_add(n, &n->zap_source, NET_SOURCE_ZAP, fd, EPOLLIN, n);
}

void net_zap_close(struct net *n)
{
    while (!net_node_empty(&n->zap_questions))
        question_free(NET_OF(n->zap_questions.next, struct question, node));
    if (n->zap)
        zmq_close(n->zap);
    n->zap = NULL;
}
