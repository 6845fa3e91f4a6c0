/* What a coordinator tells the people and programs that watch it: one note per event, a value. The command line prints
 * them as lines or JSON. */
#ifndef SHOAL_SCHEDULER_NOTE_H
#define SHOAL_SCHEDULER_NOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "crypto/hash.h"
#include "crypto/key.h"

enum note_kind {
    NOTE_INVITE,     /* text: the invite */
    NOTE_WAITING,    /* text: what is being waited for, in words: "waiting for 2 more peers" */
    NOTE_PEER,       /* key, name, peer_state, text: why (left, dead) or what it brings (joined) */
    NOTE_PLAN,       /* epoch, n_peers, seconds: predicted, text: plan_print's table */
    NOTE_STEP,       /* step, loss, norm, lr, seconds, tokens_per_s, epoch, n_peers, skipped */
    NOTE_EVAL,       /* step, loss */
    NOTE_CHECKPOINT, /* step, text: path */
    NOTE_WARNING,    /* text */
    NOTE_RELEASED,   /* key, name: who is gone; step, n_leases: how many of the step went to others (0: nothing that it
                        had was missing), seconds: since it was last heard */
    NOTE_ROLLBACK,   /* the run goes back to step: text */
    NOTE_DONE,       /* step: steps, loss, hash, eval_loss, unigram_loss, text: last checkpoint's path */
    NOTE_STOPPED,    /* the run ended before its last step: step, text: why, and what to type next */
};

enum note_peer_state { NOTE_PEER_JOINED, NOTE_PEER_LEFT, NOTE_PEER_DEAD };

struct note {
    enum note_kind kind;
    struct key key;
    const char *name; /* valid during the call; NULL where unused */
    enum note_peer_state peer_state;
    uint64_t step, epoch, steps_total;
    uint32_t n_peers, n_leases;
    bool skipped;
    double loss, norm, lr, seconds, tokens_per_s, eval_loss, unigram_loss;
    uint8_t hash[HASH_BYTES];
    const char *text; /* valid during the call; NULL where unused */
};

typedef void (*note_fn)(void *arg, const struct note *note);

#endif
