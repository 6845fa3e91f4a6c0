/* Messages of getting in and out: who a peer is, what it can do, whom it reaches, why it goes. */
#include "parallel/proto_type.h"

#include <stddef.h>

static const struct proto_field join_fields[] = {
    {BYTES(struct msg_join, "job", job_id)},
    {BYTES(struct msg_join, "capability", capability)},
    {BYTES(struct msg_join, "key", key)},
    {U64(struct msg_join, "incarnation", incarnation)},
    {TEXT(struct msg_join, "software", software)},
    {TEXT(struct msg_join, "name", name)},
    {TEXT(struct msg_join, "device", device)},
    {U64(struct msg_join, "memory", memory_bytes)},
    {U32(struct msg_join, "threads", n_threads, UINT32_MAX)},
    {WORD(struct msg_join, "fingerprint", fingerprint)},
    {WORDS(struct msg_join, "addrs", addrs, n_addrs, ADDRS_MAX)},
    {U16(struct msg_join, "control", control_port)},
    {U16(struct msg_join, "bulk", bulk_port)},
};

static int check_join(const struct msg *m, struct reason *why)
{
    for (uint32_t i = 0; i < m->join.n_addrs && i < ADDRS_MAX; i++) {
        if (m->join.addrs[i][0] == '\0')
            return reason_set(why, -E_PROTO, "an address is empty");
    }
    return 0;
}

PROTO_TYPE(join, .check = check_join);

static const struct proto_field welcome_fields[] = {
    {U16(struct msg_welcome, "control", control_port)},
    {U16(struct msg_welcome, "bulk", bulk_port)},
};

static int check_welcome(const struct msg *m, struct reason *why)
{
    if (m->body->size == 0 || m->body->size > JOB_TEXT_MAX)
        return reason_set(why, -E_PROTO, "a job file of %zu bytes (1 to %u are possible)", m->body->size, JOB_TEXT_MAX);
    return 0;
}

PROTO_TYPE(welcome, .check = check_welcome, .body = PROTO_BODY_MUST);

static const struct proto_field refuse_fields[] = {
    {U32(struct msg_refuse, "code", code, UINT32_MAX)},
    {TEXT(struct msg_refuse, "text", text)},
};

static int check_refuse(const struct msg *m, struct reason *why)
{
    return m->refuse.code > 0 ? 0 : reason_set(why, -E_PROTO, "a refusal without a code");
}

PROTO_TYPE(refuse, .check = check_refuse);

static const struct proto_field profile_fields[] = {
    {U64(struct msg_profile, "memory", memory_bytes)},
    {F64S(struct msg_profile, "forward", forward_s, n_units, UNITS_MAX)},
    {F64S(struct msg_profile, "backward", backward_s, n_units, UNITS_MAX), COUNTED},
};

static bool is_seconds(double s)
{
    return s >= 0 && s <= __DBL_MAX__;
}

static int check_profile(const struct msg *m, struct reason *why)
{
    const struct msg_profile *p = &m->profile;

    if (p->n_units == 0 || p->n_units > UNITS_MAX || p->forward_s == NULL || p->backward_s == NULL)
        return reason_set(why, -E_PROTO, "%u units (1 to %u are possible)", p->n_units, UNITS_MAX);
    for (uint32_t i = 0; i < p->n_units; i++) {
        if (!is_seconds(p->forward_s[i]) || !is_seconds(p->backward_s[i]))
            return reason_set(why, -E_PROTO, "unit %u takes %g and %g seconds", i, p->forward_s[i], p->backward_s[i]);
    }
    return 0;
}

PROTO_TYPE(profile, .check = check_profile);

static const struct proto_field view_ack_fields[] = {
    {U64(struct msg_view_ack, "number", number)},
};

PROTO_TYPE(view_ack);

static const struct proto_field dial_fields[] = {
    {U64(struct msg_dial, "view", view)},
    {BINS(struct msg_dial, "keys", keys, n_keys, PEERS_MAX)},
};

PROTO_TYPE(dial);

static const struct proto_field link_fields[] = {
    {BYTES(struct msg_link, "key", key)},
    {BOOL(struct msg_link, "up", up)},
    {TEXT(struct msg_link, "text", text)},
};

PROTO_TYPE(link);

static const struct proto_field leave_fields[] = {
    {TEXT(struct msg_leave, "text", text)},
};

PROTO_TYPE(leave);

static const struct proto_field bye_fields[] = {
    {U32(struct msg_bye, "code", code, MSG_BYE_END - 1)},
    {TEXT(struct msg_bye, "text", text)},
};

static int check_bye(const struct msg *m, struct reason *why)
{
    return m->bye.code > 0 ? 0 : reason_set(why, -E_PROTO, "a farewell without a code");
}

PROTO_TYPE(bye, .check = check_bye);

static const struct proto_field status_get_fields[] = {
    {BYTES(struct msg_status_get, "job", job_id)},
    {BYTES(struct msg_status_get, "capability", capability)},
};

PROTO_TYPE(status_get);

/* The status is its body. */
const struct proto_type proto_type_status = {.body = PROTO_BODY_MUST};
