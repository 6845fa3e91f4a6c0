/* Messages of a step's life: the plan, leases, boundaries, the reduce, the commit, the pulse. */
#include "parallel/proto_type.h"

#include <math.h>
#include <string.h>

#define MICROBATCH_LAST (MICROBATCHES_MAX - 1)

static const struct proto_field plan_peer_fields[] = {
    {BYTES(struct plan_peer, "key", key)},
    {U64(struct plan_peer, "incarnation", incarnation)},
};

static const struct proto_field plan_stage_fields[] = {
    {U32(struct plan_stage, "u0", u0, UNITS_MAX)},
    {U32(struct plan_stage, "u1", u1, UNITS_MAX)},
    {U32(struct plan_stage, "first", first_holder, HOLDERS_MAX)},
    {U32(struct plan_stage, "n", n_holders, HOLDERS_MAX)},
};

static const struct proto_field plan_holder_fields[] = {
    {U32(struct plan_holder, "peer", peer, PEERS_MAX - 1)},
    {U32(struct plan_holder, "weight", weight, PLAN_WEIGHT_MAX)},
    {U32(struct plan_holder, "joining", joining, 1)},
};

static const struct proto_field plan_fields[] = {
    {U64(struct msg_plan, "version", version)},
    {U64(struct msg_plan, "seed", seed)},
    {BOOL(struct msg_plan, "fetch", fetch)},
    {BOOL(struct msg_plan, "next", next)},
    {U64(struct msg_plan, "epoch", plan.epoch)},
    {U32(struct msg_plan, "units", plan.n_units, UNITS_MAX)},
    {RECORDS(struct msg_plan, "peers", plan.peers, plan.n_peers, PEERS_MAX, plan_peer_fields)},
    {RECORDS(struct msg_plan, "stages", plan.stages, plan.n_stages, STAGES_MAX, plan_stage_fields)},
    {RECORDS(struct msg_plan, "holders", plan.holders, plan.n_holders, HOLDERS_MAX, plan_holder_fields)},
    {U32(struct msg_plan, "in_flight", plan.in_flight, MICROBATCHES_MAX)},
    {F64(struct msg_plan, "predicted", plan.predicted_seconds)},
};

static int check_plan(const struct msg *m, struct reason *why)
{
    if (!m->plan.fetch && m->plan.version != 0)
        return reason_set(why, -E_PROTO, "version %llu can't be made from a seed", (unsigned long long)m->plan.version);
    return plan_validate(&m->plan.plan, m->plan.plan.n_units, why) == 0 ? 0 : -E_PROTO;
}

PROTO_TYPE(plan, .check = check_plan);

static const struct proto_field ready_fields[] = {
    {U64(struct msg_ready, "epoch", epoch)},
    {BOOL(struct msg_ready, "ok", ok)},
    {TEXT(struct msg_ready, "text", text)},
};

PROTO_TYPE(ready);

static const struct proto_field lease_fields[] = {
    {U32(struct msg_lease, "microbatch", microbatch, MICROBATCH_LAST)},
    {U32(struct msg_lease, "mode", mode, MSG_MODE_END - 1)},
    {U32(struct msg_lease, "u0", u0, UNITS_MAX)},
    {U32(struct msg_lease, "u1", u1, UNITS_MAX)},
    {U32(struct msg_lease, "prev", prev, UINT32_MAX)},
    {U32(struct msg_lease, "next", next, UINT32_MAX)},
};

static const struct proto_field leases_fields[] = {
    {U64(struct msg_leases, "epoch", epoch)},
    {U64(struct msg_leases, "step", step)},
    {F32(struct msg_leases, "scale", loss_scale)},
    {RECORDS(struct msg_leases, "leases", leases, n_leases, MSG_LEASES_MAX, lease_fields)},
};

static bool is_neighbour(uint32_t peer)
{
    return peer < PEERS_MAX || peer == MSG_NO_PEER;
}

