/* What a hostile peer says besides its work: messages of every type with random fields that are near the truth often
 * enough to get past the first check. See cluster_impl.h. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "sim/cluster_impl.h"

#define HOSTILE_ELEMS 64

static uint64_t below(struct cluster *c, uint64_t n)
{
    return rng_below(&c->hostile_rng, n);
}

/* Mostly x, sometimes a number beside it, sometimes a wild one. */
static uint64_t near(struct cluster *c, uint64_t x)
{
    switch (below(c, 16)) {
    case 0:
        return rng_u64(&c->hostile_rng);
    case 1:
    case 2:
        return x + 1;
    case 3:
    case 4:
        return x > 0 ? x - 1 : 0;
    default:
        return x;
    }
}

static uint32_t unit(struct cluster *c)
{
    return (uint32_t)below(c, c->model->n_units + 1);
}

static uint32_t microbatch(struct cluster *c)
{
    return (uint32_t)below(c, c->model->M + 1);
}

static struct msg_boundary_key boundary_key(struct cluster *c)
{
    return (struct msg_boundary_key){near(c, 1),
                                     near(c, c->committed),
                                     microbatch(c),
                                     (uint32_t)below(c, MSG_MODE_END),
                                     1 + (uint32_t)below(c, c->model->n_units),
                                     (uint32_t)below(c, MSG_DIRECTION_END)};
}

static struct msg_chunk_key chunk_key(struct cluster *c)
{
    return (struct msg_chunk_key){near(c, 1),
                                  near(c, c->committed),
                                  (uint32_t)below(c, 4),
                                  (uint32_t)below(c, 3),
                                  (uint32_t)below(c, MSG_CHUNK_KIND_END),
                                  below(c, 2) ? 0 : below(c, 4096),
                                  1 + below(c, HOSTILE_ELEMS)};
}

static struct msg_state_key state_key(struct cluster *c)
{
    return (struct msg_state_key){near(c, c->committed), (uint32_t)below(c, c->model->n_tensors + 1),
                                  (uint32_t)below(c, PARAMS_PARTS), below(c, 2) ? 0 : below(c, 4096),
                                  1 + below(c, HOSTILE_ELEMS)};
}

static void random_bytes(struct cluster *c, void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)data)[i] = (uint8_t)below(c, 256);
}

static void random_body(struct cluster *c, struct msg *m, size_t n)
{
    if (blob_new(n, &m->body) == 0)
        random_bytes(c, m->body->data, n);
}

static void fill_taken(struct cluster *c, struct msg_snapshot_taken *t)
{
    t->version = near(c, c->committed);
    t->tensors = mem_calloc(1, sizeof *t->tensors);
    t->digests = mem_calloc(1, sizeof *t->digests);
    if (!t->tensors || !t->digests)
        return;
    t->n_tensors = 1;
    t->tensors[0] = (uint32_t)below(c, c->model->n_tensors + 1);
    random_bytes(c, t->digests, HASH_BYTES);
}

static void fill_reduced(struct cluster *c, struct msg_reduced *r)
{
    r->epoch = near(c, 1);
    r->step = near(c, c->committed);
    r->group = (uint32_t)below(c, 4);
    r->attempt = (uint32_t)below(c, 3);
    random_bytes(c, r->hash, sizeof r->hash);
    r->n_tensors = 1 + (uint32_t)below(c, c->model->n_tensors);
    r->sum_squares = mem_calloc(r->n_tensors, sizeof(double));
}

static void fill_profile(struct cluster *c, struct msg_profile *p)
{
    p->n_units = c->model->n_units;
    p->forward_s = mem_calloc(p->n_units, sizeof(double));
    p->backward_s = mem_calloc(p->n_units, sizeof(double));
}

static void fill_commit(struct cluster *c, struct msg_commit *k)
{
    k->epoch = near(c, 1);
    k->step = near(c, c->committed);
    k->skipped = true;
}

