/* Inside proto*.c only: the list of messages, and what proto.c must know of each. A new message is its struct in
 * proto.h, a line here, and a table of fields with PROTO_TYPE in one of the files proto_join.c (getting in and out),
 * proto_step.c (a step's life), proto_state.c (state on its way), proto_view.c. */
#ifndef SHOAL_PARALLEL_PROTO_TYPE_H
#define SHOAL_PARALLEL_PROTO_TYPE_H

#include "parallel/proto.h"
#include "parallel/proto_field.h"

#define PROTO_TYPES(X)                                                                                                 \
    X(JOIN, join)                                                                                                      \
    X(WELCOME, welcome)                                                                                                \
    X(REFUSE, refuse)                                                                                                  \
    X(PROFILE, profile)                                                                                                \
    X(VIEW, view)                                                                                                      \
    X(VIEW_ACK, view_ack)                                                                                              \
    X(DIAL, dial)                                                                                                      \
    X(LINK, link)                                                                                                      \
    X(PLAN, plan)                                                                                                      \
    X(READY, ready)                                                                                                    \
    X(LEASES, leases)                                                                                                  \
    X(DONE, done)                                                                                                      \
    X(BOUNDARY, boundary)                                                                                              \
    X(NEED, need)                                                                                                      \
    X(REDUCE, reduce)                                                                                                  \
    X(CHUNK, chunk)                                                                                                    \
    X(REDUCED, reduced)                                                                                                \
    X(COMMIT, commit)                                                                                                  \
    X(HEARTBEAT, heartbeat)                                                                                            \
    X(SNAPSHOT, snapshot)                                                                                              \
    X(SNAPSHOT_TAKEN, snapshot_taken)                                                                                  \
    X(STATE_GET, state_get)                                                                                            \
    X(STATE_CHUNK, state_chunk)                                                                                        \
    X(LEAVE, leave)                                                                                                    \
    X(BYE, bye)                                                                                                        \
    X(STATUS_GET, status_get)                                                                                          \
    X(STATUS, status)

enum proto_body { PROTO_BODY_NONE, PROTO_BODY_MAY, PROTO_BODY_MUST };

struct proto_type {
    const struct proto_field *fields; /* of the message's struct in the union of struct msg */
    uint32_t n_fields;
    enum proto_body body;
    /* What several fields, or fields and body, must keep together; values alone were checked by the fields' limits.
     * 0 or -E_PROTO with the rule. May be NULL. */
    int (*check)(const struct msg *m, struct reason *why);
    /* After reading, before check: what lies inside a field. -E_PROTO, -E_NOMEM. May be NULL. */
    int (*open)(struct msg *m, struct reason *why);
    void (*done)(struct msg *m); /* frees what open made; may be NULL */
};

#define X(NAME, name) extern const struct proto_type proto_type_##name;
PROTO_TYPES(X)
#undef X

#define PROTO_TYPE(name, ...)                                                                                          \
    const struct proto_type proto_type_##name = {                                                                      \
        .fields = name##_fields, .n_fields = FIELD_COUNT(name##_fields), ##__VA_ARGS__}

/* Rules that several messages share; 0 or -E_PROTO. */
int proto_check_units(uint32_t u0, uint32_t u1, struct reason *why);
int proto_check_range(uint64_t offset, uint64_t n, struct reason *why); /* n > 0, and no overflow */
int proto_check_body(const struct msg *m, uint64_t n, uint64_t elem_size, struct reason *why);

#endif
