/* Members: joining, the view, links to the coordinator, silence and death. See coord_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/text.h"
#include "scheduler/coord_impl.h"

/* Who has just joined builds its device and its links: so long it may say nothing. */
#define SETTLING_NS    (10 * NS_PER_S)
#define WITNESSED_PART 5 /* whose link broke for everybody has so much less time to come back */

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

void coord_name(const struct coord_peer *p, char ret[COORD_NAME_MAX])
{
    char id[KEY_SHORT_LEN + 1];

    key_short(&p->join.key, id);
    snprintf(ret, COORD_NAME_MAX, "peer %s (%s)", id, p->join.name);
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

struct coord_peer *coord_add_peer(struct coord *c, const struct msg_join *join)
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
    if (!p)
        return NULL;
    p->join = *join;
    p->admitted = true;
    p->plan_peer = UINT32_MAX;
    p->heard_at = p->unlinked_at = c->now_ns;
    c->peers[c->n_peers++] = p;
    return p;
}

static void note_mixed_classes(struct coord *c, const struct coord_peer *p)
{
    char name[COORD_NAME_MAX];

    for (uint32_t i = 0; i < c->n_peers; i++)
        if (c->peers[i]->admitted && strcmp(c->peers[i]->join.fingerprint, p->join.fingerprint) != 0) {
            coord_name(p, name);
            coord_warn(c,
                       "%s computes with other last bits than %s: the model will be as good, but its hash "
                       "will depend on who did what",
                       name, c->peers[i]->join.name);
            return;
        }
}

void coord_on_join(struct coord *c, const struct key *key, const struct msg *m)
{
    const struct msg_join *j = &m->join;
    struct coord_peer *known = coord_find(c, key);
    char brings[256], memory[TEXT_SIZE_MAX];

    if (m->type != MSG_JOIN || !key_equal(&j->key, key)) {
        refuse(c, key, MSG_REFUSAL_KEY, "the key stated in JOIN is not the key of the link");
        return;
    }
    if (memcmp(j->job_id, c->config.job_id, sizeof j->job_id) != 0) {
        refuse(c, key, MSG_REFUSAL_JOB, "this coordinator runs another job; ask for a fresh invite");
        return;
    }
    if (!key_secret_equal(j->capability, c->config.capability, sizeof j->capability)) {
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
    struct coord_peer *p = coord_add_peer(c, j);

    if (!p) {
        coord_oom(c);
        return;
    }
    welcome(c, key);
    c->update->view_changed = true; /* admitted; in the view once it is linked */
    text_size(j->memory_bytes, memory);
    snprintf(brings, sizeof brings, "%s, %u thread%s, %s", j->device, j->n_threads, text_s(j->n_threads), memory);
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
        p->back = true;
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
    if (c->phase >= COORD_CONNECT && p->plan_peer == UINT32_MAX && !p->restored) {
        char name[COORD_NAME_MAX];

        coord_name(p, name);
        coord_warn(c, "%s came after the plan was made: it stands by, and takes part when the job is next resumed",
                   name);
    }
    coord_try_plan(c);
}

void coord_lost(struct coord *c, struct coord_peer *p, enum note_peer_state state, const char *text)
{
    uint32_t unit = 0;
    bool planned = p->plan_peer != UINT32_MAX, said = p->leaving && c->phase >= COORD_ENDING;

    said = said || (!planned && p->restored && !p->back); /* it was gone before this coordinator was there */

    if (!p->admitted)
        return;
    p->admitted = p->linked = false;
    if (!said)
        coord_note(c,
                   &(struct note){
                       .kind = NOTE_PEER, .key = p->join.key, .name = p->join.name, .peer_state = state, .text = text});
    if (c->phase < COORD_OVER && p->seen)
        change_view(c);
    else
        c->update->view_changed = true;
    if (!planned)
        return;
    if (c->phase == COORD_CONNECT || c->phase == COORD_SETUP) {
        coord_forget_plan(c);
        c->phase = COORD_GATHER;
        c->waiting_said_at = 0;
    } else if (c->phase == COORD_REATTACH) {
        c->gone[p->plan_peer] = true;
        coord_reattach(c);
    } else if (c->phase == COORD_RUN) {
        c->gone[p->plan_peer] = true;
        if (coord_covered(c, &unit)) {
            struct note n = {.kind = NOTE_RELEASED, .key = p->join.key, .name = p->join.name, .step = c->version};

            n.seconds = (double)(c->now_ns - p->heard_at) / (double)NS_PER_S;
            n.n_leases = coord_release(c, p->plan_peer);
            coord_note(c, &n);
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
        if (c->peers[i]->admitted || c->peers[i]->seen || c->peers[i]->recorded)
            c->peers[kept++] = c->peers[i];
        else
            coord_peer_free(c->peers[i]);
    c->n_peers = kept;
}

/* Whether every other holder says that its link to p broke, too: then it is not the way between p and us. A link that
 * only carries nothing for a while is not broken: TCP waits far longer. */
static bool broken_for_all(const struct coord *c, const struct coord_peer *p)
{
    uint32_t n = c->plan.n_peers, n_witnesses = 0;

    for (uint32_t i = 0; c->phase == COORD_RUN && p->plan_peer != UINT32_MAX && i < n; i++) {
        if (i == p->plan_peer || !coord_alive(c, i))
            continue;
        if (c->link_up[(size_t)i * n + p->plan_peer])
            return false;
        n_witnesses++;
    }
    return n_witnesses > 0;
}

static int64_t longer(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void coord_check_silence(struct coord *c)
{
    const struct coord_config *k = &c->config;

    forget_unseen(c);
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct coord_peer *p = c->peers[i];
        int64_t silent = p->profiled ? k->dead_ns : longer(k->dead_ns, SETTLING_NS);
        int64_t broken = !p->seen               ? longer(k->broken_ns, SETTLING_NS)
                         : broken_for_all(c, p) ? k->broken_ns / WITNESSED_PART
                                                : k->broken_ns;
        char text[96];

        if (!p->admitted)
            continue;
        if (!p->linked && c->now_ns - p->unlinked_at > broken) {
            coord_lost(c, p, NOTE_PEER_DEAD, "its link to the coordinator broke and did not come back");
        } else if (p->linked && c->now_ns - p->heard_at > silent) {
            snprintf(text, sizeof text, "no sign of life for %.1f s",
                     (double)(c->now_ns - p->heard_at) / (double)NS_PER_S);
            coord_lost(c, p, NOTE_PEER_DEAD, text);
        } else if (p->linked && p->view_acked < c->view && c->now_ns - p->asked_at > COORD_RESEND_NS) {
            coord_send_view(c, p);
        }
    }
}
