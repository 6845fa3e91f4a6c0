/* Strangers, broken programs and admitted peers that misbehave: what they send is dropped and counted, and links that
 * work go on working. */
#include "tests/unit/net/fixture.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/base/rng.h"

static struct party a, b, guest; /* a is linked to b; guest has only a key and b's admission */
static void *ctx;

static int setup(void **state)
{
    (void)state;
    party_keys(&a);
    party_keys(&b);
    party_keys(&guest);
    party_open(&a, (struct party_options){0});
    party_open(&b, (struct party_options){.listen = CONTROL_BULK | LOBBY});
    connect_parties(&a, &b, 1, CONTROL_BULK);
    struct net_key both[2] = {a.key, guest.key};
    assert_int_equal(net_admit(b.net, both, 2), 0);
    ctx = zmq_ctx_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    zmq_ctx_term(ctx);
    party_close(&a);
    party_close(&b);
    return 0;
}

static void pump_both(void)
{
    pump((struct party *[]){&b, &a}, 2);
}

static void assert_link_works(void)
{
    for (int c = NET_CONTROL; c <= NET_BULK; c++) {
        assert_int_equal(say(&a, &b, (enum net_channel)c, "still here", pattern_blob(100000, 4)), 0);
        struct net_event e = expect_message((struct party *[]){&b, &a}, 2, (enum net_channel)c);
        assert_text(e.head, "still here");
        assert_pattern(e.body, 100000, 4);
        event_drop(&e);
    }
    assert_int_equal(b.n_log, 0);
    assert_int_equal(a.n_log, 0);
}

static uint64_t dropped(void)
{
    struct net_counters c;
    net_counters(b.net, &c);
    return c.dropped_messages;
}

static void raw_garbage_disturbs_nobody(void **state)
{
    (void)state;
    struct rng r = rng_make(20, "garbage");
    int fds[60];
    for (size_t i = 0; i < 60; i++) {
        uint8_t bytes[3000];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)rng_u64(&r);
        if (i % 3 == 1) /* begins like ZMTP 3 */
            memcpy(bytes, "\xff\0\0\0\0\0\0\0\1\x7f\3", 11);
        if (i % 6 == 1) /* and goes on to say CURVE, as a client */
            memcpy(bytes + 11, "\0CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22);
        fds[i] = tcp_connect(net_port(b.net, (enum net_channel)(i % NET_CHANNELS)));
        assert_true(send(fds[i], bytes, rng_below(&r, sizeof bytes), MSG_NOSIGNAL) >= 0);
        pump_both();
    }
    assert_link_works();
    for (size_t i = 0; i < 60; i++)
        close(fds[i]);
    assert_link_works();
}

static void half_greetings_are_given_up(void **state)
{
    (void)state;
    int fd[NET_CHANNELS];
    for (int c = 0; c < NET_CHANNELS; c++) {
        fd[c] = tcp_connect(net_port(b.net, (enum net_channel)c));
        assert_int_equal(send(fd[c], "\xff\0\0\0\0\0\0\0\1\x7f", 10, MSG_NOSIGNAL), 10);
    }
    assert_link_works();
    for (int c = 0; c < NET_CHANNELS; c++) { /* b hangs up on each once the handshake's time is over */
        char in[256];
        ssize_t n = 1;
        while (n > 0) {
            pump_both();
            n = recv(fd[c], in, sizeof in, MSG_DONTWAIT);
            if (n < 0)
                n = 1;
        }
        close(fd[c]);
    }
    struct net_counters counters;
    while (net_counters(b.net, &counters), counters.refused_handshakes < 3)
        pump_both();
    assert_link_works();
}

static void plain_zeromq_client_is_refused(void **state)
{
    (void)state;
    for (int c = 0; c < NET_CHANNELS; c++) {
        char endpoint[64];
        struct net_counters before, after;
        net_counters(b.net, &before);
        void *dealer = zmq_socket(ctx, ZMQ_DEALER);
        int zero = 0;
        zmq_setsockopt(dealer, ZMQ_LINGER, &zero, sizeof zero);
        snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", (unsigned)net_port(b.net, (enum net_channel)c));
        assert_int_equal(zmq_connect(dealer, endpoint), 0);
        zmq_send(dealer, "hello", 5, 0);
        do {
            pump_both();
            net_counters(b.net, &after);
        } while (after.refused_handshakes == before.refused_handshakes);
        zmq_close(dealer);
    }
    assert_link_works();
}

