/* Every message of the protocol: its fields, its limits, its place. A message is a head (a msgpack map) and at most one
 * body (raw little-endian bytes whose dtype and shape the head and the plan state). proto_encode/proto_decode are the
 * only code that knows msgpack.
 *
 * Common to all heads: "t" type, "v" protocol version, "term". Unknown types decode to -E_UNSUPPORTED (skip it), other
 * versions to -E_VERSION with both versions in the sentence, everything else that is wrong to -E_PROTO. Unknown keys of
 * a map are skipped, so fields can be added. Who sent a message is what the link proved, never a field.
 *
 * Texts for people (names, devices, reasons) are cleaned on the way out and in: control characters and what is no UTF-8
 * become '?'. Hashes of bodies are not checked here, nor are signatures. */
#ifndef SHOAL_PARALLEL_PROTO_H
#define SHOAL_PARALLEL_PROTO_H

#include <stdbool.h>
#include <stdint.h>

#include "crypto/hash.h"
#include "crypto/invite.h"
#include "crypto/key.h"
#include "kernels/kern.h"
#include "parallel/plan.h"
#include "runtime/base/blob.h"
#include "runtime/base/bounds.h"
#include "runtime/base/status.h"

#define PROTO_VERSION 1u

/* Numbers are on the wire: never reuse one. */
enum msg_type {
    MSG_JOIN = 1,       /* peer -> lobby */
    MSG_WELCOME,        /* lobby -> peer; body: the job file's text */
    MSG_REFUSE,         /* lobby -> anyone */
    MSG_PROFILE,        /* peer -> coordinator */
    MSG_VIEW,           /* coordinator -> peer */
    MSG_VIEW_ACK,       /* peer -> coordinator */
    MSG_DIAL,           /* coordinator -> peer */
    MSG_LINK,           /* peer -> coordinator */
    MSG_PLAN,           /* coordinator -> peer */
    MSG_READY,          /* peer -> coordinator */
    MSG_LEASES,         /* coordinator -> peer; body: int32 tokens and targets */
    MSG_DONE,           /* peer -> coordinator */
    MSG_BOUNDARY,       /* peer -> peer, bulk; body: fp32 piece of a boundary tensor */
    MSG_NEED,           /* peer -> peer */
    MSG_REDUCE,         /* coordinator -> peer */
    MSG_CHUNK,          /* peer -> peer, bulk; body: int64 or fp32 elements */
    MSG_REDUCED,        /* peer -> coordinator */
    MSG_COMMIT,         /* coordinator -> peer */
    MSG_HEARTBEAT,      /* both ways */
    MSG_SNAPSHOT,       /* coordinator -> peer */
    MSG_SNAPSHOT_TAKEN, /* peer -> coordinator */
    MSG_STATE_GET,      /* whoever needs state -> a holder, or a peer -> coordinator */
    MSG_STATE_CHUNK,    /* the answer, bulk; body: fp32 elements */
    MSG_LEAVE,          /* peer -> coordinator */
    MSG_BYE,            /* coordinator -> peer */
    MSG_STATUS_GET,     /* anyone with the invite -> lobby */
    MSG_STATUS,         /* lobby -> anyone; body: JSON text */
    MSG_TYPE_END
};

#define MSG_FINGERPRINT_LEN 16

struct msg_join {
    uint8_t job_id[INVITE_JOB_ID_BYTES];
    uint8_t capability[INVITE_CAPABILITY_BYTES];
    struct key key;       /* Ed25519; the receiver converts it and compares it with the key the link proved */
    uint64_t incarnation; /* wall-clock ns at the process's start */
    char software[NAME_MAX_LEN + 1];
    char name[NAME_MAX_LEN + 1]; /* the host's, for people */
    char device[NAME_MAX_LEN + 1];
    uint64_t memory_bytes; /* that the peer offers */
    uint32_t n_threads;
    char fingerprint[MSG_FINGERPRINT_LEN + 1]; /* numerics class */
    uint32_t n_addrs;
    char addrs[ADDRS_MAX][HOST_MAX_LEN + 1];
    uint16_t control_port, bulk_port; /* where other peers can dial; 0 = cannot be dialled */
};

struct msg_welcome {
    uint16_t control_port, bulk_port; /* of the coordinator, at the address where the lobby answered */
};

enum msg_refusal {
    MSG_REFUSAL_VERSION = 1,
    MSG_REFUSAL_JOB,        /* another job's id */
    MSG_REFUSAL_CAPABILITY, /* not in the invite */
    MSG_REFUSAL_KEY,        /* stated key is not the link's */
    MSG_REFUSAL_FULL,
    MSG_REFUSAL_FENCED, /* an older incarnation */
    MSG_REFUSAL_OVER,   /* the job is done or stopping */
    MSG_REFUSAL_MALFORMED,
    MSG_REFUSAL_END
};

