/* What connections may cost: messages without end, answers never read, guests that say nothing, floods that come to
 * nothing. Others' links go on working. */
#include "tests/unit/net/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/base/clock.h"
#include "runtime/net/net_internal.h"

static struct party a, b, guest; /* guest has only a key and b's admission */
static void *ctx;
static void *sockets[32]; /* of the test, closed by teardown */
static size_t n_sockets;

static void admit_both(void)
{
    assert_int_equal(net_admit(b.net, (struct net_key[]){a.key, guest.key}, 2), 0);
}

static int setup(void **state)
{
    (void)state;
    party_keys(&a);
    party_keys(&b);
    party_keys(&guest);
    party_open(&a, (struct party_options){0});
    party_open(&b, (struct party_options){.listen = CONTROL_BULK | LOBBY});
    admit_both();
    ctx = zmq_ctx_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    while (n_sockets)
        zmq_close(sockets[--n_sockets]);
    zmq_ctx_term(ctx);
    party_close(&a);
    party_close(&b);
    return 0;
}

static void pump_both(void)
{
    pump((struct party *[]){&b, &a}, 2);
}

static struct net_counters counters(const struct party *p)
{
    struct net_counters c;
    net_counters(p->net, &c);
    return c;
}

static void set_int(void *zmq, int option, int value)
{
    assert_int_equal(zmq_setsockopt(zmq, option, &value, sizeof value), 0);
}