/* A DEALER that shakes hands properly with guest's key; what it sends then is its own affair. */
static void *guest_dealer(enum net_channel channel, const char *routing_id)
{
    char endpoint[64];
    int zero = 0;
    void *d = zmq_socket(ctx, ZMQ_DEALER);
    assert_int_equal(zmq_setsockopt(d, ZMQ_CURVE_PUBLICKEY, guest.key.bytes, NET_KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(d, ZMQ_CURVE_SECRETKEY, guest.secret, NET_KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(d, ZMQ_CURVE_SERVERKEY, b.key.bytes, NET_KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(d, ZMQ_LINGER, &zero, sizeof zero), 0);
    if (routing_id)
        assert_int_equal(zmq_setsockopt(d, ZMQ_ROUTING_ID, routing_id, strlen(routing_id)), 0);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", (unsigned)net_port(b.net, channel));
    assert_int_equal(zmq_connect(d, endpoint), 0);
    return d;
}

static void send_frames(void *dealer, size_t n, const size_t *sizes)
{
    for (size_t i = 0; i < n; i++) {
        struct blob *b1 = pattern_blob(sizes[i], 1);
        assert_int_equal(zmq_send(dealer, b1->data, sizes[i], i + 1 < n ? ZMQ_SNDMORE : 0), sizes[i]);
        blob_unref(b1);
    }
}

static void send_hello(void *dealer, unsigned channel, unsigned channels)
{
    uint8_t hello[12] = {1, 1, (uint8_t)channel, (uint8_t)channels, 1, 2, 3, 4, 5, 6, 7, 8};
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, hello, sizeof hello, 0), sizeof hello);
}

static void await_dropped(uint64_t count)
{
    while (dropped() < count)
        pump_both();
    for (int i = 0; i < 5; i++)
        pump_both();
    assert_int_equal(dropped(), count);
}

static void messages_before_hello_are_dropped(void **state)
{
    (void)state;
    void *d = guest_dealer(NET_CONTROL, NULL);
    send_frames(d, 1, (size_t[]){5});
    send_frames(d, 2, (size_t[]){5, 100000});
    await_dropped(2);
    assert_link_works();
    zmq_close(d);
}

static void malformed_messages_of_a_linked_peer_are_dropped(void **state)
{
    (void)state;
    void *d = guest_dealer(NET_CONTROL, NULL);
    send_hello(d, NET_CONTROL, 1u << NET_CONTROL);
    struct net_event e = expect((struct party *[]){&b, &a}, 2, NET_EVENT_UP);
    assert_memory_equal(&e.key, &guest.key, sizeof e.key);
    send_frames(d, 3, (size_t[]){5, 6, 7}); /* too many frames */
    send_frames(d, 9, (size_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1});
    send_frames(d, 1, (size_t[]){0});                     /* no head */
    send_frames(d, 2, (size_t[]){0, 5});                  /* an internal message of the wrong size */
    send_frames(d, 2, (size_t[]){0, 12});                 /* of unknown type */
    send_frames(d, 2, (size_t[]){HEAD_BYTES_MAX + 1, 0}); /* head too large */
    send_hello(d, NET_CONTROL, 1u << NET_CONTROL);        /* twice */
    await_dropped(7);
    send_frames(d, 2, (size_t[]){HEAD_BYTES_MAX, 1}); /* the limit itself is fine */
    e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    assert_memory_equal(&e.key, &guest.key, sizeof e.key);
    assert_pattern(e.head, HEAD_BYTES_MAX, 1);
    event_drop(&e);
    assert_link_works();
    zmq_close(d);
    expect((struct party *[]){&b, &a}, 2, NET_EVENT_DOWN);
}

static void oversized_frame_ends_the_connection_only(void **state)
{
    (void)state;
    void *d = guest_dealer(NET_CONTROL, NULL);
    send_hello(d, NET_CONTROL, 1u << NET_CONTROL);
    expect((struct party *[]){&b, &a}, 2, NET_EVENT_UP);
    send_frames(d, 2, (size_t[]){5, BODY_BYTES_MAX + 1000});
    expect((struct party *[]){&b, &a}, 2, NET_EVENT_DOWN);
    zmq_close(d);
    while (b.n_log) /* the dealer may have reconnected and failed; nothing came of it */
        assert_int_not_equal(b.log[--b.n_log].kind, NET_EVENT_MESSAGE);
    assert_link_works();
}

static void hello_with_wrong_channels_is_refused(void **state)
{
    (void)state;
    void *d = guest_dealer(NET_BULK, NULL);
    send_hello(d, NET_CONTROL, CONTROL_BULK); /* says control on bulk's socket */
    send_hello(d, NET_BULK, 1u << NET_CONTROL);
    send_hello(d, NET_BULK, 0xff);
    send_hello(d, 200, 0);
    await_dropped(4);
    assert_link_works();
    zmq_close(d);
}

/* libzmq would take a client's routing id at its word: a second one of the same name would stay mute, and a name equal
 * to the next one it makes up would abort the process. */
static void routing_ids_that_clients_choose_mean_nothing(void **state)
{
    (void)state;
    struct party *order[] = {&b, &a};
    void *d[3];
    for (int i = 0; i < 3; i++) {
        d[i] = guest_dealer(NET_CONTROL, "i am somebody");
        send_hello(d[i], NET_CONTROL, 1u << NET_CONTROL);
        struct net_event e = expect(order, 2, NET_EVENT_UP);
        assert_memory_equal(&e.key, &guest.key, sizeof e.key);
        send_frames(d[i], 1, (size_t[]){5});
        e = expect_message(order, 2, NET_CONTROL);
        event_drop(&e);
        if (i > 0)
            expect(order, 2, NET_EVENT_DOWN);
    }
    assert_link_works();
    for (int i = 0; i < 3; i++)
        zmq_close(d[i]);
}

static void removed_key_loses_its_link_and_its_messages(void **state)
{
    (void)state;
    struct party *order[] = {&b, &a};
    assert_int_equal(say(&a, &b, NET_CONTROL, "before", NULL), 0);
    struct net_event e = expect_message(order, 2, NET_CONTROL);
    event_drop(&e);
    assert_int_equal(net_admit(b.net, &guest.key, 1), 0);
    assert_int_equal(say(&b, &a, NET_CONTROL, "x", NULL), -E_CLOSED);
    uint64_t before = dropped();
    assert_int_equal(say(&a, &b, NET_CONTROL, "after", NULL), 0); /* a does not know yet */
    while (dropped() == before)
        pump((struct party *[]){&b}, 1);
    e = expect(order, 2, NET_EVENT_DOWN);
    assert_memory_equal(&e.key, &a.key, sizeof e.key);
    assert_string_equal(e.why.text, "its key is no longer admitted");
    assert_int_equal(logged(&b, NET_EVENT_MESSAGE), 0);
    e = expect((struct party *[]){&a, &b}, 2, NET_EVENT_DOWN);
    assert_string_equal(e.why.text, "this key is no longer admitted there");
    connect_parties(&a, &b, 2, CONTROL_BULK); /* admitted again, dialled again */
    assert_link_works();
}

/* The lobby takes any key, but only so much from each. */
static void large_lobby_message_ends_the_guest_only(void **state)
{
    (void)state;
    void *d = guest_dealer(NET_LOBBY, NULL);
    send_hello(d, NET_LOBBY, LOBBY);
    struct net_event e = expect((struct party *[]){&b, &a}, 2, NET_EVENT_UP);
    assert_int_equal(e.channel, NET_LOBBY);
    send_frames(d, 1, (size_t[]){HEAD_BYTES_MAX + 1000});
    e = expect((struct party *[]){&b, &a}, 2, NET_EVENT_DOWN);
    assert_int_equal(e.channel, NET_LOBBY);
    zmq_close(d);
    assert_int_equal(logged(&b, NET_EVENT_MESSAGE), 0);
    while (b.n_log)
        event_drop(&b.log[--b.n_log]);
    assert_link_works();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(raw_garbage_disturbs_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(half_greetings_are_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(plain_zeromq_client_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(messages_before_hello_are_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(malformed_messages_of_a_linked_peer_are_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(oversized_frame_ends_the_connection_only, setup, teardown),
        cmocka_unit_test_setup_teardown(hello_with_wrong_channels_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(routing_ids_that_clients_choose_mean_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(removed_key_loses_its_link_and_its_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(large_lobby_message_ends_the_guest_only, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
