/* Links that work: up on both sides, messages on every channel, newest wins, hang-up, wake. */
#include "tests/unit/net/fixture.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/base/mem.h"

static struct party a, b;

static int setup(void **state)
{
    (void)state;
    party_keys(&a);
    party_keys(&b);
    party_open(&a, (struct party_options){0});
    party_open(&b, (struct party_options){.listen = CONTROL_BULK | LOBBY});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    party_close(&a);
    party_close(&b);
    return 0;
}

/* One message each way with a body of size bytes, SIZE_MAX: none. */
static void exchange(enum net_channel channel, size_t size)
{
    struct party *ways[2][2] = {{&a, &b}, {&b, &a}};
    for (uint32_t way = 0; way < 2; way++) {
        struct party *from = ways[way][0], *to = ways[way][1];
        struct blob *body = size == SIZE_MAX ? NULL : pattern_blob(size, way);
        assert_int_equal(say(from, to, channel, "the head", body), 0);
        struct net_event e = expect_message((struct party *[]){to, from}, 2, channel);
        assert_memory_equal(&e.key, &from->key, sizeof e.key);
        assert_text(e.head, "the head");
        if (size == SIZE_MAX)
            assert_null(e.body);
        else
            assert_pattern(e.body, size, way);
        event_drop(&e);
    }
}

static void messages_of_every_size_travel_both_ways(void **state)
{
    (void)state;
    connect_parties(&a, &b, 7, CONTROL_BULK);
    static const size_t sizes[] = {SIZE_MAX, 0, 1, 2047, 2048, 100000, 8u << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        exchange(NET_CONTROL, sizes[i]);
        exchange(NET_BULK, sizes[i]);
    }
    struct net_counters c;
    net_counters(a.net, &c);
    assert_int_equal(c.sent_messages, 14);
    assert_int_equal(c.received_messages, 14);
    assert_int_equal(c.dropped_messages, 0);
    assert_true(c.sent_bytes > 16u << 20);
}

static void largest_body_travels_and_a_larger_one_is_refused(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    exchange(NET_BULK, BODY_BYTES_MAX);
    assert_int_equal(say(&a, &b, NET_BULK, "x", pattern_blob(BODY_BYTES_MAX + 1, 0)), -E_TOOBIG);
    struct blob *head = pattern_blob(HEAD_BYTES_MAX, 3);
    assert_int_equal(net_send(a.net, &b.key, NET_CONTROL, head, NULL), 0);
    blob_unref(head);
    struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    assert_pattern(e.head, HEAD_BYTES_MAX, 3);
    event_drop(&e);
    head = pattern_blob(HEAD_BYTES_MAX + 1, 3);
    assert_int_equal(net_send(a.net, &b.key, NET_CONTROL, head, NULL), -E_TOOBIG);
    blob_unref(head);
    assert_int_equal(say(&a, &b, NET_CONTROL, "", NULL), -E_INVAL);
}

static void stranger_talks_to_the_lobby_and_is_answered(void **state)
{
    (void)state;
    uint16_t port[NET_CHANNELS] = {[NET_LOBBY] = net_port(b.net, NET_LOBBY)};
    assert_int_equal(net_dial(a.net, 3, &b.key, "127.0.0.1", port, LOBBY), 0);
    struct net_event e = expect((struct party *[]){&a, &b}, 2, NET_EVENT_UP);
    assert_int_equal(e.channel, NET_LOBBY);
    e = expect((struct party *[]){&b, &a}, 2, NET_EVENT_UP);
    assert_int_equal(e.channel, NET_LOBBY);
    exchange(NET_LOBBY, SIZE_MAX);
    exchange(NET_LOBBY, 0);
    exchange(NET_LOBBY, 1);
    exchange(NET_LOBBY, GUEST_MESSAGE_BYTES_MAX);
    assert_int_equal(say(&a, &b, NET_LOBBY, "x", pattern_blob(GUEST_MESSAGE_BYTES_MAX + 1, 0)), -E_TOOBIG);
    assert_int_equal(say(&b, &a, NET_LOBBY, "x", pattern_blob(HEAD_BYTES_MAX + 1, 0)), -E_TOOBIG);
    assert_int_equal(say(&b, &a, NET_LOBBY, "large", pattern_blob(HEAD_BYTES_MAX, 3)), 0);
    e = expect_message((struct party *[]){&a, &b}, 2, NET_LOBBY);
    assert_pattern(e.body, HEAD_BYTES_MAX, 3);
    event_drop(&e);
    assert_int_equal(say(&a, &b, NET_CONTROL, "x", NULL), -E_CLOSED);
    assert_int_equal(say(&b, &a, NET_CONTROL, "x", NULL), -E_CLOSED);
}

static void lobby_link_and_control_link_of_one_key_live_side_by_side(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, LOBBY);
    connect_parties(&a, &b, 2, CONTROL_BULK);
    exchange(NET_LOBBY, 10);
    exchange(NET_CONTROL, 10);
    net_hangup(a.net, 1);
    struct net_event e = expect((struct party *[]){&b, &a}, 2, NET_EVENT_DOWN);
    assert_int_equal(e.channel, NET_LOBBY);
    exchange(NET_CONTROL, 10);
}

