/* How fast bulk travels between two processes over loopback: 1 MiB bodies through CURVE, one link, one direction.
 * Prints Gbit/s. Not a test: `meson test --benchmark`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/base/clock.h"
#include "runtime/net/net.h"

#define BODY_BYTES CHUNK_BYTES
#define MESSAGES   2048

struct side {
    uint8_t pub[NET_KEY_BYTES], secret[NET_KEY_BYTES];
};

__attribute__((noreturn)) static void die(const char *what)
{
    fprintf(stderr, "bench_net: %s\n", what);
    exit(1);
}

static struct side side_make(void)
{
    char pub[41], secret[41];
    struct side s;
    if (zmq_curve_keypair(pub, secret) != 0 || !zmq_z85_decode(s.pub, pub) || !zmq_z85_decode(s.secret, secret))
        die("no keys");
    return s;
}

static struct net *side_open(const struct side *s, bool listens)
{
    struct net_config config = {.host = "127.0.0.1", .listen = {listens, listens, false}};
    struct reason why = {0};
    struct net *n;
    memcpy(config.curve_pub, s->pub, NET_KEY_BYTES);
    memcpy(config.curve_secret, s->secret, NET_KEY_BYTES);
    if (net_open(&config, &n, &why) != 0)
        die(why.text);
    return n;
}

static struct net_event poll_next(struct net *n)
{
    struct net_event e;
    if (net_poll(n, 10000, &e) != 0)
        die("net_poll failed");
    if (e.kind == NET_EVENT_NONE || e.kind == NET_EVENT_DIAL_FAILED)
        die(e.kind == NET_EVENT_NONE ? "nothing happens" : e.why.text);
    return e;
}

/* Sends everything, then waits for the other side's word that it has it. */
static void run_sender(const struct side *self, const struct side *other, const uint16_t port[NET_CHANNELS])
{
    struct net *n = side_open(self, false);
    struct net_key key;
    struct blob *head, *body;
    memcpy(key.bytes, other->pub, sizeof key.bytes);
    if (net_dial(n, 1, &key, "127.0.0.1", port, 1u << NET_CONTROL | 1u << NET_BULK) != 0 || blob_new(64, &head) != 0 ||
        blob_new(BODY_BYTES, &body) != 0)
        die("cannot start");
    memset(head->data, 1, head->size);
    memset(body->data, 2, body->size);
    while (poll_next(n).kind != NET_EVENT_UP)
        ;
    for (int sent = 0; sent < MESSAGES;) {
        struct net_event e;
        int rc = net_send(n, &key, NET_BULK, head, body);
        if (rc == 0)
            sent++;
        else if (rc != -E_AGAIN || net_poll(n, 1, &e) != 0)
            die("cannot send");
    }
    struct net_event done = poll_next(n);
    blob_unref(done.head);
    blob_unref(head);
    blob_unref(body);
    net_free(n);
}

static void run_receiver(struct net *n)
{
    int64_t start_ns = 0;
    struct net_event e;
    for (int received = 0; received < MESSAGES;) {
        e = poll_next(n);
        if (e.kind != NET_EVENT_MESSAGE)
            continue;
        if (received++ == 0)
            start_ns = clock_now_ns();
        if (received == MESSAGES) {
            double seconds = (double)(clock_now_ns() - start_ns) / 1e9;
            printf("bulk: %d MiB in %.2f s, %.2f Gbit/s\n", MESSAGES, seconds,
                   (double)(MESSAGES - 1) * BODY_BYTES * 8 / seconds / 1e9);
            if (net_send(n, &e.key, NET_CONTROL, e.head, NULL) != 0)
                die("cannot answer");
        }
        blob_unref(e.head);
        blob_unref(e.body);
    }
    while (poll_next(n).kind != NET_EVENT_DOWN)
        ;
}

int main(void)
{
    struct side listener = side_make(), dialler = side_make();
    int ports[2];
    uint16_t port[NET_CHANNELS] = {0};
    if (pipe(ports) != 0)
        die("no pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("no process");
    if (pid == 0) {
        if (read(ports[0], port, sizeof port) != sizeof port)
            _exit(1);
        run_sender(&dialler, &listener, port);
        _exit(0);
    }
    struct net *n = side_open(&listener, true);
    struct net_key key;
    memcpy(key.bytes, dialler.pub, sizeof key.bytes);
    if (net_admit(n, &key, 1) != 0)
        die("out of memory");
    for (int c = 0; c < NET_CHANNELS; c++)
        port[c] = net_port(n, (enum net_channel)c);
    if (write(ports[1], port, sizeof port) != sizeof port)
        die("no pipe");
    run_receiver(n);
    net_free(n);
    int status = 1;
    waitpid(pid, &status, 0);
    return status == 0 ? 0 : 1;
}
