/* Messages of state on its way: snapshots, and parameters and moments in pieces. */
#include "parallel/proto_type.h"

#include "model/params.h"

static const struct proto_field snapshot_fields[] = {
    {U64(struct msg_snapshot, "version", version)},
    {BOOL(struct msg_snapshot, "drop", drop)},
};

PROTO_TYPE(snapshot);

static const struct proto_field snapshot_taken_fields[] = {
    {U64(struct msg_snapshot_taken, "version", version)},
    {U32S(struct msg_snapshot_taken, "tensors", tensors, n_tensors, TENSORS_MAX)},
    {BINS(struct msg_snapshot_taken, "digests", digests, n_tensors, TENSORS_MAX), COUNTED},
};

static int check_snapshot_taken(const struct msg *m, struct reason *why)
{
    const struct msg_snapshot_taken *s = &m->snapshot_taken;

    if (s->n_tensors > TENSORS_MAX || (s->n_tensors > 0 && s->tensors == NULL))
        return reason_set(why, -E_PROTO, "%u tensors, more than %u", s->n_tensors, TENSORS_MAX);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        if (s->tensors[i] >= TENSORS_MAX || (i > 0 && s->tensors[i] <= s->tensors[i - 1]))
            return reason_set(why, -E_PROTO, "tensor %u is out of order or out of range", s->tensors[i]);
    }
    return 0;
}

PROTO_TYPE(snapshot_taken, .check = check_snapshot_taken);

static const struct proto_field state_key_fields[] = {
    {U64(struct msg_state_key, "version", version)},
    {U32(struct msg_state_key, "tensor", tensor, TENSORS_MAX - 1)},
    {U32(struct msg_state_key, "part", part, PARAMS_PARTS - 1)},
    {U64(struct msg_state_key, "offset", offset)},
    {U64(struct msg_state_key, "n", n)},
};

static const struct proto_field state_get_fields[] = {
    {RECORD(struct msg_state_get, "key", key, state_key_fields)},
};

static int check_state_get(const struct msg *m, struct reason *why)
{
    const struct msg_state_key *key = &m->state_get.key;

    if (key->n > BODY_BYTES_MAX / sizeof(float))
        return reason_set(why, -E_PROTO, "%llu elements fit in no answer", (unsigned long long)key->n);
    return proto_check_range(key->offset, key->n, why);
}

PROTO_TYPE(state_get, .check = check_state_get);

static const struct proto_field state_chunk_fields[] = {
    {RECORD(struct msg_state_chunk, "key", key, state_key_fields)},
    {BYTES(struct msg_state_chunk, "hash", hash)},
};

static int check_state_chunk(const struct msg *m, struct reason *why)
{
    const struct msg_state_key *key = &m->state_chunk.key;
    int r = proto_check_range(key->offset, key->n, why);

    return r == 0 ? proto_check_body(m, key->n, sizeof(float), why) : r;
}

PROTO_TYPE(state_chunk, .check = check_state_chunk, .body = PROTO_BODY_MUST);
