/* The plan's two text forms: the table that people read, and the forced plan that people write. They are not the same
 * language: the table names peers, the file numbers them.
 *
 * Invariant: what plan_parse returns keeps every rule of plan_validate but the one about keys, which are still zero. */
#include "parallel/plan.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "parallel/plan_rules.h"
#include "runtime/base/bounds.h"
#include "runtime/base/mem.h"

struct text {
    char *chars; /* NUL-terminated once something was put */
    size_t n, cap;
    int r; /* the first failure; later puts do nothing */
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *fmt, ...)
{
    va_list ap;

    while (t->r == 0) {
        const size_t room = t->cap - t->n;
        int n;

        va_start(ap, fmt);
        n = vsnprintf(room > 0 ? t->chars + t->n : NULL, room, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < room) {
            t->n += (size_t)n;
            return;
        }
        const size_t cap = n < 0 ? 0 : 2 * (t->n + (size_t)n) + 256;
        char *bigger = n < 0 ? NULL : mem_resize(t->chars, t->cap, cap, 1);

        if (bigger == NULL) {
            t->r = -E_NOMEM;
            return;
        }
        t->chars = bigger;
        t->cap = cap;
    }
}

static void put_holder(struct text *t, const struct plan_holder *h, uint64_t sum, const char *const *names)
{
    const char *name = names == NULL ? NULL : names[h->peer];

    if (name != NULL)
        put(t, " %s", name);
    else
        put(t, " peer %u", h->peer);
    if (h->weight == 0)
        put(t, h->joining ? " joining" : " shadow");
    else
        put(t, " %.4g %%", 100.0 * (double)h->weight / (double)sum);
}

int plan_print(const struct plan *p, const char *const *names, char **ret)
{
    struct text t = {0};

    put(&t, "plan %llu: %u units, %u peers, %u in flight", (unsigned long long)p->epoch, p->n_units, p->n_peers,
        p->in_flight);
    if (p->predicted_seconds > 0)
        put(&t, ", %.3g s a step predicted", p->predicted_seconds);
    put(&t, "\n");
    for (uint32_t s = 0; s < p->n_stages; s++) {
        const struct plan_stage *stage = &p->stages[s];
        const struct plan_holder *holders = &p->holders[stage->first_holder];
        char units[32];
        uint64_t sum = 0;

        for (uint32_t i = 0; i < stage->n_holders; i++)
            sum += holders[i].weight;
        snprintf(units, sizeof(units), "%u-%u:", stage->u0, stage->u1 - 1);
        put(&t, "  units %-8s", units);
        for (uint32_t i = 0; i < stage->n_holders; i++) {
            put(&t, "%s", i == 0 ? "" : ",");
            put_holder(&t, &holders[i], sum, names);
        }
        put(&t, "\n");
    }
    if (t.r < 0) {
        mem_free(t.chars);
        return t.r;
    }
    *ret = t.chars;
    return 0;
}

/* Reading: one cursor over the text; line counts from 1. */
struct reader {
    const char *at;
    unsigned line;
    uint32_t stages_cap, holders_cap;
    struct plan *plan;
    struct reason *why;
};

static void blanks(struct reader *r)
{
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\r')
        r->at++;
}

static bool line_over(struct reader *r)
{
    blanks(r);
    return *r->at == '\0' || *r->at == '\n' || *r->at == '#';
}

static bool word(struct reader *r, const char *expected)
{
    const size_t n = strlen(expected);

    blanks(r);
    if (strncmp(r->at, expected, n) != 0)
        return false;
    r->at += n;
    return true;
}

static int number(struct reader *r, const char *what, uint32_t max, uint32_t *ret)
{
    uint64_t value = 0;

    if (!isdigit((unsigned char)*r->at))
        return reason_set(r->why, -E_CONFIG, "line %u: %s expected", r->line, what);
    for (; isdigit((unsigned char)*r->at); r->at++) {
        value = value * 10 + (uint64_t)(*r->at - '0');
        if (value > max)
            return reason_set(r->why, -E_CONFIG, "line %u: %s is more than %u", r->line, what, max);
    }
    *ret = (uint32_t)value;
    return 0;
}

/* Room for one more in a list, which doubles up to max. */
static int grow(struct reader *r, void *list, uint32_t n, uint32_t *cap, uint32_t max, size_t size, const char *what)
{
    void **p = list;

    if (n == max)
        return reason_set(r->why, -E_CONFIG, "line %u: more than %u %s", r->line, max, what);
    if (n == *cap) {
        const uint32_t bigger = *cap == 0 ? 16 : 2 * *cap;
        void *grown = mem_resize(*p, *cap, bigger, size);

        if (grown == NULL)
            return -E_NOMEM;
        *p = grown;
        *cap = bigger;
    }
    return 0;
}

