/* Back-pressure and shaping: what net_send accepted arrives while the link lives, what it cannot take it says. */
#include "tests/unit/net/fixture.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"

static struct party a, b;

static void open_with(const char *emulate)
{
    party_keys(&a);
    party_keys(&b);
    party_open(&a, (struct party_options){.emulate = emulate});
    party_open(&b, (struct party_options){.listen = CONTROL_BULK});
    connect_parties(&a, &b, 1, CONTROL_BULK);
}

static void close_both(void)
{
    party_close(&a);
    party_close(&b);
}

static struct blob *number_blob(uint32_t i)
{
    struct blob *head;
    assert_int_equal(blob_new(sizeof i, &head), 0);
    memcpy(head->data, &i, sizeof i);
    return head;
}

static int send_number(uint32_t i, struct blob *body)
{
    struct blob *head = number_blob(i);
    int rc = net_send(a.net, &b.key, NET_BULK, head, body);
    blob_unref(head);
    return rc;
}

static void receiver_that_does_not_poll_fills_the_queue_and_loses_nothing(void **state)
{
    (void)state;
    open_with(NULL);
    struct blob *body = pattern_blob(8u << 20, 9);
    uint32_t accepted = 0;
    int rc;
    for (int refusals = 0; refusals < 3;) { /* a is polled, b is not */
        struct net_event e;
        rc = send_number(accepted, body);
        assert_true(rc == 0 || rc == -E_AGAIN);
        accepted += rc == 0;
        refusals += rc == -E_AGAIN;
        assert_int_equal(net_poll(a.net, 0, &e), 0);
        assert_int_equal(e.kind, NET_EVENT_NONE);
        assert_true(accepted < 1000);
    }
    assert_true((uint64_t)accepted * body->size >= SEND_QUEUE_BYTES_MAX / 2);
    /* control is not behind it */
    assert_int_equal(say(&a, &b, NET_CONTROL, "urgent", NULL), 0);
    struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    event_drop(&e);
    for (uint32_t i = 0; i < accepted; i++) {
        uint32_t number;
        e = expect_message((struct party *[]){&b, &a}, 2, NET_BULK);
        assert_int_equal(e.head->size, sizeof number);
        memcpy(&number, e.head->data, sizeof number);
        assert_int_equal(number, i);
        assert_int_equal(e.body->size, body->size);
        event_drop(&e);
    }
    assert_int_equal(send_number(accepted, body), 0); /* room again */
    blob_unref(body);
    close_both();
}

static void closing_with_a_full_queue_takes_no_longer_than_promised(void **state)
{
    (void)state;
    open_with(NULL);
    struct blob *body = pattern_blob(8u << 20, 9);
    for (uint32_t i = 0; i < 60; i++)
        assert_int_equal(send_number(i, body), 0);
    int64_t start_ns = clock_now_ns();
    party_close(&a);
    int64_t took_ns = clock_now_ns() - start_ns;
    assert_true(took_ns < 5000 * NS_PER_MS); /* 500 ms, and slack for a loaded machine */
    assert_int_equal(body->refs, 1);         /* zmq let go of everything */
    blob_unref(body);
    party_close(&b);
}

static void emulated_rate_and_delay_are_lower_bounds(void **state)
{
    (void)state;
    open_with("rate=80mbit,delay=30ms"); /* 10 MB/s */
    int64_t start_ns = clock_now_ns();
    for (uint32_t i = 0; i < 4; i++) {
        struct blob *body = pattern_blob(500000, i);
        assert_int_equal(send_number(i, body), 0);
        blob_unref(body);
    }
    assert_int_equal(say(&a, &b, NET_CONTROL, "small", NULL), 0);
    struct net_event e = expect_message((struct party *[]){&b, &a}, 2, NET_CONTROL);
    assert_true(clock_now_ns() - start_ns >= 30 * NS_PER_MS);
    assert_int_equal(logged(&b, NET_EVENT_MESSAGE), 0); /* the first bulk message needs 80 ms */
    event_drop(&e);
    for (uint32_t i = 0; i < 4; i++) {
        e = expect_message((struct party *[]){&b, &a}, 2, NET_BULK);
        assert_true(clock_now_ns() - start_ns >= (30 + 50 * (i + 1)) * NS_PER_MS);
        assert_pattern(e.body, 500000, i);
        event_drop(&e);
    }
    close_both();
}

static void emulation_texts_are_read(void **state)
{
    (void)state;
    struct net_config c = {0};
    struct reason why = {0};
    assert_int_equal(net_emulate_parse("rate=20mbit,delay=40ms", &c, &why), 0);
    assert_int_equal(c.emulate_rate_bytes_s, 2500000);
    assert_int_equal(c.emulate_delay_ns, 40 * NS_PER_MS);
    assert_int_equal(net_emulate_parse("delay=1.5s", &c, &why), 0);
    assert_int_equal(c.emulate_rate_bytes_s, 0);
    assert_int_equal(c.emulate_delay_ns, 1500 * NS_PER_MS);
    assert_int_equal(net_emulate_parse("rate=1gbit", &c, &why), 0);
    assert_int_equal(c.emulate_rate_bytes_s, 125000000);
    assert_int_equal(c.emulate_delay_ns, 0);
    static const char *const bad[] = {"",
                                      "rate",
                                      "rate=",
                                      "rate=20",
                                      "rate=20mb",
                                      "rate=-1mbit",
                                      "rate=0x9mbit",
                                      "rate=infmbit",
                                      "rate=0mbit",
                                      "delay=40",
                                      "delay=4 0ms",
                                      "speed=3",
                                      ",",
                                      "rate=20mbit,",
                                      "rate=1.2.3mbit",
                                      "rate=1e9bit",
                                      "rate=nanmbit",
                                      "delay=9999999999s"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        why.text[0] = '\0';
        assert_int_equal(net_emulate_parse(bad[i], &c, &why), -E_INVAL);
        assert_non_null(strstr(why.text, "rate=20mbit,delay=40ms"));
    }
    assert_int_equal(c.emulate_rate_bytes_s, 125000000); /* untouched by failures */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(receiver_that_does_not_poll_fills_the_queue_and_loses_nothing),
        cmocka_unit_test(closing_with_a_full_queue_takes_no_longer_than_promised),
        cmocka_unit_test(emulated_rate_and_delay_are_lower_bounds),
        cmocka_unit_test(emulation_texts_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
