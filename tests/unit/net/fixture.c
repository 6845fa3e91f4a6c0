/* See fixture.h. */
#include "tests/unit/net/fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "tests/unit/tsan.h"

void party_keys(struct party *p)
{
    char pub[41], secret[41];
    *p = (struct party){0};
    assert_int_equal(zmq_curve_keypair(pub, secret), 0);
    assert_non_null(zmq_z85_decode(p->key.bytes, pub));
    assert_non_null(zmq_z85_decode(p->secret, secret));
}

void party_open(struct party *p, struct party_options options)
{
    struct net_config config = {.host = "127.0.0.1"};
    struct reason why = {0};
    memcpy(config.curve_pub, p->key.bytes, NET_KEY_BYTES);
    memcpy(config.curve_secret, p->secret, NET_KEY_BYTES);
    for (int c = 0; c < NET_CHANNELS; c++)
        config.listen[c] = options.listen & (1u << c);
    if (options.emulate)
        assert_int_equal(net_emulate_parse(options.emulate, &config, &why), 0);
    if (net_open(&config, &p->net, &why) != 0)
        fail_msg("%s", why.text);
}

void party_close(struct party *p)
{
    for (size_t i = 0; i < p->n_log; i++)
        event_drop(&p->log[i]);
    p->log = mem_free(p->log);
    p->n_log = p->cap_log = 0;
    p->net = net_free(p->net);
}

void event_drop(struct net_event *e)
{
    e->head = blob_unref(e->head);
    e->body = blob_unref(e->body);
}

static void poll_once(struct party *p, int timeout_ms)
{
    struct net_event e;
    for (int i = 0; i < 64; i++) {
        assert_int_equal(net_poll(p->net, i == 0 ? timeout_ms : 0, &e), 0);
        if (e.kind == NET_EVENT_NONE)
            return;
        if (p->n_log == p->cap_log) {
            size_t cap = p->cap_log ? p->cap_log * 2 : 64;
            p->log = mem_resize(p->log, p->cap_log, cap, sizeof *p->log);
            assert_non_null(p->log);
            p->cap_log = cap;
        }
        p->log[p->n_log++] = e;
    }
}

void pump(struct party **parties, size_t n)
{
    for (size_t i = 0; i < n; i++)
        poll_once(parties[i], n == 1 ? 10 : 1);
}

static bool take(struct party *p, enum net_event_kind kind, int channel, struct net_event *ret)
{
    for (size_t i = 0; i < p->n_log; i++) {
        if (p->log[i].kind != kind || (channel >= 0 && (int)p->log[i].channel != channel))
            continue;
        *ret = p->log[i];
        memmove(&p->log[i], &p->log[i + 1], (p->n_log - i - 1) * sizeof *p->log);
        p->n_log--;
        return true;
    }
    return false;
}

static struct net_event wait_for(struct party **parties, size_t n, enum net_event_kind kind, int channel)
{
    struct net_event e = {0};
    int64_t until_ns = clock_now_ns() + PATIENCE_NS;
    while (!take(parties[0], kind, channel, &e)) {
        if (clock_now_ns() > until_ns) {
            for (size_t i = 0; i < parties[0]->n_log; i++)
                print_error("instead: kind %d: %s\n", (int)parties[0]->log[i].kind, parties[0]->log[i].why.text);
            fail_msg("no event of kind %d came", (int)kind);
        }
        pump(parties, n);
    }
    return e;
}

struct net_event expect(struct party **parties, size_t n, enum net_event_kind kind)
{
    return wait_for(parties, n, kind, -1);
}

struct net_event expect_message(struct party **parties, size_t n, enum net_channel channel)
{
    return wait_for(parties, n, NET_EVENT_MESSAGE, (int)channel);
}

size_t logged(const struct party *p, enum net_event_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < p->n_log; i++)
        count += p->log[i].kind == kind;
    return count;
}

void dial(struct party *from, struct party *to, uint32_t dial_id, uint32_t channels)
{
    uint16_t port[NET_CHANNELS];
    for (int c = 0; c < NET_CHANNELS; c++)
        port[c] = net_port(to->net, (enum net_channel)c);
    assert_int_equal(net_admit(to->net, &from->key, 1), 0);
    assert_int_equal(net_dial(from->net, dial_id, &to->key, "127.0.0.1", port, channels), 0);
}

void dial_port(struct party *from, const struct net_key *key, uint32_t dial_id, uint16_t port, uint32_t channels)
{
    uint16_t ports[NET_CHANNELS] = {port, port, port};
    assert_int_equal(net_dial(from->net, dial_id, key, "127.0.0.1", ports, channels), 0);
}

void connect_parties(struct party *from, struct party *to, uint32_t dial_id, uint32_t channels)
{
    dial(from, to, dial_id, channels);
    struct net_event e = expect((struct party *[]){from, to}, 2, NET_EVENT_UP);
    assert_int_equal(e.dial_id, dial_id);
    assert_memory_equal(&e.key, &to->key, sizeof e.key);
    e = expect((struct party *[]){to, from}, 2, NET_EVENT_UP);
    assert_int_equal(e.dial_id, 0);
    assert_memory_equal(&e.key, &from->key, sizeof e.key);
}

struct blob *text_blob(const char *text)
{
    struct blob *b;
    assert_int_equal(blob_new(strlen(text), &b), 0);
    memcpy(b->data, text, strlen(text));
    return b;
}

static uint8_t pattern_at(size_t i, uint32_t seed)
{
    uint32_t x = (uint32_t)(i >> 2) * 2654435761u + seed;
    return (uint8_t)((x ^ x >> 15) >> (8 * (i & 3)));
}

struct blob *pattern_blob(size_t size, uint32_t seed)
{
    struct blob *b;
    assert_int_equal(blob_new(size, &b), 0);
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)b->data)[i] = pattern_at(i, seed);
    return b;
}

void assert_pattern(const struct blob *b, size_t size, uint32_t seed)
{
    assert_non_null(b);
    assert_int_equal(b->size, size);
    for (size_t i = 0; i < size; i++)
        if (((const uint8_t *)b->data)[i] != pattern_at(i, seed))
            fail_msg("byte %zu of %zu differs", i, size);
}

void assert_text(const struct blob *b, const char *text)
{
    assert_non_null(b);
    assert_int_equal(b->size, strlen(text));
    assert_memory_equal(b->data, text, b->size);
}

int say(struct party *from, const struct party *to, enum net_channel channel, const char *head, struct blob *body)
{
    struct blob *b = text_blob(head);
    int rc = net_send(from->net, &to->key, channel, b, body);
    blob_unref(b);
    blob_unref(body);
    return rc;
}

static int loopback(bool listening, uint16_t port, uint16_t *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t len = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (!listening) {
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        return fd;
    }
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

int tcp_listen(uint16_t *ret_port)
{
    return loopback(true, 0, ret_port);
}

int tcp_connect(uint16_t port)
{
    return loopback(false, port, NULL);
}
