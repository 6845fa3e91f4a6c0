/* A peer's process: an I/O thread that owns every socket and a compute thread that owns the device, around the pure
 * engine worker. */
#ifndef SHOAL_PEER_PEER_H
#define SHOAL_PEER_PEER_H

#include "crypto/invite.h"
#include "crypto/key.h"
#include "runtime/base/status.h"

struct peer_config {
    const struct invite *invite;
    const struct key_pair *key;
    const char *device;    /* NULL = the best there is */
    int n_threads;         /* 0 = all of this machine's */
    uint64_t memory_bytes; /* offered; 0 = what is available, with a margin */
    double speed;          /* fraction of full speed, (0, 1] */
    const char *host;      /* address to listen on for other peers; NULL = chosen from where the coordinator is */
    uint16_t port;         /* control; bulk is port + 1; 0 = the kernel's choice */
    const char *emulate;   /* net_emulate_parse; NULL = none */
    int64_t patience_ns;   /* so long a coordinator that is gone is waited for; 0 = five minutes */
    void (*say)(
        void *arg,
        const char *line); /* one line for people about what goes on; may be NULL. Called on the calling thread. */
    void *say_arg;
};

struct peer;

int peer_new(const struct peer_config *config, struct peer **ret, struct reason *why);
struct peer *peer_free(struct peer *p); /* NULL ok */

/* Joins, works, and returns when the job is over (0), this peer left (-E_CANCELED), or it cannot go on: -E_UNREACHABLE
 * (nobody answers), -E_AUTH (refused or another key), -E_VERSION, -E_PEER (the coordinator is gone), ... with a
 * sentence that says what to type next. */
int peer_run(struct peer *p, struct reason *why);

/* Asks it to leave politely; called again: at once. Any thread, or a signal handler's. */
void peer_stop(struct peer *p);

#endif
