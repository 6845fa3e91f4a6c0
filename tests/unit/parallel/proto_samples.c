/* Builds the examples; nothing here comes from a clock or from chance. */
#include "tests/unit/parallel/proto_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/mem.h"

/* Distinct bytes that tell whose they are. */
static void fill(void *at, size_t n, uint8_t first)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)at)[i] = (uint8_t)(first + 7 * i);
}

static void *list(const void *elems, size_t n_bytes)
{
    void *copy = mem_dup(elems, n_bytes);

    if (copy == NULL)
        abort();
    return copy;
}

static void give_body(struct msg *m, size_t n)
{
    if (blob_new(n, &m->body) < 0)
        abort();
    fill(m->body->data, n, 3);
}

static void give_text(struct msg *m, const char *text)
{
    if (blob_new(strlen(text), &m->body) < 0)
        abort();
    memcpy(m->body->data, text, strlen(text));
}

void proto_sample_coordinator(struct key_pair *ret)
{
    uint8_t seed[32];

    fill(seed, sizeof(seed), 99);
    if (key_setup(NULL) < 0 || key_from_seed(seed, ret) < 0)
        abort();
}

static void sample_join(struct msg_join *j)
{
    fill(j->job_id, sizeof(j->job_id), 10);
    fill(j->capability, sizeof(j->capability), 20);
    fill(&j->key, sizeof(j->key), 30);
    j->incarnation = UINT64_C(1700000000123456789);
    strcpy(j->software, "shoal 0.1.0");
    strcpy(j->name, "ada");
    strcpy(j->device, "Éxample CPU 7");
    j->memory_bytes = UINT64_C(17) << 30;
    j->n_threads = 12;
    strcpy(j->fingerprint, "0123456789abcdef");
    j->n_addrs = 2;
    strcpy(j->addrs[0], "192.0.2.7");
    strcpy(j->addrs[1], "2001:db8::7");
    j->control_port = 4001;
    j->bulk_port = 4002;
}

static void sample_profile(struct msg_profile *p)
{
    p->memory_bytes = UINT64_C(3) << 31;
    p->n_units = 3;
    p->forward_s = list((const double[]){0.001, 0.0025, 0.5}, 3 * sizeof(double));
    p->backward_s = list((const double[]){0.002, 0.005, 0}, 3 * sizeof(double));
}

static void sample_view(struct msg_view *v)
{
    struct key_pair coordinator;
    struct msg_view_peer peers[2] = {0};

    for (uint32_t i = 0; i < 2; i++) {
        fill(&peers[i].key, sizeof(peers[i].key), (uint8_t)(40 + i));
        peers[i].incarnation = 1000 + i;
        peers[i].n_addrs = 1 - i;
        peers[i].control_port = (uint16_t)(5000 + i);
        peers[i].bulk_port = (uint16_t)(6000 + i);
    }
    strcpy(peers[0].addrs[0], "peer.example.org");
    v->number = 17;
    v->n_peers = 2;
    v->peers = list(peers, sizeof(peers));
    proto_sample_coordinator(&coordinator);
    if (msg_view_sign(v, &coordinator) < 0)
        abort();
}

static void sample_dial(struct msg_dial *d)
{
    struct key keys[2];

    fill(keys, sizeof(keys), 50);
    d->view = 18;
    d->n_keys = 2;
    d->keys = list(keys, sizeof(keys));
}

static void sample_plan(struct msg_plan *p)
{
    struct plan_peer peers[3] = {0};

    for (uint32_t i = 0; i < 3; i++) {
        fill(&peers[i].key, sizeof(peers[i].key), (uint8_t)(60 + i));
        peers[i].incarnation = 2000 + i;
    }
    p->version = 41;
    p->seed = UINT64_C(0x1122334455667788);
    p->fetch = true;
    p->plan = (struct plan){.epoch = 5, .n_units = 4, .n_peers = 3, .n_stages = 2, .n_holders = 4, .in_flight = 6};
    p->plan.predicted_seconds = 0.125;
    p->plan.peers = list(peers, sizeof(peers));
    p->plan.stages = list((const struct plan_stage[]){{0, 3, 0, 2}, {3, 4, 2, 2}}, 2 * sizeof(struct plan_stage));
    p->plan.holders =
        list((const struct plan_holder[]){{0, 3, 0}, {1, 1, 0}, {2, 1, 0}, {1, 0, 1}}, 4 * sizeof(struct plan_holder));
}

static void sample_leases(struct msg *m)
{
    struct msg_leases *l = &m->leases;

    l->epoch = 5;
    l->step = 42;
    l->loss_scale = 0x1p-11F;
    l->n_leases = 2;
    l->leases = list(
        (const struct msg_lease[]){{0, MSG_MODE_TRAIN, 0, 3, MSG_NO_PEER, 2}, {9, MSG_MODE_EVAL, 3, 4, 1, MSG_NO_PEER}},
        2 * sizeof(struct msg_lease));
    give_body(m, 16);
}