struct msg_refuse {
    uint32_t code; /* enum msg_refusal; larger values are unknown reasons, shown by their text */
    char text[TEXT_MAX_LEN + 1];
};

struct msg_profile {
    uint64_t memory_bytes; /* free for this job, measured */
    uint32_t n_units;
    double *forward_s;  /* [n_units] seconds of one microbatch, finite, >= 0 */
    double *backward_s; /* [n_units] */
};

struct msg_view_peer {
    struct key key;
    uint64_t incarnation;
    uint32_t n_addrs;
    char addrs[ADDRS_MAX][HOST_MAX_LEN + 1];
    uint16_t control_port, bulk_port;
};

/* The view travels as bytes signed by the coordinator: "view" (a msgpack map of number and peers) and "sig". Decoding
 * checks the form only; msg_view_verify the signature. */
struct msg_view {
    uint64_t number;
    uint32_t n_peers;
    struct msg_view_peer *peers;
    uint8_t *signed_bytes; /* what sig covers */
    uint32_t signed_size;
    uint8_t sig[SIGNATURE_BYTES];
};

struct msg_view_ack {
    uint64_t number;
};

struct msg_dial {
    uint64_t view;
    uint32_t n_keys;
    struct key *keys;
};

struct msg_link {
    struct key key;
    bool up;
    char text[TEXT_MAX_LEN + 1]; /* why, when down */
};

struct msg_plan {
    uint64_t version; /* state that the holders must have before step `version` */
    uint64_t seed;
    bool fetch; /* fetch that state from the coordinator; false: version 0, made from the seed */
    bool next;  /* the plan comes into force with the commit that names its epoch: state that is here stays, what is
                   joined comes from its holders; version, seed and fetch say nothing */
    struct plan plan;
};

struct msg_ready {
    uint64_t epoch;
    bool ok;
    char text[TEXT_MAX_LEN + 1]; /* why not */
};

enum msg_mode { MSG_MODE_TRAIN, MSG_MODE_EVAL, MSG_MODE_REPLAY, MSG_MODE_END };

#define MSG_NO_PEER UINT32_MAX

struct msg_lease {
    uint32_t microbatch;
    uint32_t mode; /* enum msg_mode */
    uint32_t u0, u1;
    uint32_t prev, next; /* plan peers on the route before and after, MSG_NO_PEER at the ends */
};

#define MSG_LEASES_MAX (4u * MICROBATCHES_MAX) /* of one message */

/* Body: for each lease in order its tokens (if u0 == 0), then its targets (if u1 == n_units), B*T int32 each. */
struct msg_leases {
    uint64_t epoch, step;
    float loss_scale; /* 1 / tokens of the step */
    uint32_t n_leases;
    struct msg_lease *leases;
};

struct msg_done {
    uint64_t epoch, step;
    uint32_t microbatch, mode, u0, u1;
    bool flagged; /* a gradient element was not finite or out of bounds */
    double loss;  /* sum over the microbatch's tokens; meaningful when u1 == n_units; finite unless flagged */
};

enum msg_direction { MSG_FORWARD, MSG_BACKWARD, MSG_DIRECTION_END };

struct msg_boundary_key {
    uint64_t epoch, step;
    uint32_t microbatch, mode;
    uint32_t unit;      /* the boundary between unit-1 and unit */
    uint32_t direction; /* enum msg_direction */
};

struct msg_boundary {
    struct msg_boundary_key key;
    uint64_t offset, n, total; /* elements of this piece, of the whole */
};

enum msg_chunk_kind { MSG_CHUNK_PARTIAL, MSG_CHUNK_SUM, MSG_CHUNK_KIND_END };

struct msg_chunk_key {
    uint64_t epoch, step;
    uint32_t group, attempt;
    uint32_t kind;      /* PARTIAL: a contributor's sum on its way to the range's reducer; SUM: the finished fp32 sum */
    uint64_t offset, n; /* elements of the group's flat range */
};

struct msg_need {
    bool is_chunk;
    struct msg_boundary_key boundary; /* !is_chunk */
    struct msg_chunk_key chunk;       /* is_chunk */
};

struct msg_reduce_member {
    uint32_t peer;
    bool contributes;
    uint64_t lo, hi; /* the range it reduces; empty = it only receives */
};

struct msg_reduce {
    uint64_t epoch, step;
    uint32_t group, attempt;
    uint32_t n_members;
    struct msg_reduce_member *members; /* in peer order; ranges in order, covering the group; somebody contributes */
};

struct msg_chunk {
    struct msg_chunk_key key;
    bool fixed_point; /* body is int64 (exact partial), else fp32 */
};

struct msg_reduced {
    uint64_t epoch, step;
    uint32_t group, attempt;
    uint8_t hash[HASH_BYTES]; /* of the group's fp32 sums; of who joins the group it says nothing, nor do the squares */
    uint32_t n_tensors;
    double *sum_squares; /* [n_tensors] in group order; not finite where fp32 sums overflowed */
};