/* A message of that type; some are left nearly empty: their sender is what makes them wrong. */
static void fill(struct cluster *c, struct msg *m)
{
    switch (m->type) {
    case MSG_PROFILE:
        fill_profile(c, &m->profile);
        break;
    case MSG_VIEW_ACK:
        m->view_ack.number = near(c, 3);
        break;
    case MSG_LINK:
        m->link.key = c->nodes[below(c, c->n_nodes)].key.pub;
        m->link.up = below(c, 4) != 0;
        break;
    case MSG_READY:
        m->ready.epoch = near(c, 1);
        m->ready.ok = true;
        break;
    case MSG_DONE:
        m->done = (struct msg_done){near(c, 1),        near(c, c->committed),
                                    microbatch(c),     (uint32_t)below(c, MSG_MODE_END),
                                    unit(c),           unit(c),
                                    below(c, 16) == 0, 1};
        break;
    case MSG_BOUNDARY:
        m->boundary.key = boundary_key(c);
        m->boundary.n = below(c, 2) ? (uint64_t)model_boundary_elems(c->model) : 1 + below(c, HOSTILE_ELEMS);
        m->boundary.total = m->boundary.n + below(c, 2);
        random_body(c, m, m->boundary.n * sizeof(float));
        break;
    case MSG_NEED:
        m->need.is_chunk = below(c, 2);
        m->need.boundary = boundary_key(c);
        m->need.chunk = chunk_key(c);
        break;
    case MSG_CHUNK:
        m->chunk.key = chunk_key(c);
        m->chunk.fixed_point = m->chunk.key.kind == MSG_CHUNK_PARTIAL;
        random_body(c, m, m->chunk.key.n * (m->chunk.fixed_point ? sizeof(int64_t) : sizeof(float)));
        break;
    case MSG_REDUCED:
        fill_reduced(c, &m->reduced);
        break;
    case MSG_COMMIT:
        fill_commit(c, &m->commit);
        break;
    case MSG_HEARTBEAT:
        m->heartbeat = (struct msg_heartbeat){near(c, 3), near(c, 1),      near(c, c->committed), near(c, c->committed),
                                              0,          MSG_JOINING_LOST};
        break;
    case MSG_SNAPSHOT:
        m->snapshot.version = near(c, c->committed);
        break;
    case MSG_SNAPSHOT_TAKEN:
        fill_taken(c, &m->snapshot_taken);
        break;
    case MSG_STATE_GET:
        m->state_get.key = state_key(c);
        break;
    case MSG_STATE_CHUNK:
        m->state_chunk.key = state_key(c);
        random_body(c, m, m->state_chunk.key.n * sizeof(float));
        break;
    case MSG_BYE:
        m->bye.code = MSG_BYE_DONE;
        break;
    default:
        break;
    }
}

void hostile_say(struct cluster *c, uint32_t i)
{
    struct node *n = &c->nodes[i];
    double wait = (double)NS_PER_S / c->config.workers[i - 1].hostile_hz;
    uint32_t to = (uint32_t)below(c, c->n_nodes);
    struct blob *head = NULL;

    if (!n->alive || n->over)
        return;
    cluster_plan_event(c, c->now + (int64_t)(wait * 2 * rng_unit(&c->hostile_rng)), EVENT_HOSTILE, i, i);
    /* Not LEAVE: that is its right. */
    enum msg_type type = 1 + (enum msg_type)below(c, MSG_TYPE_END - 1);

    if (to == i || !n->welcomed || type == MSG_LEAVE)
        return;
    struct msg *m = msg_new(type, below(c, 8) ? c->term : below(c, 4));

    if (!m)
        return;
    fill(c, m);
    /* What its own encoder refuses it cannot say: the decoder's tests stand elsewhere. */
    if (proto_encode(m, &head) < 0) {
        msg_free(m);
        return;
    }
    blob_unref(head);
    wire_send(c, i, to, m);
}
