/* Members: joining, the view, links to the coordinator, silence and death. See coord_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "scheduler/coord_impl.h"

void coord_peer_free(struct coord_peer *p)
{
    if (!p)
        return;
    mem_free(p->forward_s);
    mem_free(p->backward_s);
    mem_free(p);
}

struct coord_peer *coord_find(const struct coord *c, const struct key *key)
{
    for (uint32_t i = c->n_peers; i-- > 0;)
        if (key_equal(&c->peers[i]->join.key, key))
            return c->peers[i];
    return NULL;
}

uint32_t coord_admitted(const struct coord *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_peers; i++)
        n += c->peers[i]->admitted;
    return n;
}

uint32_t coord_view_keys(const struct coord *c, struct key *ret)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_peers && n < PEERS_MAX; i++)
        if (c->peers[i]->admitted)
            ret[n++] = c->peers[i]->join.key;
    return n;
}

static void refuse(struct coord *c, const struct key *key, enum msg_refusal code, const char *text)
{
    struct msg *m = coord_msg(c, MSG_REFUSE);

    if (!m)
        return;
    m->refuse.code = code;
    snprintf(m->refuse.text, sizeof m->refuse.text, "%s", text);
    effects_send(&c->update->fx, key, m);
}

static void welcome(struct coord *c, const struct key *key)
{
    struct msg *m = coord_msg(c, MSG_WELCOME);

    if (!m)
        return;
    m->welcome.control_port = c->config.control_port;
    m->welcome.bulk_port = c->config.bulk_port;
    m->body = blob_ref(c->config.job_text);
    effects_send(&c->update->fx, key, m);
}

static void change_view(struct coord *c)
{
    c->view++;
    c->update->view_changed = true;
    for (uint32_t i = 0; i < c->n_peers; i++)
        if (c->peers[i]->admitted && c->peers[i]->linked)
            coord_send_view(c, c->peers[i]);
}

static struct coord_peer *add_peer(struct coord *c, const struct msg_join *join)
{
    struct coord_peer *p = mem_calloc(1, sizeof *p);

    if (p && c->n_peers == c->cap_peers) {
        uint32_t cap = c->cap_peers ? 2 * c->cap_peers : 8;
        struct coord_peer **grown = mem_resize(c->peers, c->cap_peers, cap, sizeof *grown);

        if (grown) {
            c->peers = grown;
            c->cap_peers = cap;
        } else {
            p = mem_free(p);
        }
    }
    if (!p) {
        coord_oom(c);
        return NULL;
    }
    p->join = *join;
    p->admitted = true;
    p->plan_peer = p->next_peer = UINT32_MAX;
    p->heard_at = p->unlinked_at = c->now_ns;
    c->peers[c->n_peers++] = p;
    return p;
}

static void note_mixed_classes(struct coord *c, const struct coord_peer *p)
{
    char id[KEY_SHORT_LEN + 1];

    for (uint32_t i = 0; i < c->n_peers; i++)
        if (c->peers[i]->admitted && strcmp(c->peers[i]->join.fingerprint, p->join.fingerprint) != 0) {
            key_short(&p->join.key, id);
            coord_warn(c,
                       "peer %s (%s) computes with other last bits than %s: the model will be as good, but its hash "
                       "will depend on who did what",
                       id, p->join.name, c->peers[i]->join.name);
            return;
        }
}

void coord_on_join(struct coord *c, const struct key *key, const struct msg *m)
{
    const struct msg_join *j = &m->join;
    struct coord_peer *known = coord_find(c, key);
    char brings[256];

    if (m->type != MSG_JOIN || !key_equal(&j->key, key)) {
        refuse(c, key, MSG_REFUSAL_KEY, "the key stated in JOIN is not the key of the link");
        return;
    }
    if (memcmp(j->job_id, c->config.job_id, sizeof j->job_id) != 0) {
        refuse(c, key, MSG_REFUSAL_JOB, "this coordinator runs another job; ask for a fresh invite");
        return;
    }
    if (memcmp(j->capability, c->config.capability, sizeof j->capability) != 0) {
        refuse(c, key, MSG_REFUSAL_CAPABILITY, "the invite is not valid for this run; ask for a fresh one");
        return;
    }
    if (c->phase >= COORD_ENDING) {
        refuse(c, key, MSG_REFUSAL_OVER, "the job is done or stopping");
        return;
    }
    if (known && j->incarnation < known->join.incarnation) {
        refuse(
            c, key, MSG_REFUSAL_FENCED,
            "a newer process with this key has joined; if that was not you, make a new key with: shoal keygen --force");
        return;
    }
    if (known && j->incarnation == known->join.incarnation) {
        if (known->admitted) {
            known->unlinked_at = c->now_ns;
            welcome(c, key); /* the first answer was lost */
        } else {
            refuse(c, key, MSG_REFUSAL_FENCED, "this process was taken for dead; start it again");
        }
        return;
    }
    if (known && known->admitted)
        coord_lost(c, known, NOTE_PEER_DEAD, "a newer process with the same key took its place");
    if (c->phase >= COORD_ENDING || coord_admitted(c) >= PEERS_MAX) {
        refuse(c, key, MSG_REFUSAL_FULL, "the job has all the peers it can take");
        return;
    }
    struct coord_peer *p = add_peer(c, j);

    if (!p)
        return;
    welcome(c, key);
    c->update->view_changed = true; /* admitted; in the view once it is linked */
    snprintf(brings, sizeof brings, "%s, %u threads, %.1f GiB", j->device, j->n_threads,
             (double)j->memory_bytes / (1 << 30));
    coord_note(
        c, &(struct note){
               .kind = NOTE_PEER, .key = *key, .name = p->join.name, .peer_state = NOTE_PEER_JOINED, .text = brings});
    note_mixed_classes(c, p);
    c->waiting_said_at = 0;
}