struct msg_commit_group {
    uint32_t attempt;
    uint8_t hash[HASH_BYTES];
};

struct msg_commit {
    uint64_t epoch, step; /* makes version step + 1 */
    bool skipped;
    bool snapshot;       /* take a snapshot of the new version, for a checkpoint or for who joins */
    uint64_t next_epoch; /* the announced plan of that epoch is in force from the new version on; 0 = none */
    struct kern_adamw update;
    double loss, norm; /* finite unless skipped */
    uint32_t n_groups; /* 0 when skipped, and only then */
    struct msg_commit_group *groups;
};

/* How far a peer is with what its plan lets it join. */
enum msg_joining {
    MSG_JOINING_CURRENT, /* nothing is missing, up to its version */
    MSG_JOINING_LOST,    /* it waits for a commit with a snapshot to begin at */
    MSG_JOINING_BEHIND,  /* it fetches, or has steps to catch up with */
    MSG_JOINING_END
};

struct msg_heartbeat {
    uint64_t view, epoch, version; /* what the sender has */
    uint64_t step_leases; /* 1 + the newest step it has leases of, 0 = none (from the coordinator: 1 + the newest it
                             handed out) */
    uint64_t busy_ns;     /* compute time since the process's start */
    uint32_t joining;     /* enum msg_joining */
};

struct msg_snapshot {
    uint64_t version;
    bool drop; /* forget the snapshot of that version */
};

struct msg_snapshot_taken {
    uint64_t version;
    uint32_t n_tensors;
    uint32_t *tensors;              /* held tensors, ascending */
    uint8_t (*digests)[HASH_BYTES]; /* BLAKE2b of each tensor's values */
};

struct msg_state_key {
    uint64_t version;
    uint32_t tensor;
    uint32_t part; /* enum params_part */
    uint64_t offset, n;
};

struct msg_state_get {
    struct msg_state_key key;
};

struct msg_state_chunk {
    struct msg_state_key key;
    uint8_t hash[HASH_BYTES]; /* of the body */
};

struct msg_leave {
    char text[TEXT_MAX_LEN + 1];
};

enum msg_bye_code { MSG_BYE_DONE = 1, MSG_BYE_STOPPED, MSG_BYE_FENCED, MSG_BYE_FAILED, MSG_BYE_END };

struct msg_bye {
    uint32_t code;
    char text[TEXT_MAX_LEN + 1];
};

struct msg_status_get {
    uint8_t job_id[INVITE_JOB_ID_BYTES];
    uint8_t capability[INVITE_CAPABILITY_BYTES];
};

struct msg {
    enum msg_type type;
    uint64_t term;
    struct blob *body; /* a reference owned by the message; NULL = none */
    union {
        struct msg_join join;
        struct msg_welcome welcome;
        struct msg_refuse refuse;
        struct msg_profile profile;
        struct msg_view view;
        struct msg_view_ack view_ack;
        struct msg_dial dial;
        struct msg_link link;
        struct msg_plan plan;
        struct msg_ready ready;
        struct msg_leases leases;
        struct msg_done done;
        struct msg_boundary boundary;
        struct msg_need need;
        struct msg_reduce reduce;
        struct msg_chunk chunk;
        struct msg_reduced reduced;
        struct msg_commit commit;
        struct msg_heartbeat heartbeat;
        struct msg_snapshot snapshot;
        struct msg_snapshot_taken snapshot_taken;
        struct msg_state_get state_get;
        struct msg_state_chunk state_chunk;
        struct msg_leave leave;
        struct msg_bye bye;
        struct msg_status_get status_get;
    };
};

/* A zeroed message of that type; NULL when out of memory. */
struct msg *msg_new(enum msg_type type, uint64_t term);
struct msg *msg_free(struct msg *m); /* with all it owns, the body's reference included; NULL ok; returns NULL */
static inline void msg_freep(struct msg **m)
{
    *m = msg_free(*m);
}

const char *msg_name(enum msg_type type); /* "LEASES"; "?" for unknown */

/* The head of m as a new blob (the body travels beside it). -E_INVAL if m breaks a limit (our own mistake), -E_NOMEM.
 */
int proto_encode(const struct msg *m, struct blob **ret_head);

/* Survives any bytes. body (may be NULL) is referenced by the message on success. Checks everything that the message
 * alone can tell: bounds, enum values, finite numbers, body sizes that the head fixes, bodies where none belongs. What
 * only the plan can tell is the receiver's to check. */
int proto_decode(struct blob *head, struct blob *body, struct msg **ret, struct reason *why);

/* Fills signed_bytes and sig of a view from number and peers. */
int msg_view_sign(struct msg_view *view, const struct key_pair *coordinator);
bool msg_view_verify(const struct msg_view *view, const struct key *coordinator);

#endif
