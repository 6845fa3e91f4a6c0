/* See reduce.h. Pieces are numbered 0.. over the group's flat range, REDUCE_PIECE_ELEMS each, cut also at the ranges'
 * borders so that each piece has one owner. */
#include "parallel/reduce.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define QUIET_NS       (1 * NS_PER_S)    /* no progress for this long: ask for what is missing, wait twice as long... */
#define ASKED_MAX      5                 /* ...and so on: it may still be queued on a slow link */
#define JOINS_QUIET_NS (300 * NS_PER_MS) /* the same for who joins: its owners do not wait for it */
#define NEED_BURST     32                /* at most so many requests per tick */
#define GIVEN_MAX      16                /* times that each finished sum is given again, on the average */
#define SENDING_MAX    32 /* pieces being read for others at a time: whoever asks for more asks again later */

enum piece_state { PIECE_OPEN, PIECE_BUSY, PIECE_STORED };

struct piece {
    uint64_t offset, n;
    uint32_t owner; /* member index */
    enum piece_state state;
    uint32_t n_parts;    /* owner: contributions arrived */
    struct blob **parts; /* owner: per member, NULL = not here; allocated for own pieces only */
    struct blob *sum;    /* where somebody is joining: the finished sum, at its owner and at who joins */
};

struct reduce {
    struct reduce_config config;
    uint32_t attempt, n_members, self; /* self: member index */
    struct msg_reduce_member *members;
    uint32_t n_contributors; /* others than self */
    uint32_t n_pieces, n_stored;
    uint32_t next_partial; /* pieces before it were sent to their owners, or are own ones */
    uint32_t n_sending;    /* PARTIAL and STORED at the device */
    uint32_t n_given;      /* sums given again to who joins */
    struct piece *pieces;
    bool joins, joined; /* this member is joining the group, somebody is */
    bool digesting, finished;
    int64_t progress_at; /* or asked */
    uint32_t n_asked;    /* since there was progress */
    uint8_t hash[HASH_BYTES];
    double *sum_squares;
};

static int check_order(const struct reduce_config *c, const struct msg_reduce *o, struct reason *why)
{
    uint64_t at = 0;
    uint32_t k = 0; /* in the plan's members, of which some may be gone */

    for (uint32_t i = 0; i < o->n_members; i++, k++) {
        while (k < c->group->n_members && c->group->members[k] != o->members[i].peer)
            k++;
        if (k == c->group->n_members)
            return reason_set(why, -E_PROTO, "reduce of group %u: member %u is not the plan's", o->group, i);
        if (c->group->joining[k] && (o->members[i].contributes || o->members[i].lo != o->members[i].hi))
            return reason_set(why, -E_PROTO, "reduce of group %u: member %u is joining, and has a part in it", o->group,
                              i);
        if (o->members[i].lo != at || o->members[i].hi < at)
            return reason_set(why, -E_PROTO, "reduce of group %u: ranges do not follow one another", o->group);
        at = o->members[i].hi;
    }
    if (at != (uint64_t)c->group->n_elems)
        return reason_set(why, -E_PROTO, "reduce of group %u: ranges do not cover it", o->group);
    return 0;
}

/* Counts pieces (out == NULL) or writes them. */
static uint32_t cut_pieces(const struct reduce *r, struct piece *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n_members; i++)
        for (uint64_t at = r->members[i].lo; at < r->members[i].hi; n++) {
            uint64_t left = r->members[i].hi - at;
            uint64_t len = left < REDUCE_PIECE_ELEMS ? left : REDUCE_PIECE_ELEMS;

            if (out)
                out[n] = (struct piece){.offset = at, .n = len, .owner = i};
            at += len;
        }
    return n;
}

static struct task *piece_task(const struct reduce *r, enum task_kind kind, const struct piece *p)
{
    struct task *t = task_new(kind);

    if (!t)
        return NULL;
    t->epoch = r->config.epoch;
    t->step = r->config.step;
    t->group = r->config.group_index;
    t->attempt = r->attempt;
    t->to = MSG_NO_PEER;
    if (p) {
        t->offset = p->offset;
        t->n = p->n;
    }
    return t;
}

static void try_digest(struct reduce *r, struct effects *fx)
{
    if (r->n_stored < r->n_pieces || r->digesting)
        return;
    if (r->joins) {
        r->finished = true;
        return;
    }
    r->digesting = true;
    effects_task(fx, piece_task(r, TASK_DIGEST, NULL));
}