static struct msg_boundary_key boundary_key(void)
{
    return (struct msg_boundary_key){5, 42, 9, MSG_MODE_REPLAY, 3, MSG_BACKWARD};
}

static struct msg_chunk_key chunk_key(void)
{
    return (struct msg_chunk_key){5, 42, 2, 1, MSG_CHUNK_PARTIAL, 600, 2};
}

static struct msg_state_key state_key(void)
{
    return (struct msg_state_key){41, 7, 2, UINT64_C(5) << 30, 3};
}

static void sample_reduce(struct msg_reduce *r)
{
    r->epoch = 5;
    r->step = 42;
    r->group = 2;
    r->attempt = 3;
    r->n_members = 3;
    r->members = mem_calloc(3, sizeof(*r->members)); /* field by field: padding stays zero, to be compared */
    if (r->members == NULL)
        abort();
    for (uint32_t i = 0; i < 3; i++) {
        r->members[i].peer = 2 * i;
        r->members[i].contributes = i != 1;
        r->members[i].lo = i == 0 ? 0 : 700;
        r->members[i].hi = i == 2 ? 1500 : 700;
    }
}

static void sample_reduced(struct msg_reduced *r)
{
    r->epoch = 5;
    r->step = 42;
    r->group = 2;
    r->attempt = 3;
    fill(r->hash, sizeof(r->hash), 70);
    r->n_tensors = 2;
    r->sum_squares = list((const double[]){1.5, 0x1p-40}, 2 * sizeof(double));
}

static void sample_commit(struct msg_commit *c)
{
    struct msg_commit_group groups[2] = {{.attempt = 3}, {.attempt = 1}};

    fill(groups[0].hash, HASH_BYTES, 80);
    fill(groups[1].hash, HASH_BYTES, 90);
    c->epoch = 5;
    c->step = 42;
    c->snapshot = true;
    c->update = (struct kern_adamw){0.5F, 3e-4F, 0.9F, 0.95F, 0.1F, 0.05F, 1.25F, 2.5F, 1e-8F, 0.125F};
    c->loss = 5.0625;
    c->norm = 2.0;
    c->n_groups = 2;
    c->groups = list(groups, sizeof(groups));
}

static void sample_snapshot_taken(struct msg_snapshot_taken *s)
{
    uint8_t digests[3][HASH_BYTES];

    fill(digests, sizeof(digests), 100);
    s->version = 43;
    s->n_tensors = 3;
    s->tensors = list((const uint32_t[]){1, 4, 300}, 3 * sizeof(uint32_t));
    s->digests = list(digests, sizeof(digests));
}

static void fill_step(struct msg *m)
{
    switch (m->type) {
    case MSG_PLAN:
        sample_plan(&m->plan);
        break;
    case MSG_READY:
        m->ready.epoch = 5;
        m->ready.ok = true;
        strcpy(m->ready.text, "fine");
        break;
    case MSG_LEASES:
        sample_leases(m);
        break;
    case MSG_DONE:
        m->done = (struct msg_done){5, 42, 9, MSG_MODE_EVAL, 3, 4, true, 176.25};
        break;
    case MSG_BOUNDARY:
        m->boundary = (struct msg_boundary){boundary_key(), 1024, 3, 2000};
        give_body(m, 3 * sizeof(float));
        break;
    case MSG_NEED:
        m->need.is_chunk = true;
        m->need.chunk = chunk_key();
        break;
    case MSG_REDUCE:
        sample_reduce(&m->reduce);
        break;
    case MSG_CHUNK:
        m->chunk.key = chunk_key();
        m->chunk.fixed_point = true;
        give_body(m, 2 * sizeof(int64_t));
        break;
    case MSG_REDUCED:
        sample_reduced(&m->reduced);
        break;
    case MSG_COMMIT:
        sample_commit(&m->commit);
        break;
    case MSG_HEARTBEAT:
        m->heartbeat = (struct msg_heartbeat){17, 5, 41, 43, UINT64_C(1) << 40, MSG_JOINING_BEHIND};
        break;
    default:
        abort();
    }
}

static void fill_rest(struct msg *m)
{
    switch (m->type) {
    case MSG_SNAPSHOT:
        m->snapshot.version = 43;
        m->snapshot.drop = true;
        break;
    case MSG_SNAPSHOT_TAKEN:
        sample_snapshot_taken(&m->snapshot_taken);
        break;
    case MSG_STATE_GET:
        m->state_get.key = state_key();
        break;
    case MSG_STATE_CHUNK:
        m->state_chunk.key = state_key();
        fill(m->state_chunk.hash, HASH_BYTES, 110);
        give_body(m, 3 * sizeof(float));
        break;
    case MSG_LEAVE:
        strcpy(m->leave.text, "the lid was closed");
        break;
    case MSG_BYE:
        m->bye.code = MSG_BYE_FENCED;
        strcpy(m->bye.text, "a newer incarnation joined");
        break;
    case MSG_STATUS_GET:
        fill(m->status_get.job_id, INVITE_JOB_ID_BYTES, 10);
        fill(m->status_get.capability, INVITE_CAPABILITY_BYTES, 20);
        break;
    case MSG_STATUS:
        give_text(m, "{\"step\":42}");
        break;
    default:
        fill_step(m);
    }
}

