/* Dials that fail: each cause has its own failure code and its own sentence. */
#include "tests/unit/net/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

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

/* format, with PORT replaced by the number */
static void assert_sentence(const char *sentence, const char *format, uint16_t port)
{
    char expected[REASON_TEXT_MAX];
    const char *at = strstr(format, "PORT");
    assert_non_null(at);
    snprintf(expected, sizeof expected, "%.*s%u%s", (int)(at - format), format, (unsigned)port, at + 4);
    assert_string_equal(sentence, expected);
}

static struct net_event failed_dial(uint32_t dial_id)
{
    struct net_event e = expect((struct party *[]){&a, &b}, 2, NET_EVENT_DIAL_FAILED);
    assert_int_equal(e.dial_id, dial_id);
    assert_int_equal(logged(&a, NET_EVENT_UP), 0);
    assert_int_equal(logged(&b, NET_EVENT_UP), 0);
    return e;
}

static void wrong_server_key_is_told_from_a_dead_port(void **state)
{
    (void)state;
    struct party other;
    party_keys(&other);
    assert_int_equal(net_admit(b.net, &a.key, 1), 0);
    dial_port(&a, &other.key, 1, net_port(b.net, NET_CONTROL), 1u << NET_CONTROL);
    struct net_event e = failed_dial(1);
    assert_int_equal(e.failure, NET_FAILURE_WRONG_KEY);
    assert_sentence(e.why.text, "the process at 127.0.0.1:PORT is not the expected one: its key differs",
                    net_port(b.net, NET_CONTROL));
    struct net_counters c;
    net_counters(b.net, &c);
    assert_true(c.refused_handshakes > 0);
}

static void key_that_is_not_admitted_is_told_so(void **state)
{
    (void)state;
    uint16_t port[NET_CHANNELS] = {net_port(b.net, NET_CONTROL), net_port(b.net, NET_BULK), 0};
    assert_int_equal(net_dial(a.net, 5, &b.key, "127.0.0.1", port, CONTROL_BULK), 0);
    struct net_event e = failed_dial(5);
    assert_int_equal(e.failure, NET_FAILURE_NOT_ADMITTED);
    assert_sentence(e.why.text, "127.0.0.1:PORT does not admit this key", port[NET_CONTROL]);
    /* the same dial works once admitted: nothing sticks */
    connect_parties(&a, &b, 5, CONTROL_BULK);
}

static void closed_port_is_named(void **state)
{
    (void)state;
    uint16_t port;
    close(tcp_listen(&port));
    dial_port(&a, &b.key, 1, port, 1u << NET_CONTROL);
    struct net_event e = failed_dial(1);
    assert_int_equal(e.failure, NET_FAILURE_REFUSED);
    assert_sentence(e.why.text, "nothing listens at 127.0.0.1:PORT", port);
}

static void one_closed_channel_fails_the_whole_dial(void **state)
{
    (void)state;
    uint16_t closed;
    close(tcp_listen(&closed));
    assert_int_equal(net_admit(b.net, &a.key, 1), 0);
    uint16_t port[NET_CHANNELS] = {net_port(b.net, NET_CONTROL), closed, 0};
    assert_int_equal(net_dial(a.net, 1, &b.key, "127.0.0.1", port, CONTROL_BULK), 0);
    struct net_event e = failed_dial(1);
    assert_int_equal(e.failure, NET_FAILURE_REFUSED);
    assert_sentence(e.why.text, "nothing listens at 127.0.0.1:PORT", closed);
    connect_parties(&a, &b, 2, CONTROL_BULK); /* the half link is forgotten */
}

static void unknown_name_is_unreachable(void **state)
{
    (void)state;
    uint16_t port[NET_CHANNELS] = {1, 1, 1};
    assert_int_equal(net_dial(a.net, 1, &b.key, "no-such-host.invalid", port, CONTROL_BULK), 0);
    struct net_event e = failed_dial(1);
    assert_int_equal(e.failure, NET_FAILURE_UNREACHABLE);
    assert_non_null(strstr(e.why.text, "no address is known for \"no-such-host.invalid\""));
}

static void hangup_during_a_look_up_is_final(void **state)
{
    (void)state;
    uint16_t port[NET_CHANNELS] = {1, 1, 1};
    for (uint32_t id = 1; id < 8; id++)
        assert_int_equal(net_dial(a.net, id, &b.key, "no-such-host.invalid", port, CONTROL_BULK), 0);
    for (uint32_t id = 1; id < 8; id++)
        net_hangup(a.net, id);
    for (int i = 0; i < 20; i++)
        pump((struct party *[]){&a, &b}, 2);
    assert_int_equal(a.n_log, 0);
}

static void silent_port_times_out_with_a_sentence(void **state)
{
    (void)state;
    uint16_t port;
    int fd = tcp_listen(&port); /* the kernel accepts, nobody reads */
    dial_port(&a, &b.key, 1, port, 1u << NET_CONTROL);
    struct net_event e = failed_dial(1);
    assert_int_equal(e.failure, NET_FAILURE_TIMEOUT);
    assert_sentence(e.why.text,
                    "127.0.0.1:PORT takes connections but says nothing: a frozen process, or another program", port);
    close(fd);
}

