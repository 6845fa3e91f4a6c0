/* The network: messages are encoded, delayed, lost, doubled; a lane between two nodes keeps its order, two lanes have
 * none between them, and a doubled message's second copy comes whenever it likes. See cluster_impl.h. */
#include <math.h>

#include "sim/cluster_impl.h"

uint32_t wire_find(const struct cluster *c, uint32_t from, const struct key *key)
{
    uint32_t found = NODES_MAX;

    uint32_t best = 0;

    /* Of several processes with one key the newest one that runs and that there is a link to, if there is one. */
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        const struct node *n = &c->nodes[i];
        bool runs = n->alive && n->started && !n->over;
        uint32_t fit = 1 + (uint32_t)c->linked[from][i] + 2 * (uint32_t)runs;

        if (key_equal(&n->key.pub, key) && fit >= best) {
            best = fit;
            found = i;
        }
    }
    return found;
}

static int64_t delay(struct cluster *c)
{
    double mean = (double)c->config.delay_mean_ns;

    return c->config.delay_min_ns + (int64_t)(-log(1 - rng_unit(&c->rng)) * mean);
}

static enum lane lane_of(enum msg_type type)
{
    if (coord_on_lobby(type) || type == MSG_JOIN)
        return LANE_LOBBY;
    return worker_bulk(type) ? LANE_BULK : LANE_CONTROL;
}

static void plan_delivery(struct cluster *c, uint32_t from, uint32_t to, enum lane lane, int64_t at, struct blob *head,
                          struct blob *body)
{
    struct event *e = cluster_plan_event(c, at, EVENT_MESSAGE, from, to);

    e->lane = lane;
    e->head = blob_ref(head);
    e->body = blob_ref(body);
}

void wire_send(struct cluster *c, uint32_t from, uint32_t to, struct msg *m)
{
    enum lane lane = lane_of(m->type);
    struct blob *head = NULL;
    /* Drawn in any case, so that what happens to one message does not shift the fate of the others. */
    double lost = rng_unit(&c->rng), doubled = rng_unit(&c->rng);
    int64_t first = c->now + delay(c), second = c->now + 20 * delay(c);
    int status = proto_encode(m, &head);

    if (status < 0) {
        check_fail(c, "node %u made a %s that cannot be encoded", from, msg_name(m->type));
    } else if (to < c->n_nodes && (lost >= c->config.loss || m->type == MSG_PROFILE)) {
        /* A profile is said once a link: only a broken link loses it. */
        int64_t *last = &c->last_delivery[from][to][lane];

        *last = first > *last ? first : *last;
        plan_delivery(c, from, to, lane, *last, head, m->body);
        if (doubled < c->config.duplicate)
            plan_delivery(c, from, to, lane, second, head, m->body);
    }
    blob_unref(head);
    msg_free(m);
}

void wire_link(struct cluster *c, uint32_t a, uint32_t b, bool up, int64_t after)
{
    /* At one time, so that no message arrives on a link that is not there yet. */
    int64_t at = c->now + after + delay(c);

    cluster_plan_event(c, at, EVENT_LINK, a, b)->flag = up;
    cluster_plan_event(c, at, EVENT_LINK, b, a)->flag = up;
}
