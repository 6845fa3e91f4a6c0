/* The coordinator's process as its guests and peers meet it: real sockets, the loop in a thread of its own, the other
 * side played by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "scheduler/coordinator_impl.h"
#include "tests/unit/tsan.h"

#define PATIENCE_NS (20 * NS_PER_S)

static const char job_text[] = "name: door\n"
                               "model: {arch: gpt2, layers: 1, heads: 1, embd: 8, context: 8}\n"
                               "data: {paths: [text], validation: 0.1}\n"
                               "train: {steps: 4, microbatches: 1, sequences: 1, lr: 1e-3}\n";

static char dir[] = "/tmp/shoal-coordinator-XXXXXX";
static struct job job;
static struct key_pair key;
static struct coordinator *coordinator;
static pthread_t thread;
static bool running;
static int status;
static struct invite invite;

struct guest {
    struct key_pair key;
    struct wire wire;
};

static void ignore(void *arg, const struct note *n)
{
    (void)arg;
    (void)n;
}

static void *run(void *arg)
{
    struct reason why = {0};
    status = coordinator_run(coordinator, &why);
    return arg;
}

static int setup(void **state)
{
    (void)state;
    struct reason why = {0};
    char path[64], run_dir[64];
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/text", dir);
    snprintf(run_dir, sizeof run_dir, "%s/run", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 100; i++)
        fputs("all work and no play makes jack a dull boy\n", f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(key_generate(&key), 0);
    if (job_parse(job_text, strlen(job_text), dir, &job, &why) < 0)
        fail_msg("%s", why.text);
    const struct coordinator_config config = {
        .job = &job, .job_text = job_text, .run_dir = run_dir, .key = &key, .host = "127.0.0.1", .note = ignore};
    if (coordinator_new(&config, &coordinator, &why) < 0)
        fail_msg("%s", why.text);
    assert_int_equal(invite_decode(coordinator_invite(coordinator), &invite, &why), 0);
    assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
    running = true;
    return 0;
}

static void finish(void)
{
    assert_int_equal(pthread_join(thread, NULL), 0);
    running = false;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    if (running) {
        coordinator_stop(coordinator);
        finish();
    }
    coordinator = coordinator_free(coordinator);
    job_done(&job);
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

static void guest_open(struct guest *g)
{
    struct reason why = {0};
    struct net_config config = {.host = "127.0.0.1"};
    *g = (struct guest){0};
    assert_int_equal(key_generate(&g->key), 0);
    memcpy(config.curve_pub, g->key.curve_pub, NET_KEY_BYTES);
    memcpy(config.curve_secret, g->key.curve_secret, NET_KEY_BYTES);
    assert_int_equal(net_open(&config, &g->wire.net, &why), 0);
    assert_int_equal(wire_learn(&g->wire, &invite.coordinator, NULL), 0);
}

static void guest_close(struct guest *g)
{
    net_free(g->wire.net);
    wire_done(&g->wire);
}

static struct net_event expect(struct guest *g, enum net_event_kind kind)
{
    int64_t until = clock_now_ns() + PATIENCE_NS;
    while (clock_now_ns() < until) {
        struct net_event e;
        assert_int_equal(net_poll(g->wire.net, 20, &e), 0);
        if (e.kind == kind)
            return e;
        blob_unref(e.head);
        blob_unref(e.body);
    }
    fail_msg("no event of kind %d", (int)kind);
    return (struct net_event){0};
}

static void guest_dial(struct guest *g, uint32_t id, const uint16_t port[NET_CHANNELS], uint32_t channels)
{
    struct net_key curve;
    assert_int_equal(key_to_curve(&invite.coordinator, curve.bytes), 0);
    assert_int_equal(net_dial(g->wire.net, id, &curve, "127.0.0.1", port, channels), 0);
    expect(g, NET_EVENT_UP);
}

static void guest_enter(struct guest *g)
{
    guest_open(g);
    guest_dial(g, 1, (uint16_t[NET_CHANNELS]){[NET_LOBBY] = invite.addrs[0].port}, 1u << NET_LOBBY);
}

/* The next message of the type. */
static struct msg *hear(struct guest *g, enum msg_type type)
{
    for (;;) {
        struct net_event e = expect(g, NET_EVENT_MESSAGE);
        struct reason why = {0};
        struct msg *m;
        assert_int_equal(wire_receive(&g->wire, &e, &m, &why), 0);
        if (m->type == type)
            return m;
        msg_free(m);
    }
}