static int check_leases(const struct msg *m, struct reason *why)
{
    const struct msg_leases *l = &m->leases;

    if (!(l->loss_scale >= 0))
        return reason_set(why, -E_PROTO, "the loss is scaled by %g", (double)l->loss_scale);
    if (m->body != NULL && m->body->size % sizeof(int32_t) != 0)
        return reason_set(why, -E_PROTO, "a body of %zu bytes is cut inside a token", m->body->size);
    if (l->n_leases > MSG_LEASES_MAX || (l->n_leases > 0 && l->leases == NULL))
        return reason_set(why, -E_PROTO, "%u leases, more than %u", l->n_leases, MSG_LEASES_MAX);
    for (uint32_t i = 0; i < l->n_leases; i++) {
        const struct msg_lease *lease = &l->leases[i];

        if (!is_neighbour(lease->prev) || !is_neighbour(lease->next))
            return reason_set(why, -E_PROTO, "lease %u has neighbours %u and %u", i, lease->prev, lease->next);
        if (proto_check_units(lease->u0, lease->u1, why) < 0)
            return -E_PROTO;
    }
    return 0;
}

PROTO_TYPE(leases, .check = check_leases, .body = PROTO_BODY_MAY);

static const struct proto_field done_fields[] = {
    {U64(struct msg_done, "epoch", epoch)},
    {U64(struct msg_done, "step", step)},
    {U32(struct msg_done, "microbatch", microbatch, MICROBATCH_LAST)},
    {U32(struct msg_done, "mode", mode, MSG_MODE_END - 1)},
    {U32(struct msg_done, "u0", u0, UNITS_MAX)},
    {U32(struct msg_done, "u1", u1, UNITS_MAX)},
    {BOOL(struct msg_done, "flagged", flagged)},
    {F64_ANY(struct msg_done, "loss", loss)},
};

static int check_done(const struct msg *m, struct reason *why)
{
    if (!isfinite(m->done.loss) && !m->done.flagged)
        return reason_set(why, -E_PROTO, "a loss of %g without a flag", m->done.loss);
    return proto_check_units(m->done.u0, m->done.u1, why);
}

PROTO_TYPE(done, .check = check_done);

static const struct proto_field boundary_key_fields[] = {
    {U64(struct msg_boundary_key, "epoch", epoch)},
    {U64(struct msg_boundary_key, "step", step)},
    {U32(struct msg_boundary_key, "microbatch", microbatch, MICROBATCH_LAST)},
    {U32(struct msg_boundary_key, "mode", mode, MSG_MODE_END - 1)},
    {U32(struct msg_boundary_key, "unit", unit, UNITS_MAX - 1)},
    {U32(struct msg_boundary_key, "direction", direction, MSG_DIRECTION_END - 1)},
};

static int check_boundary_key(const struct msg_boundary_key *key, struct reason *why)
{
    return key->unit > 0 ? 0 : reason_set(why, -E_PROTO, "there is no boundary before unit 0");
}

static const struct proto_field boundary_fields[] = {
    {RECORD(struct msg_boundary, "key", key, boundary_key_fields)},
    {U64(struct msg_boundary, "offset", offset)},
    {U64(struct msg_boundary, "n", n)},
    {U64(struct msg_boundary, "total", total)},
};

static int check_boundary(const struct msg *m, struct reason *why)
{
    const struct msg_boundary *b = &m->boundary;
    int r = check_boundary_key(&b->key, why);

    if (r == 0)
        r = proto_check_range(b->offset, b->n, why);
    if (r == 0 && b->offset + b->n > b->total)
        r = reason_set(why, -E_PROTO, "a piece that ends at %llu of %llu", (unsigned long long)(b->offset + b->n),
                       (unsigned long long)b->total);
    return r == 0 ? proto_check_body(m, b->n, sizeof(float), why) : r;
}

PROTO_TYPE(boundary, .check = check_boundary, .body = PROTO_BODY_MUST);