/* Dials a server that accepts what comes, answers at once and says no more. */
static struct net_event dial_at_server(const void *answer, size_t n_bytes, uint16_t *ret_port)
{
    int listener = tcp_listen(ret_port), served[16], n_served = 0;
    assert_int_equal(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    dial_port(&a, &b.key, 1, *ret_port, 1u << NET_CONTROL);
    while (logged(&a, NET_EVENT_DIAL_FAILED) == 0) {
        pump((struct party *[]){&a, &b}, 2);
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        assert_true(n_served < 16);
        served[n_served++] = fd;
        assert_int_equal(send(fd, answer, n_bytes, MSG_NOSIGNAL), n_bytes);
        shutdown(fd, SHUT_WR);
    }
    while (n_served)
        close(served[--n_served]);
    close(listener);
    return failed_dial(1);
}

static void web_server_is_called_another_program(void **state)
{
    (void)state;
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    uint16_t port;
    struct net_event e = dial_at_server(http, sizeof http - 1, &port);
    assert_int_equal(e.failure, NET_FAILURE_NOT_SHOAL);
    assert_sentence(e.why.text, "127.0.0.1:PORT is another program: it answers \"HTTP/1.1 400 Bad\"", port);
}

static void port_that_hangs_up_is_called_another_program(void **state)
{
    (void)state;
    uint16_t port;
    struct net_event e = dial_at_server("", 0, &port);
    assert_int_equal(e.failure, NET_FAILURE_NOT_SHOAL);
    assert_sentence(e.why.text, "127.0.0.1:PORT is another program: it does not speak ZMTP", port);
}

static void binary_answers_are_not_printed(void **state)
{
    (void)state;
    uint16_t port;
    struct net_event e = dial_at_server("\x1b[2J\x07", 5, &port);
    assert_int_equal(e.failure, NET_FAILURE_NOT_SHOAL);
    assert_null(strchr(e.why.text, 0x1b));
}

static void zeromq_without_curve_is_called_another_program(void **state)
{
    (void)state;
    void *ctx = zmq_ctx_new(), *router = zmq_socket(ctx, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(router, "tcp://127.0.0.1:*"), 0);
    char endpoint[64];
    size_t len = sizeof endpoint;
    assert_int_equal(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
    uint16_t port = (uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10);
    dial_port(&a, &b.key, 1, port, 1u << NET_CONTROL);
    struct net_event e = failed_dial(1);
    assert_int_equal(e.failure, NET_FAILURE_NOT_SHOAL);
    assert_sentence(e.why.text, "127.0.0.1:PORT is another ZeroMQ program: it does not use CURVE", port);
    zmq_close(router);
    zmq_ctx_term(ctx);
}

static void listener_that_does_not_poll_is_busy_not_wrong(void **state)
{
    (void)state;
    assert_int_equal(net_admit(b.net, &a.key, 1), 0);
    dial_port(&a, &b.key, 1, net_port(b.net, NET_CONTROL), 1u << NET_CONTROL);
    struct net_event e = expect((struct party *[]){&a}, 1, NET_EVENT_DIAL_FAILED); /* b is never polled */
    assert_int_equal(e.failure, NET_FAILURE_TIMEOUT);
    assert_sentence(e.why.text, "127.0.0.1:PORT answers but does not finish the handshake in time",
                    net_port(b.net, NET_CONTROL));
}

static void channel_that_is_not_offered_is_refused(void **state)
{
    (void)state;
    /* bulk's port for both: the greeting there says another channel than the socket's */
    assert_int_equal(net_admit(b.net, &a.key, 1), 0);
    dial_port(&a, &b.key, 1, net_port(b.net, NET_BULK), CONTROL_BULK);
    struct net_event e = failed_dial(1);
    assert_int_equal(e.failure, NET_FAILURE_REFUSED);
    assert_sentence(e.why.text, "127.0.0.1:PORT refused the link", net_port(b.net, NET_BULK));
}

static void several_dials_fail_and_succeed_independently(void **state)
{
    (void)state;
    uint16_t closed;
    close(tcp_listen(&closed));
    for (uint32_t id = 10; id < 20; id++)
        dial_port(&a, &b.key, id, closed, CONTROL_BULK);
    dial(&a, &b, 1, CONTROL_BULK);
    expect((struct party *[]){&a, &b}, 2, NET_EVENT_UP);
    for (uint32_t id = 10; id < 20; id++) {
        struct net_event e = expect((struct party *[]){&a, &b}, 2, NET_EVENT_DIAL_FAILED);
        assert_in_range(e.dial_id, 10, 19);
        assert_int_equal(e.failure, NET_FAILURE_REFUSED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrong_server_key_is_told_from_a_dead_port, setup, teardown),
        cmocka_unit_test_setup_teardown(key_that_is_not_admitted_is_told_so, setup, teardown),
        cmocka_unit_test_setup_teardown(closed_port_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(one_closed_channel_fails_the_whole_dial, setup, teardown),
        cmocka_unit_test_setup_teardown(unknown_name_is_unreachable, setup, teardown),
        cmocka_unit_test_setup_teardown(hangup_during_a_look_up_is_final, setup, teardown),
        cmocka_unit_test_setup_teardown(silent_port_times_out_with_a_sentence, setup, teardown),
        cmocka_unit_test_setup_teardown(web_server_is_called_another_program, setup, teardown),
        cmocka_unit_test_setup_teardown(port_that_hangs_up_is_called_another_program, setup, teardown),
        cmocka_unit_test_setup_teardown(binary_answers_are_not_printed, setup, teardown),
        cmocka_unit_test_setup_teardown(zeromq_without_curve_is_called_another_program, setup, teardown),
        cmocka_unit_test_setup_teardown(listener_that_does_not_poll_is_busy_not_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(channel_that_is_not_offered_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(several_dials_fail_and_succeed_independently, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