static void say_join(struct guest *g, const uint8_t *capability)
{
    struct msg *m = msg_new(MSG_JOIN, 0);
    assert_non_null(m);
    m->join.key = g->key.pub;
    m->join.incarnation = 1;
    memcpy(m->join.job_id, invite.job_id, sizeof m->join.job_id);
    memcpy(m->join.capability, capability, sizeof m->join.capability);
    snprintf(m->join.name, sizeof m->join.name, "guest");
    snprintf(m->join.device, sizeof m->join.device, "none");
    snprintf(m->join.software, sizeof m->join.software, "test");
    snprintf(m->join.fingerprint, sizeof m->join.fingerprint, "0");
    snprintf(m->join.addrs[0], sizeof m->join.addrs[0], "127.0.0.1");
    m->join.n_addrs = 1;
    m->join.control_port = m->join.bulk_port = 9;
    m->join.n_threads = 1;
    m->join.memory_bytes = 1u << 20;
    assert_int_equal(wire_send(&g->wire, &invite.coordinator, m), 0);
    msg_free(m);
}

static void expect_refusal(struct guest *g, enum msg_refusal code)
{
    struct msg *m = hear(g, MSG_REFUSE);
    assert_int_equal(m->refuse.code, code);
    msg_free(m);
}

/* A peer by hand: joined and linked. */
static void guest_become_peer(struct guest *g)
{
    guest_enter(g);
    say_join(g, invite.capability);
    struct msg *m = hear(g, MSG_WELCOME);
    guest_dial(g, 2, (uint16_t[NET_CHANNELS]){m->welcome.control_port, m->welcome.bulk_port},
               1u << NET_CONTROL | 1u << NET_BULK);
    msg_free(m);
    msg_free(hear(g, MSG_VIEW));
}

static void keys_without_capability_leave_no_trace(void **state)
{
    (void)state;
    static const uint8_t wrong[INVITE_CAPABILITY_BYTES] = {1};
    struct guest peer;
    guest_become_peer(&peer);
    for (int i = 0; i < 10; i++) {
        struct guest g;
        guest_enter(&g);
        say_join(&g, wrong);
        expect_refusal(&g, MSG_REFUSAL_CAPABILITY);
        guest_close(&g);
    }
    guest_close(&peer);
    coordinator_stop(coordinator);
    finish();
    assert_int_equal(coordinator->wire.n, 1);
}

static void keys_that_left_the_view_are_forgotten(void **state)
{
    (void)state;
    struct wire w = {0};
    struct key_pair k[3];
    struct net_key curve[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(key_generate(&k[i]), 0);
        assert_int_equal(wire_learn(&w, &k[i].pub, &curve[i]), 0);
    }
    wire_keep(&w, (struct key[]){k[2].pub, k[0].pub}, 2);
    assert_int_equal(w.n, 2);
    assert_true(key_equal(wire_who(&w, &curve[0]), &k[0].pub));
    assert_null(wire_who(&w, &curve[1]));
    assert_true(key_equal(wire_who(&w, &curve[2]), &k[2].pub));
    wire_done(&w);
}

static void a_guest_that_sends_nonsense_is_told_and_hung_up_on(void **state)
{
    (void)state;
    struct guest g;
    struct net_key curve;
    struct blob *nonsense;
    guest_enter(&g);
    assert_int_equal(key_to_curve(&invite.coordinator, curve.bytes), 0);
    assert_int_equal(blob_new(100, &nonsense), 0);
    memset(nonsense->data, 0xc1, 100);
    assert_int_equal(net_send(g.wire.net, &curve, NET_LOBBY, nonsense, NULL), 0);
    blob_unref(nonsense);
    expect_refusal(&g, MSG_REFUSAL_MALFORMED);
    expect(&g, NET_EVENT_DOWN);
    guest_close(&g);
}

/* When the run is over its process stays until its peers have hung up, and tells newcomers why they cannot join. */
static void the_end_waits_for_peers_to_read_it(void **state)
{
    (void)state;
    struct guest peer, late;
    guest_become_peer(&peer);
    coordinator_stop(coordinator);
    struct msg *m = hear(&peer, MSG_BYE);
    assert_int_equal(m->bye.code, MSG_BYE_STOPPED);
    msg_free(m);
    guest_enter(&late);
    say_join(&late, invite.capability);
    expect_refusal(&late, MSG_REFUSAL_OVER);
    guest_close(&late);
    int64_t closed_at = clock_now_ns();
    guest_close(&peer);
    finish();
    assert_int_equal(status, -E_CANCELED);
    assert_true(clock_now_ns() - closed_at < 2 * NS_PER_S);
}

static void the_end_does_not_wait_for_ever(void **state)
{
    (void)state;
    struct guest peer;
    guest_become_peer(&peer);
    coordinator_stop(coordinator);
    finish(); /* though the peer keeps its link */
    assert_int_equal(status, -E_CANCELED);
    guest_close(&peer);
}

int main(void)
{
    struct reason why = {0};
    if (key_setup(&why) < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys_without_capability_leave_no_trace, setup, teardown),
        cmocka_unit_test(keys_that_left_the_view_are_forgotten),
        cmocka_unit_test_setup_teardown(a_guest_that_sends_nonsense_is_told_and_hung_up_on, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_waits_for_peers_to_read_it, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_does_not_wait_for_ever, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