static void order_holds_within_a_channel(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(say(&a, &b, NET_BULK, "n", pattern_blob(sizeof i + i % 4000, i)), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_BULK);
        assert_pattern(e.body, sizeof i + i % 4000, i);
        event_drop(&e);
    }
}

static void control_overtakes_bulk(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    struct blob *body = pattern_blob(1u << 20, 0), *head = text_blob("h");
    for (int i = 0; i < 200; i++)
        assert_int_equal(net_send(a.net, &b.key, NET_BULK, head, body), 0);
    assert_int_equal(net_send(a.net, &b.key, NET_CONTROL, head, NULL), 0);
    blob_unref(head);
    blob_unref(body);
    struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    event_drop(&e);
    assert_true(logged(&b, NET_EVENT_MESSAGE) < 200);
    for (int i = 0; i < 200; i++) {
        e = expect_message((struct party *[]){&b, &a}, 2, NET_BULK);
        event_drop(&e);
    }
}

static void same_key_dialling_again_replaces_the_older_link(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    dial(&a, &b, 2, CONTROL_BULK);
    struct net_event e = expect((struct party *[]){&a, &b}, 2, NET_EVENT_UP);
    assert_int_equal(e.dial_id, 2);
    e = expect((struct party *[]){&a, &b}, 2, NET_EVENT_DOWN);
    assert_int_equal(e.dial_id, 1);
    assert_int_equal(e.failure, NET_FAILURE_REPLACED);
    assert_string_equal(e.why.text, "the same key opened a newer link");
    /* at the accepting side the old link's DOWN comes before the new one's UP */
    while (logged(&b, NET_EVENT_UP) == 0)
        pump((struct party *[]){&b, &a}, 2);
    assert_int_equal(b.log[0].kind, NET_EVENT_DOWN);
    assert_int_equal(b.log[1].kind, NET_EVENT_UP);
    exchange(NET_CONTROL, 5);
    exchange(NET_BULK, 5);
    assert_int_equal(logged(&a, NET_EVENT_DOWN), 0);
    assert_int_equal(logged(&b, NET_EVENT_DOWN), 1);
}

static void hangup_is_seen_and_what_was_said_before_arrives(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    assert_int_equal(say(&a, &b, NET_CONTROL, "leaving", NULL), 0);
    net_hangup(a.net, 1);
    net_hangup(a.net, 1);
    net_hangup(a.net, 99);
    assert_int_equal(say(&a, &b, NET_CONTROL, "too late", NULL), -E_CLOSED);
    struct net_event e = expect((struct party *[]){&b, &a}, 2, NET_EVENT_DOWN);
    assert_memory_equal(&e.key, &a.key, sizeof e.key);
    assert_true(e.why.text[0] != '\0');
    assert_int_equal(logged(&b, NET_EVENT_MESSAGE), 1);
    assert_int_equal(say(&b, &a, NET_CONTROL, "anyone?", NULL), -E_CLOSED);
    connect_parties(&a, &b, 1, CONTROL_BULK);
    e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    assert_text(e.head, "leaving");
    event_drop(&e);
    exchange(NET_BULK, 3);
}

static void closing_the_net_delivers_what_was_sent(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(say(&b, &a, NET_CONTROL, "bye", NULL), 0);
    party_close(&b);
    struct net_event e = expect((struct party *[]){&a}, 1, NET_EVENT_DOWN);
    assert_int_equal(e.dial_id, 1);
    assert_int_equal(logged(&a, NET_EVENT_MESSAGE), 20);
}

static void dial_ids_are_unique_while_open(void **state)
{
    (void)state;
    connect_parties(&a, &b, 1, CONTROL_BULK);
    uint16_t port[NET_CHANNELS] = {1, 1, 1};
    assert_int_equal(net_dial(a.net, 1, &b.key, "127.0.0.1", port, CONTROL_BULK), -E_EXIST);
    assert_int_equal(net_dial(a.net, 0, &b.key, "127.0.0.1", port, CONTROL_BULK), -E_INVAL);
    assert_int_equal(net_dial(a.net, 2, &b.key, "127.0.0.1", port, 0), -E_INVAL);
    assert_int_equal(net_dial(a.net, 2, &b.key, "", port, CONTROL_BULK), -E_INVAL);
}

static void host_names_are_looked_up(void **state)
{
    (void)state;
    uint16_t port[NET_CHANNELS];
    for (int c = 0; c < NET_CHANNELS; c++)
        port[c] = net_port(b.net, (enum net_channel)c);
    assert_int_equal(net_admit(b.net, &a.key, 1), 0);
    assert_int_equal(net_dial(a.net, 1, &b.key, "localhost", port, CONTROL_BULK), 0);
    expect((struct party *[]){&a, &b}, 2, NET_EVENT_UP);
}

