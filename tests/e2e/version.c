/* Another protocol version at either end of the lobby: a peer of an older version gets a sentence that it can show, and
 * a peer that meets a newer coordinator says so. Real sockets on loopback; the other version is our own message with
 * its number changed. */
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

#include "crypto/invite.h"
#include "model/job.h"
#include "parallel/wire.h"
#include "peer/join.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"
#include "scheduler/coordinator.h"

#define LIMIT_NS (30 * NS_PER_S)

static const char job_text[] = "name: version\nmodel: {arch: gpt2, layers: 1, heads: 1, embd: 8, context: 8}\n"
                               "data: {paths: [text], validation: 0.5}\ntrain: {steps: 1}\n";

/* The encoded message with another protocol version: its head holds the pair "v": PROTO_VERSION once. */
static struct blob *of_version(const struct msg *m, uint8_t version)
{
    struct blob *head = NULL;

    assert_int_equal(proto_encode(m, &head), 0);
    uint8_t *v = memmem(head->data, head->size, "\xa1v\x01", 3);

    assert_non_null(v);
    v[2] = version;
    return head;
}

static struct net *open_net(const struct key_pair *key, bool lobby)
{
    struct net_config config = {.host = "127.0.0.1", .listen = {[NET_LOBBY] = lobby}};
    struct net *net = NULL;

    memcpy(config.curve_pub, key->curve_pub, NET_KEY_BYTES);
    memcpy(config.curve_secret, key->curve_secret, NET_KEY_BYTES);
    assert_int_equal(net_open(&config, &net, NULL), 0);
    return net;
}

static void ignore(void *arg, const struct note *n)
{
    (void)arg;
    (void)n;
}

static void *run(void *coordinator)
{
    coordinator_run(coordinator, NULL);
    return NULL;
}

/* Polls until a message comes; the lobby's key goes to *ret_from. */
static struct msg *wait_message(struct wire *wire, struct net_key *ret_from)
{
    int64_t until = clock_now_ns() + LIMIT_NS;
    struct msg *m = NULL;

    while (!m && clock_now_ns() < until) {
        struct net_event e = {0};

        assert_int_equal(net_poll(wire->net, 100, &e), 0);
        if (e.kind == NET_EVENT_MESSAGE)
            assert_int_equal(wire_receive(wire, &e, &m, NULL), 0);
        if (m && ret_from)
            *ret_from = e.key;
    }
    assert_non_null(m);
    return m;
}

static void an_older_peer_is_told_both_versions(void **state)
{
    char dir[] = "/tmp/shoal-version-XXXXXX", text[256];
    struct key_pair self, other;
    struct job job;
    struct coordinator *c = NULL;
    struct invite invite;
    struct net_key lobby;
    pthread_t thread;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(text, sizeof text, "%s/text", dir);
    assert_int_equal(file_write(text, job_text, sizeof job_text - 1, 0600, NULL), 0);
    assert_int_equal(job_parse(job_text, sizeof job_text - 1, dir, &job, NULL), 0);
    assert_int_equal(key_generate(&self), 0);
    assert_int_equal(key_generate(&other), 0);
    struct coordinator_config config = {
        .job = &job, .job_text = job_text, .run_dir = dir, .key = &self, .host = "127.0.0.1", .note = ignore};

    assert_int_equal(coordinator_new(&config, &c, NULL), 0);
    assert_int_equal(invite_decode(coordinator_invite(c), &invite, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, run, c), 0);

    struct wire wire = {.net = open_net(&other, false)};
    uint16_t port[NET_CHANNELS] = {[NET_LOBBY] = invite.addrs[0].port};
    struct msg *join = msg_new(MSG_JOIN, 0);
    struct net_event up = {0};

    assert_int_equal(wire_learn(&wire, &invite.coordinator, &lobby), 0);
    assert_int_equal(net_dial(wire.net, 1, &lobby, "127.0.0.1", port, 1u << NET_LOBBY), 0);
    while (up.kind != NET_EVENT_UP)
        assert_int_equal(net_poll(wire.net, 1000, &up), 0);
    join->join.key = other.pub;
    snprintf(join->join.fingerprint, sizeof join->join.fingerprint, "0123456789abcdef");
    struct blob *head = of_version(join, 0);

    assert_int_equal(net_send(wire.net, &lobby, NET_LOBBY, head, NULL), 0);
    struct msg *answer = wait_message(&wire, NULL);

    assert_int_equal(answer->type, MSG_REFUSE);
    assert_int_equal(answer->refuse.code, MSG_REFUSAL_VERSION);
    assert_non_null(strstr(answer->refuse.text, "version 0"));
    assert_non_null(strstr(answer->refuse.text, "version 1"));
    msg_free(answer);
    msg_free(join);
    blob_unref(head);
    coordinator_stop(c);
    pthread_join(thread, NULL);
    coordinator_free(c);
    net_free(wire.net);
    wire_done(&wire);
    job_done(&job);
    file_remove_tree(dir, NULL);
}

static void a_peer_says_that_the_coordinator_is_newer(void **state)
{
    struct key_pair self, other;
    struct wire lobby, peer;
    struct invite invite = {.n_addrs = 1};
    struct msg_join hello = {.fingerprint = "0123456789abcdef"};
    struct join join;
    struct net_key from;
    struct reason why = {0};
    int status = 0;

    (void)state;
    assert_int_equal(key_generate(&self), 0);
    assert_int_equal(key_generate(&other), 0);
    lobby = (struct wire){.net = open_net(&self, true)};
    peer = (struct wire){.net = open_net(&other, false)};
    invite.coordinator = self.pub;
    snprintf(invite.addrs[0].host, sizeof invite.addrs[0].host, "127.0.0.1");
    invite.addrs[0].port = net_port(lobby.net, NET_LOBBY);
    hello.key = other.pub;
    assert_int_equal(join_start(&join, &peer, &invite, &hello, clock_now_ns(), &why), 0);

    struct msg *refuse = msg_new(MSG_REFUSE, 0);
    bool answered = false;

    refuse->refuse.code = MSG_REFUSAL_VERSION;
    struct blob *head = of_version(refuse, 2);
    int64_t until = clock_now_ns() + LIMIT_NS;

    while (status == 0 && clock_now_ns() < until) {
        struct net_event e = {0};

        assert_int_equal(net_poll(lobby.net, 0, &e), 0);
        if (e.kind == NET_EVENT_MESSAGE && !answered) {
            struct msg *m = NULL;

            from = e.key;
            assert_int_equal(wire_receive(&lobby, &e, &m, NULL), 0);
            msg_free(m);
            assert_int_equal(net_send(lobby.net, &from, NET_LOBBY, head, NULL), 0);
            answered = true;
        }
        e = (struct net_event){0};
        assert_int_equal(net_poll(peer.net, 10, &e), 0);
        status = join_event(&join, &e, clock_now_ns(), &why);
    }
    assert_int_equal(status, -E_VERSION);
    assert_non_null(strstr(why.text, "version 2"));
    assert_non_null(strstr(why.text, "version 1"));
    msg_free(refuse);
    blob_unref(head);
    join_done(&join);
    net_free(lobby.net);
    net_free(peer.net);
    wire_done(&lobby);
    wire_done(&peer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_older_peer_is_told_both_versions),
        cmocka_unit_test(a_peer_says_that_the_coordinator_is_newer),
    };

    key_setup(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
