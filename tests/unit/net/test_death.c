/* A process that dies by SIGKILL is noticed at once, whichever side it was on. Each test forks before its own net is
 * open; the child is a whole peer. */
#include "tests/unit/net/fixture.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clock.h"

#define NOTICED_WITHIN_NS (1000 * NS_PER_MS) /* usually 1 ms; the rest is for a loaded machine */

static struct party self, child;

/* In the child: a peer that runs until it is killed. Listens and tells its ports, or dials the ports it is told. */
static void child_main(int in, int out, bool listens)
{
    uint16_t port[NET_CHANNELS] = {0};
    party_open(&child, (struct party_options){.listen = listens ? CONTROL_BULK : 0});
    if (listens) {
        for (int c = 0; c < NET_CHANNELS; c++)
            port[c] = net_port(child.net, (enum net_channel)c);
        assert_int_equal(net_admit(child.net, &self.key, 1), 0);
        assert_int_equal(write(out, port, sizeof port), sizeof port);
    } else {
        assert_int_equal(read(in, port, sizeof port), sizeof port);
        assert_int_equal(net_dial(child.net, 1, &self.key, "127.0.0.1", port, CONTROL_BULK), 0);
    }
    for (;;)
        pump((struct party *[]){&child}, 1);
}

static pid_t start_child(bool listens, int *ret_in, int *ret_out)
{
    int to[2], from[2];
    party_keys(&self);
    party_keys(&child);
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        child_main(to[0], from[1], listens);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    *ret_in = from[0];
    *ret_out = to[1];
    return pid;
}

static void kill_and_time(pid_t pid, uint32_t dial_id, bool busy)
{
    struct party *all[] = {&self};
    if (busy) /* with megabytes under way in both directions' buffers */
        for (int i = 0; i < 8; i++)
            assert_int_equal(say(&self, &child, NET_BULK, "tensor", pattern_blob(1u << 20, 1)), 0);
    int64_t start_ns = clock_now_ns();
    assert_int_equal(kill(pid, SIGKILL), 0);
    struct net_event e = expect(all, 1, NET_EVENT_DOWN);
    int64_t took_ns = clock_now_ns() - start_ns;
    print_message("noticed after %.1f ms: %s\n", (double)took_ns / 1e6, e.why.text);
    assert_int_equal(e.dial_id, dial_id);
    assert_memory_equal(&e.key, &child.key, sizeof e.key);
    assert_true(took_ns < NOTICED_WITHIN_NS);
    assert_int_equal(say(&self, &child, NET_CONTROL, "x", NULL), -E_CLOSED);
    for (int i = 0; i < 5; i++)
        pump(all, 1);
    assert_int_equal(logged(&self, NET_EVENT_DOWN), 0); /* once */
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    party_close(&self);
}

static void killed_listener(bool busy)
{
    int in, out;
    uint16_t port[NET_CHANNELS];
    pid_t pid = start_child(true, &in, &out);
    assert_int_equal(read(in, port, sizeof port), sizeof port);
    party_open(&self, (struct party_options){0});
    assert_int_equal(net_dial(self.net, 9, &child.key, "127.0.0.1", port, CONTROL_BULK), 0);
    expect((struct party *[]){&self}, 1, NET_EVENT_UP);
    kill_and_time(pid, 9, busy);
    close(in);
    close(out);
}

static void killed_dialler(bool busy)
{
    int in, out;
    uint16_t port[NET_CHANNELS];
    pid_t pid = start_child(false, &in, &out);
    party_open(&self, (struct party_options){.listen = CONTROL_BULK});
    assert_int_equal(net_admit(self.net, &child.key, 1), 0);
    for (int c = 0; c < NET_CHANNELS; c++)
        port[c] = net_port(self.net, (enum net_channel)c);
    assert_int_equal(write(out, port, sizeof port), sizeof port);
    expect((struct party *[]){&self}, 1, NET_EVENT_UP);
    kill_and_time(pid, 0, busy);
    close(in);
    close(out);
}

static void dialler_notices_a_killed_listener(void **state)
{
    (void)state;
    killed_listener(false);
}

static void listener_notices_a_killed_dialler(void **state)
{
    (void)state;
    killed_dialler(false);
}

static void dialler_notices_a_killed_listener_while_sending(void **state)
{
    (void)state;
    killed_listener(true);
}

static void listener_notices_a_killed_dialler_while_sending(void **state)
{
    (void)state;
    killed_dialler(true);
}

/* A frozen process acknowledges nothing more once its buffers are full: the link ends, keepalive or not. */
static void a_frozen_reader_loses_its_link(void **state)
{
    (void)state;
    struct party *all[] = {&self};
    int in, out;
    uint16_t port[NET_CHANNELS];
    pid_t pid = start_child(true, &in, &out);
    assert_int_equal(read(in, port, sizeof port), sizeof port);
    party_open(&self, (struct party_options){0});
    assert_int_equal(net_dial(self.net, 9, &child.key, "127.0.0.1", port, CONTROL_BULK), 0);
    expect(all, 1, NET_EVENT_UP);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    for (int i = 0; i < 32; i++)
        assert_int_equal(say(&self, &child, NET_BULK, "tensor", pattern_blob(1u << 20, 1)), 0);
    int64_t start_ns = clock_now_ns();
    expect(all, 1, NET_EVENT_DOWN);
    assert_in_range(clock_now_ns() - start_ns, 2 * NS_PER_S, 18 * NS_PER_S);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    party_close(&self);
    close(in);
    close(out);
}

/* Many short lives: descriptors are reused at once, and each life is one UP and one DOWN. */
static void descriptor_reuse_does_not_mix_up_links(void **state)
{
    (void)state;
    party_keys(&self);
    party_open(&self, (struct party_options){.listen = CONTROL_BULK});
    struct party guests[3];
    struct net_key keys[3];
    for (int i = 0; i < 3; i++) {
        party_keys(&guests[i]);
        party_open(&guests[i], (struct party_options){0});
        keys[i] = guests[i].key;
    }
    assert_int_equal(net_admit(self.net, keys, 3), 0);
    size_t ups = 0, downs = 0;
    for (uint32_t round = 0; round < 40; round++) {
        struct party *g = &guests[round % 3];
        uint16_t port[NET_CHANNELS];
        for (int c = 0; c < NET_CHANNELS; c++)
            port[c] = net_port(self.net, (enum net_channel)c);
        assert_int_equal(net_dial(g->net, round + 1, &self.key, "127.0.0.1", port, CONTROL_BULK), 0);
        expect((struct party *[]){g, &self}, 2, NET_EVENT_UP);
        net_hangup(g->net, round + 1); /* seen by self at any later time, mixed with the next one's beginning */
    }
    struct party *all[] = {&self, &guests[0], &guests[1], &guests[2]};
    while (ups < 40 || downs < 40) {
        struct net_event e = expect(all, 4, ups <= downs ? NET_EVENT_UP : NET_EVENT_DOWN);
        *(e.kind == NET_EVENT_UP ? &ups : &downs) += 1;
    }
    assert_int_equal(self.n_log, 0);
    for (int i = 0; i < 3; i++)
        party_close(&guests[i]);
    party_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dialler_notices_a_killed_listener),
        cmocka_unit_test(listener_notices_a_killed_dialler),
        cmocka_unit_test(dialler_notices_a_killed_listener_while_sending),
        cmocka_unit_test(listener_notices_a_killed_dialler_while_sending),
        cmocka_unit_test(a_frozen_reader_loses_its_link),
        cmocka_unit_test(descriptor_reuse_does_not_mix_up_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