static const struct proto_field chunk_key_fields[] = {
    {U64(struct msg_chunk_key, "epoch", epoch)},
    {U64(struct msg_chunk_key, "step", step)},
    {U32(struct msg_chunk_key, "group", group, GROUPS_MAX - 1)},
    {U32(struct msg_chunk_key, "attempt", attempt, UINT32_MAX)},
    {U32(struct msg_chunk_key, "kind", kind, MSG_CHUNK_KIND_END - 1)},
    {U64(struct msg_chunk_key, "offset", offset)},
    {U64(struct msg_chunk_key, "n", n)},
};

static const struct proto_field need_fields[] = {
    {BOOL(struct msg_need, "is_chunk", is_chunk)},
    {RECORD(struct msg_need, "boundary", boundary, boundary_key_fields), IF_UNSET(struct msg_need, is_chunk)},
    {RECORD(struct msg_need, "chunk", chunk, chunk_key_fields), IF_SET(struct msg_need, is_chunk)},
};

static int check_need(const struct msg *m, struct reason *why)
{
    if (m->need.is_chunk)
        return proto_check_range(m->need.chunk.offset, m->need.chunk.n, why);
    return check_boundary_key(&m->need.boundary, why);
}

PROTO_TYPE(need, .check = check_need);

static const struct proto_field member_fields[] = {
    {U32(struct msg_reduce_member, "peer", peer, PEERS_MAX - 1)},
    {BOOL(struct msg_reduce_member, "contributes", contributes)},
    {U64(struct msg_reduce_member, "lo", lo)},
    {U64(struct msg_reduce_member, "hi", hi)},
};

static const struct proto_field reduce_fields[] = {
    {U64(struct msg_reduce, "epoch", epoch)},
    {U64(struct msg_reduce, "step", step)},
    {U32(struct msg_reduce, "group", group, GROUPS_MAX - 1)},
    {U32(struct msg_reduce, "attempt", attempt, UINT32_MAX)},
    {RECORDS(struct msg_reduce, "members", members, n_members, PEERS_MAX, member_fields)},
};

static int check_reduce(const struct msg *m, struct reason *why)
{
    const struct msg_reduce *d = &m->reduce;
    uint64_t covered = 0;
    bool contributes = false;

    if (d->n_members > PEERS_MAX || (d->n_members > 0 && d->members == NULL))
        return reason_set(why, -E_PROTO, "%u members, more than %u", d->n_members, PEERS_MAX);
    for (uint32_t i = 0; i < d->n_members; i++) {
        const struct msg_reduce_member *member = &d->members[i];

        if (i > 0 && member->peer <= d->members[i - 1].peer)
            return reason_set(why, -E_PROTO, "member %u stands after member %u", member->peer, d->members[i - 1].peer);
        if (member->lo > member->hi || (member->lo < member->hi && member->lo != covered))
            return reason_set(why, -E_PROTO, "member %u reduces [%llu, %llu) after [0, %llu)", member->peer,
                              (unsigned long long)member->lo, (unsigned long long)member->hi,
                              (unsigned long long)covered);
        if (member->lo < member->hi)
            covered = member->hi;
        contributes = contributes || member->contributes;
    }
    if (covered == 0 || !contributes)
        return reason_set(why, -E_PROTO, "nobody reduces, or nobody contributes");
    return 0;
}

PROTO_TYPE(reduce, .check = check_reduce);

static const struct proto_field chunk_fields[] = {
    {RECORD(struct msg_chunk, "key", key, chunk_key_fields)},
    {BOOL(struct msg_chunk, "fixed", fixed_point)},
};

static int check_chunk(const struct msg *m, struct reason *why)
{
    const struct msg_chunk *c = &m->chunk;
    int r = proto_check_range(c->key.offset, c->key.n, why);

    if (r == 0 && c->fixed_point && c->key.kind == MSG_CHUNK_SUM)
        r = reason_set(why, -E_PROTO, "finished sums in fixed point");
    return r == 0 ? proto_check_body(m, c->key.n, c->fixed_point ? sizeof(int64_t) : sizeof(float), why) : r;
}

PROTO_TYPE(chunk, .check = check_chunk, .body = PROTO_BODY_MUST);