/* All contributions to an own piece are here: add them up. */
static void try_sum(struct reduce *r, struct piece *p, struct effects *fx)
{
    if (p->state != PIECE_OPEN || p->n_parts < r->n_contributors)
        return;
    struct task *t = piece_task(r, TASK_SUM, p);

    p->state = PIECE_BUSY;
    if (t) {
        t->contributes = r->members[r->self].contributes;
        t->parts = mem_calloc(r->n_contributors ? r->n_contributors : 1, sizeof(struct blob *));
        if (!t->parts)
            t = task_free(t);
    }
    for (uint32_t i = 0; t && i < r->n_members; i++)
        if (p->parts && p->parts[i])
            t->parts[t->n_parts++] = TAKE_PTR(p->parts[i]);
    effects_task(fx, t);
}

/* Has a piece read for another member, if few enough are being read already. */
static bool read_for(struct reduce *r, enum task_kind kind, const struct piece *p, uint32_t to, struct effects *fx)
{
    if (r->n_sending >= SENDING_MAX)
        return false;
    struct task *t = piece_task(r, kind, p);

    if (t)
        t->to = to;
    r->n_sending++;
    effects_task(fx, t);
    return true;
}

/* Sends on what this member contributes to the others' ranges. */
static void push_partials(struct reduce *r, struct effects *fx)
{
    if (!r->members[r->self].contributes)
        return;
    for (; r->next_partial < r->n_pieces; r->next_partial++) {
        const struct piece *p = &r->pieces[r->next_partial];

        if (p->owner != r->self && !read_for(r, TASK_PARTIAL, p, r->members[p->owner].peer, fx))
            return;
    }
}

static void start(struct reduce *r, struct effects *fx)
{
    for (uint32_t i = 0; i < r->n_pieces; i++)
        if (r->pieces[i].owner == r->self)
            try_sum(r, &r->pieces[i], fx);
    push_partials(r, fx);
    try_digest(r, fx);
}

int reduce_new(const struct reduce_config *config, const struct msg_reduce *order, struct effects *fx,
               struct reduce **ret, struct reason *why)
{
    int status = check_order(config, order, why);

    if (status < 0)
        return status;
    struct reduce *r = mem_calloc(1, sizeof *r);

    if (!r)
        return -E_NOMEM;
    r->config = *config;
    r->attempt = order->attempt;
    r->progress_at = config->now;
    r->n_members = order->n_members;
    r->self = UINT32_MAX;
    r->members = mem_dup(order->members, order->n_members * sizeof *order->members);
    r->sum_squares = mem_calloc(config->group->n_tensors, sizeof(double));
    if (!r->members || !r->sum_squares)
        goto nomem;
    for (uint32_t i = 0; i < r->n_members; i++)
        if (r->members[i].peer == config->self)
            r->self = i;
        else
            r->n_contributors += r->members[i].contributes;
    for (uint32_t i = 0; i < config->group->n_members; i++) {
        r->joined = r->joined || config->group->joining[i];
        r->joins = r->joins || (config->group->joining[i] && config->group->members[i] == config->self);
    }
    if (r->self == UINT32_MAX) {
        reduce_free(r);
        return reason_set(why, -E_PROTO, "reduce of group %u does not name this peer", order->group);
    }
    r->n_pieces = cut_pieces(r, NULL);
    r->pieces = mem_calloc(r->n_pieces ? r->n_pieces : 1, sizeof *r->pieces);
    if (!r->pieces)
        goto nomem;
    cut_pieces(r, r->pieces);
    for (uint32_t i = 0; i < r->n_pieces; i++)
        if (r->pieces[i].owner == r->self && !(r->pieces[i].parts = mem_calloc(r->n_members, sizeof(struct blob *))))
            goto nomem;
    start(r, fx);
    *ret = r;
    return 0;
nomem:
    reduce_free(r);
    return -E_NOMEM;
}

struct reduce *reduce_free(struct reduce *r)
{
    if (!r)
        return NULL;
    for (uint32_t i = 0; r->pieces && i < r->n_pieces; i++) {
        for (uint32_t k = 0; r->pieces[i].parts && k < r->n_members; k++)
            blob_unref(r->pieces[i].parts[k]);
        mem_free(r->pieces[i].parts);
        blob_unref(r->pieces[i].sum);
    }
    mem_free(r->pieces);
    mem_free(r->members);
    mem_free(r->sum_squares);
    return mem_free(r);
}

