/* A coordinator's next life: from the ledger's records to where the one before was. If a plan was in force and its
 * holders may be alive, the engine begins in COORD_REATTACH (coord_reattach.c); else it gathers peers anew, and goes on
 * from the checkpoint that the configuration names. See coord_impl.h. */
#include <string.h>

#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

static const struct coord_record *find(const struct coord *c, enum coord_record_kind kind, uint64_t key)
{
    for (uint32_t i = 0; i < c->config.n_records; i++)
        if (c->config.records[i].kind == kind && c->config.records[i].key == key)
            return &c->config.records[i];
    return NULL;
}

/* The message that a record holds: -E_CORRUPT if it is none of that type. */
static int open_msg(const struct coord_record *r, enum msg_type type, struct msg **ret)
{
    struct msg *m = NULL;
    int status = proto_decode(r->data, NULL, &m, NULL);

    if (status == 0 && m->type != type)
        status = -E_CORRUPT;
    if (status < 0) {
        msg_free(m);
        return status == -E_NOMEM ? status : -E_CORRUPT;
    }
    *ret = m;
    return 0;
}

static int read_state(const struct coord_record *r, struct coord_state *ret)
{
    uint64_t n[COORD_STATE_U64S] = {0};

    if (r->data->size != sizeof n)
        return -E_CORRUPT;
    for (uint32_t i = 0; i < sizeof n; i++)
        n[i / 8] |= (uint64_t)((const uint8_t *)r->data->data)[i] << 8 * (i % 8);
    if (n[0] != COORD_STATE_FORMAT || n[6] > 1 || n[7] > 1)
        return -E_CORRUPT;
    *ret = (struct coord_state){.lineage = n[1],
                                .version = n[2],
                                .updates = n[3],
                                .view = n[4],
                                .epoch = n[5],
                                .begun = n[6],
                                .regather = n[7]};
    memcpy(&ret->loss, &n[8], sizeof ret->loss);
    return 0;
}

/* Members of the life before. Those that cannot come back are kept only until they are out of the ledger. */
static int restore_members(struct coord *c)
{
    for (uint32_t i = 0; i < c->config.n_records; i++) {
        const struct coord_record *r = &c->config.records[i];
        struct msg *m = NULL;
        int status = r->kind == COORD_RECORD_MEMBER ? open_msg(r, MSG_JOIN, &m) : 0;

        if (status < 0)
            return status;
        if (!m)
            continue;
        struct coord_peer *p = coord_add_peer(c, &m->join);

        msg_free(m);
        if (!p)
            return -E_NOMEM;
        p->restored = p->recorded = true;
        p->number = r->key;
        p->admitted = p->seen = c->config.reattach;
        c->n_members = r->key > c->n_members ? r->key : c->n_members;
    }
    return 0;
}

/* A holder that was lost before the coordinator was. */
static struct coord_peer *add_lost(struct coord *c, const struct plan_peer *who)
{
    struct msg_join join = {.key = who->key, .incarnation = who->incarnation};
    struct coord_peer *p = coord_add_peer(c, &join);

    if (p) {
        p->admitted = false;
        p->seen = true;
    }
    return p;
}

static struct coord_peer *find_holder(const struct coord *c, const struct plan_peer *who)
{
    for (uint32_t i = 0; i < c->n_peers; i++)
        if (key_equal(&c->peers[i]->join.key, &who->key) && c->peers[i]->join.incarnation == who->incarnation)
            return c->peers[i];
    return NULL;
}

static int restore_plan(struct coord *c, const struct msg_plan *row)
{
    if (plan_validate(&row->plan, c->config.model->n_units, NULL) < 0 || row->plan.epoch != c->recorded.epoch ||
        row->version > c->recorded.version)
        return -E_CORRUPT;
    if (plan_copy(&row->plan, &c->plan) < 0)
        return -E_NOMEM;
    if (!coord_alloc_plan(c) || !coord_alloc_run(c))
        return -E_NOMEM;
    for (uint32_t i = 0; i < c->plan.n_peers; i++) {
        struct coord_peer *p = find_holder(c, &c->plan.peers[i]);

        if (!p)
            p = add_lost(c, &c->plan.peers[i]);
        if (!p)
            return -E_NOMEM;
        p->plan_peer = i;
        p->ready = true;
        c->plan_peers[i] = p;
        c->gone[i] = !p->admitted;
    }
    c->first_version = row->version;
    return 0;
}

/* The newest commit, for holders that missed it. */
static int restore_commit(struct coord *c)
{
    const struct coord_record *r = find(c, COORD_RECORD_COMMIT, coord_history_key(c->lineage, c->version - 1));
    struct msg *m = NULL;
    int status = c->version > c->first_version ? (r ? open_msg(r, MSG_COMMIT, &m) : -E_CORRUPT) : 0;

    if (m && m->commit.step + 1 == c->version && m->commit.epoch == c->plan.epoch) {
        c->last_commit = m->commit;
        m->commit.groups = NULL;
        c->has_commit = true;
    } else if (m) {
        status = -E_CORRUPT;
    }
    msg_free(m);
    return status;
}

/* A plan was in force: back to the moment before the next step's leases went out. */
static int go_on(struct coord *c)
{
    const struct coord_record *r = find(c, COORD_RECORD_PLAN, c->recorded.epoch);
    const struct job *job = c->config.job;
    struct msg *m = NULL;
    int status = r ? open_msg(r, MSG_PLAN, &m) : -E_CORRUPT;

    if (status < 0)
        return status;
    c->version = c->recorded.version;
    c->updates = c->recorded.updates;
    c->loss = c->recorded.loss;
    status = restore_plan(c, &m->plan);
    msg_free(m);
    if (status == 0)
        status = restore_commit(c);
    /* A checkpoint that was due, and never came about. */
    c->save_due =
        job->checkpoint.every > 0 && c->version - c->version % job->checkpoint.every > c->config.start_version;
    c->phase = COORD_REATTACH;
    return status;
}

int coord_restore(struct coord *c)
{
    const struct coord_record *r = find(c, COORD_RECORD_STATE, 0);
    int status = r ? read_state(r, &c->recorded) : 0;

    if (!r || status < 0)
        return status;
    c->has_recorded = true;
    c->lineage = c->recorded.lineage;
    c->view = c->recorded.view + 1; /* the new term's, so that its acknowledgement says that the term is known */
    c->restart_view = c->view;
    c->plan.epoch = c->recorded.epoch; /* epochs never repeat */
    c->regather_until = c->recorded.regather && c->config.reattach ? INT64_MAX : 0;
    status = restore_members(c);
    if (status < 0)
        return status;
    if (c->recorded.begun && c->config.reattach && c->recorded.version >= c->config.start_version)
        return go_on(c);
    if (c->config.start_version >= c->config.stop_after) /* nothing is left to train: nobody more is needed */
        c->regather_until = INT64_MAX;
    c->goes_back = c->recorded.version != c->config.start_version;
    return 0;
}