static const struct proto_field reduced_fields[] = {
    {U64(struct msg_reduced, "epoch", epoch)},
    {U64(struct msg_reduced, "step", step)},
    {U32(struct msg_reduced, "group", group, GROUPS_MAX - 1)},
    {U32(struct msg_reduced, "attempt", attempt, UINT32_MAX)},
    {BYTES(struct msg_reduced, "hash", hash)},
    {F64S(struct msg_reduced, "squares", sum_squares, n_tensors, TENSORS_MAX)},
};

static int check_reduced(const struct msg *m, struct reason *why)
{
    const struct msg_reduced *d = &m->reduced;

    if (d->n_tensors == 0 || d->n_tensors > TENSORS_MAX || d->sum_squares == NULL)
        return reason_set(why, -E_PROTO, "%u tensors (1 to %u are possible)", d->n_tensors, TENSORS_MAX);
    for (uint32_t i = 0; i < d->n_tensors; i++) {
        if (d->sum_squares[i] < 0)
            return reason_set(why, -E_PROTO, "tensor %u has a sum of squares of %g", i, d->sum_squares[i]);
    }
    return 0;
}

PROTO_TYPE(reduced, .check = check_reduced);

static const struct proto_field adamw_fields[] = {
    {F32(struct kern_adamw, "grad_scale", grad_scale)},
    {F32(struct kern_adamw, "lr", lr)},
    {F32(struct kern_adamw, "beta1", beta1)},
    {F32(struct kern_adamw, "beta2", beta2)},
    {F32(struct kern_adamw, "one_minus_beta1", one_minus_beta1)},
    {F32(struct kern_adamw, "one_minus_beta2", one_minus_beta2)},
    {F32(struct kern_adamw, "inv_bias1", inv_bias1)},
    {F32(struct kern_adamw, "inv_bias2", inv_bias2)},
    {F32(struct kern_adamw, "eps", eps)},
    {F32(struct kern_adamw, "weight_decay", weight_decay)},
};
_Static_assert(sizeof(struct kern_adamw) == FIELD_COUNT(adamw_fields) * sizeof(float), "a number is not sent");

static const struct proto_field commit_group_fields[] = {
    {U32(struct msg_commit_group, "attempt", attempt, UINT32_MAX)},
    {BYTES(struct msg_commit_group, "hash", hash)},
};

static const struct proto_field commit_fields[] = {
    {U64(struct msg_commit, "epoch", epoch)},
    {U64(struct msg_commit, "step", step)},
    {BOOL(struct msg_commit, "skipped", skipped)},
    {BOOL(struct msg_commit, "snapshot", snapshot)},
    {U64(struct msg_commit, "next", next_epoch)},
    {RECORD(struct msg_commit, "update", update, adamw_fields)},
    {F64_ANY(struct msg_commit, "loss", loss)},
    {F64_ANY(struct msg_commit, "norm", norm)},
    {RECORDS(struct msg_commit, "groups", groups, n_groups, GROUPS_MAX, commit_group_fields)},
};

static int check_commit(const struct msg *m, struct reason *why)
{
    const struct msg_commit *c = &m->commit;

    if (!c->skipped && (!isfinite(c->loss) || !isfinite(c->norm) || c->norm < 0))
        return reason_set(why, -E_PROTO, "a loss of %g and a norm of %g in a step that counts", c->loss, c->norm);
    if (c->skipped != (c->n_groups == 0))
        return reason_set(why, -E_PROTO, "%u groups in a step that %s", c->n_groups,
                          c->skipped ? "is skipped" : "counts");
    return 0;
}

PROTO_TYPE(commit, .check = check_commit);

static const struct proto_field heartbeat_fields[] = {
    {U64(struct msg_heartbeat, "view", view)},
    {U64(struct msg_heartbeat, "epoch", epoch)},
    {U64(struct msg_heartbeat, "version", version)},
    {U64(struct msg_heartbeat, "step_leases", step_leases)},
    {U64(struct msg_heartbeat, "busy", busy_ns)},
    {U32(struct msg_heartbeat, "joining", joining, MSG_JOINING_END - 1)},
};

PROTO_TYPE(heartbeat);