static void wake_and_watched_descriptors_end_the_wait(void **state)
{
    (void)state;
    struct net_event e;
    net_wake(a.net);
    net_wake(a.net);
    assert_int_equal(net_poll(a.net, 10000, &e), 0);
    assert_int_equal(e.kind, NET_EVENT_WAKE);
    assert_int_equal(net_poll(a.net, 0, &e), 0);
    assert_int_equal(e.kind, NET_EVENT_NONE);
    int fd = eventfd(0, 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(net_watch(a.net, i == 0 ? fd : dup(fd)), 0);
    assert_int_equal(net_watch(a.net, fd), -E_TOOBIG);
    assert_int_equal(net_poll(a.net, 0, &e), 0);
    assert_int_equal(e.kind, NET_EVENT_NONE);
    assert_int_equal(eventfd_write(fd, 1), 0);
    assert_int_equal(net_poll(a.net, 10000, &e), 0);
    assert_int_equal(e.kind, NET_EVENT_WAKE);
    assert_int_equal(net_poll(a.net, 10000, &e), 0); /* still readable */
    assert_int_equal(e.kind, NET_EVENT_WAKE);
    /* a descriptor that nobody empties does not shut out links */
    connect_parties(&a, &b, 1, CONTROL_BULK);
    exchange(NET_BULK, 100);
    eventfd_t value;
    assert_int_equal(eventfd_read(fd, &value), 0);
}

static void occupied_port_is_named(void **state)
{
    (void)state;
    struct net_config config = {.host = "127.0.0.1", .listen = {true}, .port = {net_port(b.net, NET_CONTROL)}};
    memcpy(config.curve_pub, a.key.bytes, NET_KEY_BYTES);
    memcpy(config.curve_secret, a.secret, NET_KEY_BYTES);
    struct net *n = NULL;
    struct reason why = {0};
    assert_int_equal(net_open(&config, &n, &why), -E_IO);
    assert_null(n);
    char expected[128];
    snprintf(expected, sizeof expected, "cannot listen on 127.0.0.1:%u: Address already in use",
             (unsigned)net_port(b.net, NET_CONTROL));
    assert_memory_equal(why.text, expected, strlen(expected));
}

/* Fails each allocation of opening and dialling in turn; leaks and half states are the sanitizer's to find. */
static void allocation_failures_leave_nothing_behind(void **state)
{
    (void)state;
    struct net_config config = {.host = "127.0.0.1", .listen = {true, true, true}};
    memcpy(config.curve_pub, a.key.bytes, NET_KEY_BYTES);
    memcpy(config.curve_secret, a.secret, NET_KEY_BYTES);
    uint16_t port[NET_CHANNELS] = {net_port(b.net, NET_CONTROL), net_port(b.net, NET_BULK), 0};
    bool hit = true;
    for (int64_t after = 0; hit; after++) {
        struct net *n = NULL;
        mem_fault_set(after);
        int rc = net_open(&config, &n, NULL);
        if (rc == 0)
            rc = net_dial(n, 1, &b.key, "127.0.0.1", port, CONTROL_BULK);
        hit = mem_fault_hit();
        mem_fault_set(-1);
        assert_true(hit ? rc < 0 : rc == 0);
        net_free(n);
    }
}

static void local_addresses_are_numeric(void **state)
{
    (void)state;
    char addrs[ADDRS_MAX][HOST_MAX_LEN + 1];
    int n = net_local_addrs(addrs, ADDRS_MAX);
    assert_in_range(n, 1, ADDRS_MAX);
    for (int i = 0; i < n; i++)
        assert_int_equal(strspn(addrs[i], "0123456789abcdef.:"), strlen(addrs[i]));
    assert_int_equal(net_local_addrs(addrs, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(messages_of_every_size_travel_both_ways, setup, teardown),
        cmocka_unit_test_setup_teardown(largest_body_travels_and_a_larger_one_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(stranger_talks_to_the_lobby_and_is_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(lobby_link_and_control_link_of_one_key_live_side_by_side, setup, teardown),
        cmocka_unit_test_setup_teardown(order_holds_within_a_channel, setup, teardown),
        cmocka_unit_test_setup_teardown(control_overtakes_bulk, setup, teardown),
        cmocka_unit_test_setup_teardown(same_key_dialling_again_replaces_the_older_link, setup, teardown),
        cmocka_unit_test_setup_teardown(hangup_is_seen_and_what_was_said_before_arrives, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_the_net_delivers_what_was_sent, setup, teardown),
        cmocka_unit_test_setup_teardown(dial_ids_are_unique_while_open, setup, teardown),
        cmocka_unit_test_setup_teardown(host_names_are_looked_up, setup, teardown),
        cmocka_unit_test_setup_teardown(wake_and_watched_descriptors_end_the_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(occupied_port_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(allocation_failures_leave_nothing_behind, setup, teardown),
        cmocka_unit_test_setup_teardown(local_addresses_are_numeric, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
