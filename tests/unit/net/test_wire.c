/* What an onlooker on the wire sees and can do: a proxy of ours between dialler and listener records every byte, and
 * may cut or change what passes. */
#include "tests/unit/net/fixture.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/mem.h"

#define TAP_BYTES (1u << 20)
#define PIPES     2 /* control, bulk */

struct tap {
    uint8_t bytes[TAP_BYTES];
    size_t n;
};

struct wire {
    int listener, from, to; /* -1: not there */
    uint16_t port, to_port;
    struct tap *tap[2];
    bool tamper; /* flip one bit of the next bytes from the dialler */
};

static struct party a, b;
static struct wire wires[PIPES];

static int setup(void **state)
{
    (void)state;
    party_keys(&a);
    party_keys(&b);
    party_open(&a, (struct party_options){0});
    party_open(&b, (struct party_options){.listen = CONTROL_BULK});
    for (int c = 0; c < PIPES; c++) {
        struct wire *w = &wires[c];
        *w = (struct wire){.from = -1, .to = -1, .to_port = net_port(b.net, (enum net_channel)c)};
        w->listener = tcp_listen(&w->port);
        assert_int_equal(fcntl(w->listener, F_SETFL, O_NONBLOCK), 0);
        for (int d = 0; d < 2; d++)
            assert_non_null(w->tap[d] = mem_calloc(1, sizeof *w->tap[d]));
    }
    return 0;
}

static void wire_cut(struct wire *w)
{
    if (w->from >= 0) {
        close(w->from);
        close(w->to);
    }
    w->from = w->to = -1;
}

static int teardown(void **state)
{
    (void)state;
    for (int c = 0; c < PIPES; c++) {
        wire_cut(&wires[c]);
        close(wires[c].listener);
        for (int d = 0; d < 2; d++)
            mem_free(wires[c].tap[d]);
    }
    party_close(&a);
    party_close(&b);
    return 0;
}

/* Small amounts only: a full send buffer would block. */
static bool forward(int from, int to, struct tap *tap, bool *tamper)
{
    uint8_t bytes[16384];
    ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0;
    assert_true(tap->n + (size_t)n <= TAP_BYTES);
    memcpy(tap->bytes + tap->n, bytes, (size_t)n);
    tap->n += (size_t)n;
    if (tamper && *tamper) {
        bytes[n / 2] ^= 0x10;
        *tamper = false;
    }
    return send(to, bytes, (size_t)n, MSG_NOSIGNAL) == n;
}

static void wires_step(void)
{
    for (int c = 0; c < PIPES; c++) {
        struct wire *w = &wires[c];
        int fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            wire_cut(w);
            w->from = fd;
            w->to = tcp_connect(w->to_port);
        }
        if (w->from >= 0 &&
            (!forward(w->from, w->to, w->tap[0], &w->tamper) || !forward(w->to, w->from, w->tap[1], NULL)))
            wire_cut(w);
    }
    pump((struct party *[]){&a, &b}, 2);
}

static void link_through_wires(void)
{
    uint16_t port[NET_CHANNELS] = {wires[0].port, wires[1].port, 0};
    assert_int_equal(net_admit(b.net, &a.key, 1), 0);
    assert_int_equal(net_dial(a.net, 1, &b.key, "127.0.0.1", port, CONTROL_BULK), 0);
    while (!logged(&a, NET_EVENT_UP) || !logged(&b, NET_EVENT_UP)) {
        wires_step();
        assert_int_equal(logged(&a, NET_EVENT_DIAL_FAILED), 0);
    }
    a.n_log = b.n_log = 0;
}

static void nothing_readable_passes_the_wire(void **state)
{
    (void)state;
    static const char secret[] = "SHOAL-SECRET-ACTIVATION-";
    link_through_wires();
    struct party *ways[2][2] = {{&a, &b}, {&b, &a}};
    for (int i = 0; i < 4; i++) {
        struct party *from = ways[i & 1][0], *to = ways[i & 1][1];
        struct blob *body;
        assert_int_equal(blob_new(4096, &body), 0);
        for (size_t k = 0; k < body->size; k++)
            ((char *)body->data)[k] = secret[k % (sizeof secret - 1)];
        assert_int_equal(say(from, to, (enum net_channel)(i >> 1), secret, body), 0);
        while (to->n_log == 0)
            wires_step();
        assert_text(to->log[0].head, secret);
        assert_int_equal(to->log[0].body->size, 4096);
        event_drop(&to->log[0]);
        to->n_log = 0;
    }
    for (int c = 0; c < PIPES; c++) {
        for (int d = 0; d < 2; d++) {
            const struct tap *t = wires[c].tap[d];
            assert_true(t->n > 4096);
            assert_non_null(memmem(t->bytes, t->n, "CURVE", 5)); /* the tap does see the bytes */
            assert_null(memmem(t->bytes, t->n, "SECRET", 6));
            assert_null(memmem(t->bytes, t->n, "ACTIV", 5));
        }
    }
}

static void cut_of_either_channel_is_one_down_on_both_sides(void **state)
{
    (void)state;
    for (int c = 0; c < PIPES; c++) {
        link_through_wires();
        wire_cut(&wires[c]);
        while (!logged(&a, NET_EVENT_DOWN) || !logged(&b, NET_EVENT_DOWN))
            wires_step();
        for (int i = 0; i < 5; i++)
            wires_step();
        assert_int_equal(a.n_log, 1);
        assert_int_equal(b.n_log, 1);
        assert_int_equal(a.log[0].dial_id, 1);
        assert_int_equal(say(&b, &a, NET_CONTROL, "x", NULL), -E_CLOSED);
        a.n_log = b.n_log = 0;
    }
}

static void changed_bytes_end_the_link_and_deliver_nothing(void **state)
{
    (void)state;
    link_through_wires();
    wires[NET_BULK].tamper = true;
    assert_int_equal(say(&a, &b, NET_BULK, "head", pattern_blob(4096, 2)), 0);
    while (!logged(&a, NET_EVENT_DOWN) || !logged(&b, NET_EVENT_DOWN))
        wires_step();
    assert_false(wires[NET_BULK].tamper);
    assert_int_equal(logged(&b, NET_EVENT_MESSAGE), 0);
    a.n_log = b.n_log = 0;
    link_through_wires();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_readable_passes_the_wire, setup, teardown),
        cmocka_unit_test_setup_teardown(cut_of_either_channel_is_one_down_on_both_sides, setup, teardown),
        cmocka_unit_test_setup_teardown(changed_bytes_end_the_link_and_deliver_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