struct msg *proto_sample(enum msg_type type)
{
    struct msg *m = msg_new(type, UINT64_C(0x100000002));

    if (m == NULL)
        return NULL;
    switch (type) {
    case MSG_JOIN:
        sample_join(&m->join);
        break;
    case MSG_WELCOME:
        m->welcome.control_port = 4003;
        m->welcome.bulk_port = 4004;
        give_text(m, "name: tiny\n");
        break;
    case MSG_REFUSE:
        m->refuse.code = MSG_REFUSAL_FULL;
        strcpy(m->refuse.text, "the job has all the peers it can take");
        break;
    case MSG_PROFILE:
        sample_profile(&m->profile);
        break;
    case MSG_VIEW:
        sample_view(&m->view);
        break;
    case MSG_VIEW_ACK:
        m->view_ack.number = 17;
        break;
    case MSG_DIAL:
        sample_dial(&m->dial);
        break;
    case MSG_LINK:
        fill(&m->link.key, sizeof(m->link.key), 55);
        m->link.up = true;
        strcpy(m->link.text, "back again");
        break;
    default:
        fill_rest(m);
    }
    return m;
}

size_t proto_sample_lists(struct msg *m, struct proto_sample_list ret[3])
{
    size_t n = 0;

#define LIST(p, count)                                                                                                 \
    ret[n++] = (struct proto_sample_list)                                                                              \
    {                                                                                                                  \
        (void **)&(p), (count) * sizeof(*(p))                                                                          \
    }
    switch (m->type) {
    case MSG_PROFILE:
        LIST(m->profile.forward_s, m->profile.n_units);
        LIST(m->profile.backward_s, m->profile.n_units);
        break;
    case MSG_VIEW:
        LIST(m->view.peers, m->view.n_peers);
        LIST(m->view.signed_bytes, m->view.signed_size);
        break;
    case MSG_DIAL:
        LIST(m->dial.keys, m->dial.n_keys);
        break;
    case MSG_PLAN:
        LIST(m->plan.plan.peers, m->plan.plan.n_peers);
        LIST(m->plan.plan.stages, m->plan.plan.n_stages);
        LIST(m->plan.plan.holders, m->plan.plan.n_holders);
        break;
    case MSG_LEASES:
        LIST(m->leases.leases, m->leases.n_leases);
        break;
    case MSG_REDUCE:
        LIST(m->reduce.members, m->reduce.n_members);
        break;
    case MSG_REDUCED:
        LIST(m->reduced.sum_squares, m->reduced.n_tensors);
        break;
    case MSG_COMMIT:
        LIST(m->commit.groups, m->commit.n_groups);
        break;
    case MSG_SNAPSHOT_TAKEN:
        LIST(m->snapshot_taken.tensors, m->snapshot_taken.n_tensors);
        LIST(m->snapshot_taken.digests, m->snapshot_taken.n_tensors);
        break;
    default:
        break;
    }
#undef LIST
    return n;
}

size_t proto_sample_size(enum msg_type type)
{
    static const size_t sizes[MSG_TYPE_END] = {
        [MSG_JOIN] = sizeof(struct msg_join),
        [MSG_WELCOME] = sizeof(struct msg_welcome),
        [MSG_REFUSE] = sizeof(struct msg_refuse),
        [MSG_PROFILE] = sizeof(struct msg_profile),
        [MSG_VIEW] = sizeof(struct msg_view),
        [MSG_VIEW_ACK] = sizeof(struct msg_view_ack),
        [MSG_DIAL] = sizeof(struct msg_dial),
        [MSG_LINK] = sizeof(struct msg_link),
        [MSG_PLAN] = sizeof(struct msg_plan),
        [MSG_READY] = sizeof(struct msg_ready),
        [MSG_LEASES] = sizeof(struct msg_leases),
        [MSG_DONE] = sizeof(struct msg_done),
        [MSG_BOUNDARY] = sizeof(struct msg_boundary),
        [MSG_NEED] = sizeof(struct msg_need),
        [MSG_REDUCE] = sizeof(struct msg_reduce),
        [MSG_CHUNK] = sizeof(struct msg_chunk),
        [MSG_REDUCED] = sizeof(struct msg_reduced),
        [MSG_COMMIT] = sizeof(struct msg_commit),
        [MSG_HEARTBEAT] = sizeof(struct msg_heartbeat),
        [MSG_SNAPSHOT] = sizeof(struct msg_snapshot),
        [MSG_SNAPSHOT_TAKEN] = sizeof(struct msg_snapshot_taken),
        [MSG_STATE_GET] = sizeof(struct msg_state_get),
        [MSG_STATE_CHUNK] = sizeof(struct msg_state_chunk),
        [MSG_LEAVE] = sizeof(struct msg_leave),
        [MSG_BYE] = sizeof(struct msg_bye),
        [MSG_STATUS_GET] = sizeof(struct msg_status_get),
    };

    return sizes[type];
}