uint32_t reduce_attempt(const struct reduce *r)
{
    return r->attempt;
}
bool reduce_finished(const struct reduce *r)
{
    return r->finished;
}
bool reduce_joins(const struct reduce *r)
{
    return r->joins;
}

bool reduce_keeps(const struct reduce *r, uint64_t *ret_bytes)
{
    bool any = false;

    *ret_bytes = 0;
    for (uint32_t i = 0; r->joined && !r->joins && i < r->n_pieces; i++)
        if (r->pieces[i].sum) {
            *ret_bytes += r->pieces[i].sum->size;
            any = true;
        }
    return any;
}

int reduce_sums(const struct reduce *r, struct blob ***ret, uint32_t *ret_n)
{
    struct blob **sums = mem_calloc(r->n_pieces, sizeof *sums);

    assert(r->joins && r->finished);
    if (!sums)
        return -E_NOMEM;
    for (uint32_t i = 0; i < r->n_pieces; i++)
        sums[i] = blob_ref(r->pieces[i].sum);
    *ret = sums;
    *ret_n = r->n_pieces;
    return 0;
}
const uint8_t *reduce_hash(const struct reduce *r)
{
    return r->hash;
}

static struct piece *find_piece(struct reduce *r, uint64_t offset)
{
    uint32_t lo = 0, hi = r->n_pieces;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (r->pieces[mid].offset < offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < r->n_pieces && r->pieces[lo].offset == offset ? &r->pieces[lo] : NULL;
}

static uint32_t member_of(const struct reduce *r, uint32_t peer)
{
    for (uint32_t i = 0; i < r->n_members; i++)
        if (r->members[i].peer == peer)
            return i;
    return UINT32_MAX;
}

static void progress(struct reduce *r, int64_t now)
{
    r->progress_at = now;
    r->n_asked = 0;
}

int reduce_chunk(struct reduce *r, uint32_t from, const struct msg *m, int64_t now, struct effects *fx)
{
    const struct msg_chunk *c = &m->chunk;
    uint32_t member = member_of(r, from);
    struct piece *p = find_piece(r, c->key.offset);

    if (member == UINT32_MAX || member == r->self || !p || p->n != c->key.n || !m->body)
        return -E_PROTO;
    if (c->key.kind == MSG_CHUNK_PARTIAL) {
        if (p->owner != r->self || !r->members[member].contributes || c->fixed_point != r->config.exact)
            return -E_PROTO;
        if (p->state != PIECE_OPEN || p->parts[member])
            return 0;
        p->parts[member] = blob_ref(m->body);
        p->n_parts++;
        progress(r, now);
        try_sum(r, p, fx);
        return 0;
    }
    if (p->owner != member || c->fixed_point)
        return -E_PROTO;
    if (p->state != PIECE_OPEN)
        return 0;
    progress(r, now);
    if (r->joins) {
        p->sum = blob_ref(m->body);
        p->state = PIECE_STORED;
        r->n_stored++;
        try_digest(r, fx);
        return 0;
    }
    struct task *t = piece_task(r, TASK_STORE, p);

    p->state = PIECE_BUSY;
    if (t)
        t->in = blob_ref(m->body);
    effects_task(fx, t);
    return 0;
}

static void send_chunk(struct reduce *r, uint32_t to, enum msg_chunk_kind kind, uint64_t offset, uint64_t n,
                       struct blob *body, struct effects *fx)
{
    struct msg *m = msg_new(MSG_CHUNK, r->config.term);

