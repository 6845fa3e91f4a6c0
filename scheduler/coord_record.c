/* What the coordinator's ledger keeps: "write, then tell". An event's changes become records of its update; the shell
 * writes them in one transaction before it sends anything. Members, plans and commits are the protocol's own messages;
 * the present state and the points of checkpoints and rollbacks are a few 64-bit numbers, little-endian. Reading them
 * again is coord_restore.c's. See coord_impl.h. */
#include <string.h>

#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

const char *const coord_record_names[COORD_RECORD_KINDS] = {
    [COORD_RECORD_STATE] = "state",   [COORD_RECORD_MEMBER] = "member",         [COORD_RECORD_PLAN] = "plan",
    [COORD_RECORD_COMMIT] = "commit", [COORD_RECORD_CHECKPOINT] = "checkpoint", [COORD_RECORD_ROLLBACK] = "rollback",
};

void coord_records_clear(struct coord_update *u)
{
    for (uint32_t i = 0; i < u->n_records; i++)
        blob_unref(u->records[i].data);
    u->n_records = 0;
}

void coord_update_done(struct coord_update *u)
{
    coord_records_clear(u);
    u->records = mem_free(u->records);
    u->cap_records = 0;
    effects_done(&u->fx);
}

/* Takes over the reference. */
static void add(struct coord *c, enum coord_record_kind kind, uint64_t key, struct blob *data)
{
    struct coord_update *u = c->update;

    if (u->n_records == u->cap_records) {
        uint32_t cap = u->cap_records ? 2 * u->cap_records : 8;
        struct coord_record *grown = mem_resize(u->records, u->cap_records, cap, sizeof *grown);

        if (!grown) {
            coord_oom(c);
            blob_unref(data);
            return;
        }
        u->records = grown;
        u->cap_records = cap;
    }
    u->records[u->n_records++] = (struct coord_record){
        .kind = kind,
        .history = kind == COORD_RECORD_PLAN || kind == COORD_RECORD_COMMIT || kind == COORD_RECORD_ROLLBACK,
        .key = key,
        .data = data};
}

/* Takes over the message, NULL (out of memory) included. */
static void add_msg(struct coord *c, enum coord_record_kind kind, uint64_t key, struct msg *m)
{
    struct blob *head = NULL;

    if (m && proto_encode(m, &head) == 0)
        add(c, kind, key, head);
    else
        coord_oom(c);
    msg_free(m);
}

void coord_put_u64s(const uint64_t *from, uint32_t n, uint8_t *to)
{
    for (uint32_t i = 0; i < 8 * n; i++)
        to[i] = (uint8_t)(from[i / 8] >> 8 * (i % 8));
}

static uint64_t bits_of(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

uint64_t coord_history_key(uint64_t lineage, uint64_t step)
{
    return lineage << 40 | step; /* JOB_STEPS_MAX is 2^40 */
}

void coord_record_point(struct coord *c, enum coord_record_kind kind, uint64_t key, const struct coord_save *what)
{
    uint64_t numbers[3] = {what->version, what->updates, bits_of(what->loss)};
    struct blob *b = NULL;

    if (blob_new(sizeof numbers + HASH_BYTES, &b) < 0) {
        coord_oom(c);
        return;
    }
    coord_put_u64s(numbers, 3, b->data);
    memcpy((uint8_t *)b->data + sizeof numbers, what->hash, HASH_BYTES);
    add(c, kind, key, b);
}

void coord_record_commit(struct coord *c)
{
    add_msg(c, COORD_RECORD_COMMIT, coord_history_key(c->lineage, c->last_commit.step), coord_commit_msg(c));
}

static void record_members(struct coord *c)
{
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct coord_peer *p = c->peers[i];

        if (p->admitted == p->recorded)
            continue;
        p->recorded = p->admitted;
        if (!p->admitted) {
            add(c, COORD_RECORD_MEMBER, p->number, NULL);
            continue;
        }
        struct msg *m = coord_msg(c, MSG_JOIN);

        p->number = ++c->n_members;
        if (m)
            m->join = p->join;
        add_msg(c, COORD_RECORD_MEMBER, p->number, m);
    }
}

static void record_state(struct coord *c)
{
    struct coord_state now = {.lineage = c->lineage,
                              .version = c->version,
                              .updates = c->updates,
                              .view = c->view,
                              .epoch = c->plan.epoch,
                              .begun = c->group && c->phase != COORD_OVER,
                              .regather = c->regather_until > 0,
                              .loss = c->loss};
    const uint64_t numbers[COORD_STATE_U64S] = {COORD_STATE_FORMAT, now.lineage,  now.version,
                                                now.updates,        now.view,     now.epoch,
                                                now.begun,          now.regather, bits_of(now.loss)};
    struct coord_state *old = &c->recorded;
    struct blob *b = NULL;

    if (c->has_recorded && old->lineage == now.lineage && old->version == now.version && old->updates == now.updates &&
        old->view == now.view && old->epoch == now.epoch && old->begun == now.begun && old->regather == now.regather &&
        bits_of(old->loss) == bits_of(now.loss))
        return;
    if (blob_new(8 * COORD_STATE_U64S, &b) < 0) {
        coord_oom(c);
        return;
    }
    coord_put_u64s(numbers, COORD_STATE_U64S, b->data);
    add(c, COORD_RECORD_STATE, 0, b);
    *old = now;
    c->has_recorded = true;
}

void coord_record_changes(struct coord *c)
{
    record_members(c);
    if (c->plan.n_stages > 0 && (!c->has_recorded || c->recorded.epoch != c->plan.epoch))
        add_msg(c, COORD_RECORD_PLAN, c->plan.epoch, coord_plan_msg(c));
    record_state(c);
}