/* PEER[*WEIGHT] */
static int read_holder(struct reader *r)
{
    struct plan *p = r->plan;
    struct plan_holder h = {.weight = 1};
    int e = number(r, "a peer's number", PEERS_MAX - 1, &h.peer);

    if (e == 0 && *r->at == '*') {
        r->at++;
        e = number(r, "a weight", PLAN_WEIGHT_MAX, &h.weight);
    }
    if (e == 0 && !line_over(r) && r->at[-1] != ' ' && r->at[-1] != '\t')
        e = reason_set(r->why, -E_CONFIG, "line %u: a blank expected between peers, not '%c'", r->line,
                       isprint((unsigned char)*r->at) ? *r->at : '?');
    if (e == 0)
        e = grow(r, &p->holders, p->n_holders, &r->holders_cap, HOLDERS_MAX, sizeof(h), "holders");
    if (e < 0)
        return e;
    p->holders[p->n_holders++] = h;
    if (p->n_peers <= h.peer)
        p->n_peers = h.peer + 1;
    return 0;
}

/* A-B: HOLDER... or A: HOLDER... ; B is the last unit of the stage. */
static int read_stage(struct reader *r)
{
    struct plan *p = r->plan;
    struct plan_stage stage = {.first_holder = p->n_holders};
    uint32_t last = 0;
    int e;

    blanks(r);
    e = number(r, "the stage's first unit", UNITS_MAX - 1, &stage.u0);
    last = stage.u0;
    if (e == 0 && word(r, "-")) {
        blanks(r);
        e = number(r, "the stage's last unit", UNITS_MAX - 1, &last);
    }
    if (e == 0 && last < stage.u0)
        e = reason_set(r->why, -E_CONFIG, "line %u: units %u-%u run backwards", r->line, stage.u0, last);
    if (e == 0 && !word(r, ":"))
        e = reason_set(r->why, -E_CONFIG, "line %u: ':' expected after the units", r->line);
    while (e == 0 && !line_over(r))
        e = read_holder(r);
    if (e == 0 && p->n_holders == stage.first_holder)
        e = reason_set(r->why, -E_CONFIG, "line %u: a stage needs a peer", r->line);
    if (e == 0)
        e = grow(r, &p->stages, p->n_stages, &r->stages_cap, STAGES_MAX, sizeof(stage), "stages");
    if (e < 0)
        return e;
    stage.u1 = last + 1;
    stage.n_holders = p->n_holders - stage.first_holder;
    p->stages[p->n_stages++] = stage;
    return 0;
}

static int read_line(struct reader *r)
{
    int e = 0;

    if (!line_over(r)) {
        if (word(r, "units ")) {
            e = read_stage(r);
        } else if (word(r, "in-flight ")) {
            blanks(r);
            e = number(r, "the number in flight", MICROBATCHES_MAX, &r->plan->in_flight);
            if (e == 0 && r->plan->in_flight == 0)
                e = reason_set(r->why, -E_CONFIG, "line %u: at least 1 must be in flight", r->line);
        } else {
            e = reason_set(r->why, -E_CONFIG, "line %u: 'units A-B: PEER...' or 'in-flight N' expected", r->line);
        }
        if (e == 0 && !line_over(r))
            e = reason_set(r->why, -E_CONFIG, "line %u: something stands after its end", r->line);
    }
    if (e == 0) {
        while (*r->at != '\0' && *r->at != '\n') /* a comment */
            r->at++;
        r->at += *r->at == '\n';
        r->line++;
    }
    return e;
}

int plan_parse(const char *text, uint32_t n_units, struct plan *ret, struct reason *why)
{
    struct plan p = {.n_units = n_units};
    struct reader r = {.at = text, .line = 1, .plan = &p, .why = why};
    int e = 0;

    while (e == 0 && *r.at != '\0')
        e = read_line(&r);
    if (e == 0 && p.in_flight == 0)
        p.in_flight = p.n_stages > 0 ? p.n_stages : 1; /* enough to keep each stage busy */
    if (e == 0 && p.n_peers > 0) {
        p.peers = mem_calloc(p.n_peers, sizeof(*p.peers));
        e = p.peers == NULL ? -E_NOMEM : 0;
    }
    if (e == 0 && plan_check_form(&p, n_units, why) < 0)
        e = -E_CONFIG;
    if (e < 0) {
        plan_done(&p);
        return e;
    }
    *ret = p;
    return 0;
}
