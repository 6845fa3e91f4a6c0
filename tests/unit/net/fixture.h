/* What the net tests share: parties with fresh keys on loopback, all pumped by one thread, and waiting for events
 * instead of sleeping. */
#ifndef SHOAL_TESTS_UNIT_NET_FIXTURE_H
#define SHOAL_TESTS_UNIT_NET_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/net/net.h"

#define PARTIES_MAX  4
#define CONTROL_BULK (1u << NET_CONTROL | 1u << NET_BULK)
#define LOBBY        (1u << NET_LOBBY)
#define PATIENCE_NS  (INT64_C(20) * 1000 * 1000 * 1000)

struct party {
    struct net *net;
    struct net_key key;
    uint8_t secret[NET_KEY_BYTES];
    struct net_event *log; /* what came and was not asked for yet, oldest first */
    size_t n_log, cap_log;
};

struct party_options {
    uint32_t listen; /* bit set of channels */
    const char *emulate;
};

void party_keys(struct party *p); /* draws keys only */
void party_open(struct party *p, struct party_options options);
void party_close(struct party *p);

/* Polls every party once, waiting a little on the first. */
void pump(struct party **parties, size_t n);

/* The next event of kind at parties[0] (others stay in the log), pumping all parties until it comes; fails the test
 * after PATIENCE_NS. */
struct net_event expect(struct party **parties, size_t n, enum net_event_kind kind);
struct net_event expect_message(struct party **parties, size_t n, enum net_channel channel);
size_t logged(const struct party *p, enum net_event_kind kind);
void event_drop(struct net_event *e);

void dial(struct party *from, struct party *to, uint32_t dial_id, uint32_t channels); /* to admits from */
void dial_port(struct party *from, const struct net_key *key, uint32_t dial_id, uint16_t port, uint32_t channels);
void connect_parties(struct party *from, struct party *to, uint32_t dial_id, uint32_t channels);

struct blob *text_blob(const char *text);
struct blob *pattern_blob(size_t size, uint32_t seed);
void assert_pattern(const struct blob *b, size_t size, uint32_t seed);
void assert_text(const struct blob *b, const char *text);
/* Sends head (and body); the blobs are dropped. */
int say(struct party *from, const struct party *to, enum net_channel channel, const char *head, struct blob *body);

/* A listening TCP socket of ours on 127.0.0.1. */
int tcp_listen(uint16_t *ret_port);
int tcp_connect(uint16_t port);

#endif