void coord_send_view(struct coord *c, struct coord_peer *to)
{
    struct msg *m = coord_msg(c, MSG_VIEW);
    uint32_t n = 0;

    if (!m)
        return;
    m->view.number = c->view;
    m->view.peers = mem_calloc(coord_admitted(c), sizeof *m->view.peers);
    for (uint32_t i = 0; m->view.peers && i < c->n_peers; i++) {
        const struct msg_join *j = &c->peers[i]->join;

        if (!c->peers[i]->admitted || !c->peers[i]->seen)
            continue;
        struct msg_view_peer *v = &m->view.peers[n++];

        v->key = j->key;
        v->incarnation = j->incarnation;
        v->n_addrs = j->n_addrs;
        memcpy(v->addrs, j->addrs, sizeof v->addrs);
        v->control_port = j->control_port;
        v->bulk_port = j->bulk_port;
    }
    m->view.n_peers = n;
    if (!m->view.peers || msg_view_sign(&m->view, c->config.key) < 0) {
        coord_oom(c);
        msg_free(m);
        return;
    }
    to->asked_at = c->now_ns;
    coord_send(c, to, m);
}

void coord_on_link(struct coord *c, const struct key *key, bool up, const char *text)
{
    struct coord_peer *p = coord_find(c, key);

    if (!p || !p->admitted)
        return;
    p->linked = up;
    if (up) {
        p->heard_at = c->now_ns;
        if (!p->seen) {
            p->seen = true;
            change_view(c);
        } else {
            coord_send_view(c, p);
        }
        if (p->plan_peer != UINT32_MAX && c->phase >= COORD_SETUP && c->phase <= COORD_RUN && !p->ready)
            coord_send_plan(c, p);
        return;
    }
    p->unlinked_at = c->now_ns;
    if (p->leaving)
        coord_lost(c, p, NOTE_PEER_LEFT, text ? text : "gone");
}

void coord_on_profile(struct coord *c, struct coord_peer *p, struct msg *m)
{
    struct msg_profile *f = &m->profile;

    if (f->n_units != c->config.model->n_units || p->profiled)
        return;
    p->forward_s = TAKE_PTR(f->forward_s);
    p->backward_s = TAKE_PTR(f->backward_s);
    p->memory_bytes = f->memory_bytes;
    p->profiled = true;
    if (c->phase >= COORD_CONNECT)
        coord_replan_due(c);
    coord_try_plan(c);
}

void coord_lost(struct coord *c, struct coord_peer *p, enum note_peer_state state, const char *text)
{
    char id[KEY_SHORT_LEN + 1];
    uint32_t unit = 0;
    bool planned = p->plan_peer != UINT32_MAX, said = p->leaving && c->phase >= COORD_ENDING;

    if (!p->admitted)
        return;
    p->admitted = p->linked = false;
    key_short(&p->join.key, id);
    if (!said)
        coord_note(c,
                   &(struct note){
                       .kind = NOTE_PEER, .key = p->join.key, .name = p->join.name, .peer_state = state, .text = text});
    if (c->phase < COORD_OVER && p->seen)
        change_view(c);
    else
        c->update->view_changed = true;
    if (p->next_peer != UINT32_MAX)
        coord_next_cancel(c);
    if (!planned)
        return;
    coord_replan_due(c);
    if (c->phase == COORD_CONNECT || c->phase == COORD_SETUP) {
        coord_forget_plan(c);
        c->phase = COORD_GATHER;
        c->waiting_said_at = 0;
    } else if (c->phase == COORD_RUN) {
        c->gone[p->plan_peer] = true;
        if (!plan_counts(&c->plan, p->plan_peer)) {
            coord_try_finish(c); /* it only joined: nobody needs anything of it */
        } else if (coord_covered(c, &unit)) {
            uint32_t n = coord_release(c, p->plan_peer);

            coord_warn(c, "%u leases of step %" PRIu64 " went to the others", n, c->version);
        } else {
            coord_warn(c, "nobody else holds unit %u of the model", unit);
            coord_rollback(c);
        }
    } else if (c->phase == COORD_ENDING) {
        coord_finish(c); /* it may have been the one who was to hand over */
    }
}

/* Who joined and died without ever linking leaves nothing behind: joins cost no memory. */
static void forget_unseen(struct coord *c)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < c->n_peers; i++)
        if (c->peers[i]->admitted || c->peers[i]->seen)
            c->peers[kept++] = c->peers[i];
        else
            coord_peer_free(c->peers[i]);
    c->n_peers = kept;
}

void coord_check_silence(struct coord *c)
{
    forget_unseen(c);
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct coord_peer *p = c->peers[i];
        char text[96];

        if (!p->admitted)
            continue;
        if (!p->linked && c->now_ns - p->unlinked_at > c->config.dead_ns) {
            coord_lost(c, p, NOTE_PEER_DEAD, "its link to the coordinator broke and did not come back");
        } else if (p->linked && c->now_ns - p->heard_at > c->config.dead_ns) {
            snprintf(text, sizeof text, "no sign of life for %.1f s",
                     (double)(c->now_ns - p->heard_at) / (double)NS_PER_S);
            coord_lost(c, p, NOTE_PEER_DEAD, text);
        } else if (p->linked && p->view_acked < c->view && c->now_ns - p->asked_at > COORD_RESEND_NS) {
            coord_send_view(c, p);
        }
    }
}