    if (m) {
        m->chunk.key =
            (struct msg_chunk_key){r->config.epoch, r->config.step, r->config.group_index, r->attempt, kind, offset, n};
        m->chunk.fixed_point = kind == MSG_CHUNK_PARTIAL && r->config.exact;
        m->body = blob_ref(body);
    }
    effects_send(fx, &r->config.plan->peers[to].key, m);
}

static void mark_stored(struct reduce *r, const struct task *t, struct effects *fx)
{
    struct piece *p = find_piece(r, t->offset);

    assert(p && p->state == PIECE_BUSY);
    p->state = PIECE_STORED;
    r->n_stored++;
    try_digest(r, fx);
}

void reduce_task_done(struct reduce *r, struct task *t, int64_t now, struct effects *fx)
{
    progress(r, now);
    switch (t->kind) {
    case TASK_PARTIAL:
    case TASK_STORED:
        r->n_sending--;
        send_chunk(r, t->to, t->kind == TASK_PARTIAL ? MSG_CHUNK_PARTIAL : MSG_CHUNK_SUM, t->offset, t->n, t->out, fx);
        push_partials(r, fx);
        break;
    case TASK_SUM:
        for (uint32_t i = 0; i < r->n_members; i++)
            if (i != r->self)
                send_chunk(r, r->members[i].peer, MSG_CHUNK_SUM, t->offset, t->n, t->out, fx);
        if (r->joined)
            find_piece(r, t->offset)->sum = blob_ref(t->out);
        mark_stored(r, t, fx);
        break;
    case TASK_STORE:
        mark_stored(r, t, fx);
        break;
    default:
        assert(t->kind == TASK_DIGEST);
        memcpy(r->hash, t->hash, HASH_BYTES);
        memcpy(r->sum_squares, t->sum_squares, r->config.group->n_tensors * sizeof(double));
        r->finished = true;
    }
}

void reduce_need(struct reduce *r, uint32_t from, const struct msg_chunk_key *key, struct effects *fx)
{
    struct piece *p = find_piece(r, key->offset);
    uint32_t member = member_of(r, from);

    if (!p || p->n != key->n || member == UINT32_MAX || member == r->self)
        return;
    if (key->kind == MSG_CHUNK_PARTIAL) {
        if (p->owner == member && r->members[r->self].contributes)
            read_for(r, TASK_PARTIAL, p, from, fx);
    } else if (p->owner == r->self && p->state == PIECE_STORED) {
        if (p->sum && r->n_given++ < GIVEN_MAX * r->n_pieces)
            send_chunk(r, from, MSG_CHUNK_SUM, p->offset, p->n, p->sum, fx);
        else if (!p->sum)
            read_for(r, TASK_STORED, p, from, fx);
    }
}

static void ask(struct reduce *r, const struct piece *p, uint32_t member, enum msg_chunk_kind kind, struct effects *fx)
{
    struct msg *m = msg_new(MSG_NEED, r->config.term);

    if (m) {
        m->need.is_chunk = true;
        m->need.chunk = (struct msg_chunk_key){
            r->config.epoch, r->config.step, r->config.group_index, r->attempt, kind, p->offset, p->n};
    }
    effects_send(fx, &r->config.plan->peers[r->members[member].peer].key, m);
}

void reduce_tick(struct reduce *r, int64_t now, struct effects *fx)
{
    uint32_t asked = 0;

    if (r->finished || now - r->progress_at < (r->joins ? JOINS_QUIET_NS : QUIET_NS) << r->n_asked)
        return;
    r->progress_at = now;
    r->n_asked += r->n_asked < ASKED_MAX;
    for (uint32_t i = 0; i < r->n_pieces && asked < NEED_BURST; i++) {
        struct piece *p = &r->pieces[i];

        if (p->state != PIECE_OPEN)
            continue;
        if (p->owner != r->self) {
            ask(r, p, p->owner, MSG_CHUNK_SUM, fx);
            asked++;
            continue;
        }
        for (uint32_t k = 0; k < r->n_members; k++)
            if (k != r->self && r->members[k].contributes && !p->parts[k]) {
                ask(r, p, k, MSG_CHUNK_PARTIAL, fx);
                asked++;
            }
    }
}

struct msg *reduce_report(const struct reduce *r)
{
    struct msg *m = r->finished ? msg_new(MSG_REDUCED, r->config.term) : NULL;

    if (!m)
        return NULL;
    m->reduced.epoch = r->config.epoch;
    m->reduced.step = r->config.step;
    m->reduced.group = r->config.group_index;
    m->reduced.attempt = r->attempt;
    memcpy(m->reduced.hash, r->hash, HASH_BYTES);
    m->reduced.n_tensors = r->config.group->n_tensors;
    m->reduced.sum_squares = mem_dup(r->sum_squares, r->config.group->n_tensors * sizeof(double));
    return m->reduced.sum_squares ? m : msg_free(m);
}