static void *raw_socket(int type, const struct party *as)
{
    void *d = sockets[n_sockets++] = zmq_socket(ctx, type);
    assert_true(d && n_sockets < sizeof sockets / sizeof *sockets);
    assert_int_equal(zmq_setsockopt(d, ZMQ_CURVE_PUBLICKEY, as->key.bytes, NET_KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(d, ZMQ_CURVE_SECRETKEY, as->secret, NET_KEY_BYTES), 0);
    set_int(d, ZMQ_LINGER, 0);
    return d;
}

/* Shakes hands with b's socket and, if asked to, says HELLO; never comes back once cut. */
static void *dealer_at(uint16_t port, enum net_channel channel, bool hello)
{
    char endpoint[64];
    void *d = raw_socket(ZMQ_DEALER, &guest);
    assert_int_equal(zmq_setsockopt(d, ZMQ_CURVE_SERVERKEY, b.key.bytes, NET_KEY_BYTES), 0);
    set_int(d, ZMQ_RECONNECT_IVL, -1);
    set_int(d, ZMQ_RCVHWM, 1);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", (unsigned)port);
    assert_int_equal(zmq_connect(d, endpoint), 0);
    static uint8_t nonce;
    uint8_t payload[12] = {1, 1, (uint8_t)channel, (uint8_t)(1u << channel), [11] = ++nonce};
    if (hello)
        assert_true(zmq_send(d, "", 0, ZMQ_SNDMORE) == 0 && zmq_send(d, payload, sizeof payload, 0) > 0);
    return d;
}

static void *dealer(enum net_channel channel, bool hello)
{
    return dealer_at(net_port(b.net, channel), channel, hello);
}

static struct net_event expect_b(enum net_event_kind kind)
{
    return expect((struct party *[]){&b, &a}, 2, kind);
}

/* A proxy that lets so many bytes of the sending side pass and then no more: libzmq sends a message only when it has
 * all of it, so this is how its receiver comes to wait for the rest. */
#define HANDSHAKE_BYTES 8192 /* and HELLO or ACK, amply */
struct tunnel {
    int listener, from, to; /* -1: not there */
    uint16_t port, to_port;
    size_t left; /* of what from sends */
};

static struct tunnel tunnel_to(uint16_t port)
{
    struct tunnel t = {.from = -1, .to = -1, .to_port = port, .left = HANDSHAKE_BYTES};
    t.listener = tcp_listen(&t.port);
    assert_int_equal(fcntl(t.listener, F_SETFL, O_NONBLOCK), 0);
    return t;
}

static size_t forward(int from, int to, size_t limit)
{
    static uint8_t bytes[1u << 20];
    ssize_t n = recv(from, bytes, limit < sizeof bytes ? limit : sizeof bytes, MSG_DONTWAIT);
    if (n <= 0)
        return 0;
    ssize_t rc = send(to, bytes, (size_t)n, MSG_NOSIGNAL); /* may fail: it was cut */
    (void)rc;
    return (size_t)n;
}

/* backwards: it is the side that was dialled whose bytes are limited. */
static void tunnel_step(struct tunnel *t, bool backwards)
{
    if (t->from < 0 && (t->from = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        t->to = tcp_connect(t->to_port);
    if (t->from >= 0) {
        int from = backwards ? t->to : t->from, to = backwards ? t->from : t->to;
        if (t->left > 0)
            t->left -= forward(from, to, t->left);
        forward(to, from, SIZE_MAX);
    }
    pump_both();
}

/* Lets more bytes pass, once at's looks have passed that saw the messages so far. */
static void tunnel_widen(struct tunnel *t, bool backwards, const struct party *at, size_t bytes)
{
    int64_t then_ns = at->net->look_ns + NET_LOOK_MS * NS_PER_MS;
    while (at->net->look_ns <= then_ns)
        tunnel_step(t, backwards);
    t->left = bytes;
}

static void tunnel_close(struct tunnel *t)
{
    close(t->listener);
    close(t->from);
    close(t->to);
}

/* One message of many parts. */
static void send_parts(void *to, size_t part, size_t total)
{
    struct blob *bytes = pattern_blob(part, 1);
    for (size_t sent = 0; sent < total; sent += part)
        assert_int_equal(zmq_send(to, bytes->data, part, sent + part < total ? ZMQ_SNDMORE : 0), part);
    blob_unref(bytes);
}

#define PEERS_LIMIT (HEAD_BYTES_MAX + BODY_BYTES_MAX + (16u << 20))

static bool b_has_cut(void)
{
    return counters(&b).cut_connections > 0;
}

/* A guest's message on channel, of which limit bytes arrive, is cut short. */
static void message_is_cut(enum net_channel channel, bool hello, size_t part, size_t limit)
{
    struct tunnel t = tunnel_to(net_port(b.net, channel));
    void *d = dealer_at(t.port, channel, hello);
    send_parts(d, part, HANDSHAKE_BYTES + limit);
    while (hello && !logged(&b, NET_EVENT_UP))
        tunnel_step(&t, false);
    tunnel_widen(&t, false, &b, limit);
    for (int64_t until_ns = clock_now_ns() + PATIENCE_NS; !b_has_cut() && clock_now_ns() < until_ns;)
        tunnel_step(&t, false);
    assert_true(b_has_cut());
    if (hello) {
        struct net_event e = expect_b(NET_EVENT_DOWN);
        assert_memory_equal(&e.key, &guest.key, sizeof e.key);
        assert_string_equal(e.why.text, "it sent more than a message may hold");
        b.n_log = 0; /* its UP */
    }
    tunnel_close(&t);
}

static void a_message_without_end_is_cut_in_the_lobby(void **state)
{
    (void)state;
    message_is_cut(NET_LOBBY, true, 1000, 256u << 10);
    connect_parties(&a, &b, 1, LOBBY);
}

static void a_message_without_end_is_cut_before_hello(void **state)
{
    (void)state;
    message_is_cut(NET_BULK, false, 32u << 10, 256u << 10);
    connect_parties(&a, &b, 1, CONTROL_BULK);
}

static void a_message_without_end_is_cut_on_a_peers_link(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    admit_both();
    message_is_cut(NET_CONTROL, true, 1u << 20, PEERS_LIMIT);
    assert_int_equal(say(&a, &b, NET_CONTROL, "still here", NULL), 0);
    struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    event_drop(&e);
}

/* The same from the side that was dialled. */
static void a_message_without_end_is_cut_on_a_dial(void **state)
{
    (void)state;
    char endpoint[64], rid[256];
    uint8_t ack[12] = {1, 2};
    size_t len = sizeof endpoint;
    void *router = raw_socket(ZMQ_ROUTER, &guest);
    set_int(router, ZMQ_CURVE_SERVER, 1);
    assert_int_equal(zmq_bind(router, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
    struct tunnel t = tunnel_to((uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10));
    dial_port(&a, &guest.key, 1, t.port, 1u << NET_CONTROL);
    int n;
    while ((n = zmq_recv(router, rid, sizeof rid, ZMQ_DONTWAIT)) < 0)
        tunnel_step(&t, true);
    assert_true(zmq_send(router, rid, (size_t)n, ZMQ_SNDMORE) >= 0 && zmq_send(router, "", 0, ZMQ_SNDMORE) == 0 &&
                zmq_send(router, ack, sizeof ack, 0) > 0);
    assert_true(zmq_send(router, rid, (size_t)n, ZMQ_SNDMORE) >= 0);
    send_parts(router, 1u << 20, HANDSHAKE_BYTES + PEERS_LIMIT);
    while (!logged(&a, NET_EVENT_UP))
        tunnel_step(&t, true);
    tunnel_widen(&t, true, &a, PEERS_LIMIT);
    for (int64_t until_ns = clock_now_ns() + PATIENCE_NS; !logged(&a, NET_EVENT_DOWN) && clock_now_ns() < until_ns;)
        tunnel_step(&t, true);
    struct net_event e = expect((struct party *[]){&a, &b}, 2, NET_EVENT_DOWN);
    assert_string_equal(e.why.text, "it sent more than a message may hold");
    assert_int_equal(counters(&a).cut_connections, 1);
    tunnel_close(&t);
}

/* The largest message there is may take its time, in one piece or after others. */
static void the_largest_message_passes(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    for (int i = 0; i < 3; i++) {
        struct blob *head = pattern_blob(HEAD_BYTES_MAX, 5), *body = pattern_blob(BODY_BYTES_MAX, 6);
        assert_int_equal(net_send(a.net, &b.key, NET_BULK, head, body), 0);
        blob_unref(head);
        blob_unref(body);
        struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_BULK);
        assert_int_equal(e.body->size, BODY_BYTES_MAX);
        event_drop(&e);
    }
    assert_int_equal(counters(&b).cut_connections, 0);
}

static void a_guest_that_reads_nothing_is_cut(void **state)
{
    (void)state;
    dealer(NET_LOBBY, true);
    struct net_event e = expect_b(NET_EVENT_UP);
    struct blob *body = pattern_blob(256u << 10, 1);
    size_t sent = 0;
    int rc = 0;
    while (rc == 0 && sent < 128u << 20) {
        rc = say(&b, &guest, NET_LOBBY, "answer", blob_ref(body));
        sent += body->size;
        if (sent % (4u << 20) == 0)
            pump_both();
    }
    assert_int_equal(rc, -E_CLOSED);
    blob_unref(body);
    e = expect_b(NET_EVENT_DOWN);
    assert_string_equal(e.why.text, "it does not read what it is sent");
    while (!b_has_cut()) /* it does not hang up when asked to, so its connection is closed */
        pump_both();
}

static void an_expelled_guest_still_reads_the_last_answer(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, LOBBY);
    assert_int_equal(say(&b, &a, NET_LOBBY, "no", NULL), 0);
    net_expel(b.net, &a.key, NET_LOBBY, "it sent nonsense");
    struct net_event e = expect_message((struct party *[]){&a, &b}, 2, NET_LOBBY);
    assert_text(e.head, "no");
    event_drop(&e);
    expect((struct party *[]){&a, &b}, 2, NET_EVENT_DOWN);
    e = expect_b(NET_EVENT_DOWN);
    assert_string_equal(e.why.text, "it sent nonsense");
    net_expel(b.net, &a.key, NET_LOBBY, "again");
}

static int setup_few_descriptors(void **state)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 160;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return setup(state);
}

static int teardown_few_descriptors(void **state)
{
    struct rlimit limit;
    teardown(state);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max < 1024 ? limit.rlim_max : 1024;
    return setrlimit(RLIMIT_NOFILE, &limit);
}

/* Half of them never even say HELLO. */
static void silent_guests_make_room_for_one_that_speaks(void **state)
{
    (void)state;
    assert_int_equal(b.net->guests_max, 20);
    for (int i = 0; i < 20; i++) {
        dealer(NET_LOBBY, i % 2 == 0);
        if (i % 2 == 0)
            expect_b(NET_EVENT_UP);
        while (b.net->bound[NET_LOBBY]->n_open <= (size_t)i)
            pump_both();
    }
    assert_int_equal(counters(&b).cut_connections, 0);
    connect_parties(&a, &b, 1, LOBBY);
    while (!b_has_cut())
        pump_both();
    assert_int_equal(say(&a, &b, NET_LOBBY, "let me in", NULL), 0);
    struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_LOBBY);
    assert_memory_equal(&e.key, &a.key, sizeof e.key);
    event_drop(&e);
    assert_int_equal(counters(&b).cut_connections, 1);
    assert_int_equal(logged(&a, NET_EVENT_DOWN), 0);
}

static void idle_guests_are_cut(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    admit_both();
    dealer(NET_LOBBY, true);
    dealer(NET_CONTROL, false);
    struct net_event e = expect_b(NET_EVENT_UP);
    while (b.net->bound[NET_CONTROL]->n_open < 2)
        pump_both();
    int64_t now_ns = clock_now_ns();
    net_flow_look(b.net, now_ns + (NET_DIAL_MS + 500) * NS_PER_MS); /* the future has come */
    assert_int_equal(counters(&b).cut_connections, 1);              /* the one without HELLO */
    net_flow_look(b.net, now_ns + (NET_GUEST_IDLE_MS + 500) * NS_PER_MS);
    assert_int_equal(counters(&b).cut_connections, 2);
    b.net->look_ns = 0;
    e = expect_b(NET_EVENT_DOWN);
    assert_int_equal(e.channel, NET_LOBBY);
    assert_int_equal(say(&a, &b, NET_CONTROL, "silent peers stay", NULL), 0);
    e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    event_drop(&e);
}

/* Time for zmq's threads to hand over all they have; b does not look. */
static void let_arrive(void)
{
    for (int64_t until_ns = clock_now_ns() + 200 * NS_PER_MS; clock_now_ns() < until_ns;) {
        struct net_event none;
        assert_int_equal(net_poll(a.net, 1, &none), 0);
    }
}

static void a_flood_of_nonsense_does_not_hold_net_poll(void **state)
{
    (void)state;
    void *d[4];
    for (int i = 0; i < 4; i++) {
        d[i] = dealer(NET_CONTROL, false);
        while (b.net->bound[NET_CONTROL]->n_open <= (size_t)i)
            pump_both();
        for (int k = 0; k < 200; k++)
            assert_int_equal(zmq_send(d[i], "nonsense", 8, 0), 8);
    }
    uint64_t before = counters(&b).dropped_messages, most = 0;
    while (before < 800) {
        struct net_event e;
        let_arrive();
        assert_int_equal(net_poll(b.net, 0, &e), 0);
        uint64_t now = counters(&b).dropped_messages;
        most = now - before > most ? now - before : most;
        before = now;
    }
    assert_in_range(most, 1, 256);
}

static void a_flood_on_control_does_not_shut_out_the_lobby(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, LOBBY);
    admit_both();
    void *d = dealer(NET_CONTROL, true);
    expect_b(NET_EVENT_UP);
    for (int i = 0; i < 200; i++)
        assert_int_equal(zmq_send(d, "x", 1, 0), 1);
    assert_int_equal(say(&a, &b, NET_LOBBY, "hello?", NULL), 0);
    let_arrive();
    unsigned before = 0;
    for (struct net_event e = {0}; e.kind != NET_EVENT_MESSAGE || e.channel != NET_LOBBY; before++) {
        assert_int_equal(net_poll(b.net, 1000, &e), 0);
        event_drop(&e);
    }
    assert_in_range(before, 1, NET_CONTROL_BURST + 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_message_without_end_is_cut_in_the_lobby, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_without_end_is_cut_before_hello, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_without_end_is_cut_on_a_peers_link, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_without_end_is_cut_on_a_dial, setup, teardown),
        cmocka_unit_test_setup_teardown(the_largest_message_passes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_guest_that_reads_nothing_is_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(an_expelled_guest_still_reads_the_last_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(silent_guests_make_room_for_one_that_speaks, setup_few_descriptors,
                                        teardown_few_descriptors),
        cmocka_unit_test_setup_teardown(idle_guests_are_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flood_of_nonsense_does_not_hold_net_poll, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flood_on_control_does_not_shut_out_the_lobby, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
