/* The run's ledger from the coordinator's side: its own record of the run (term, what invites hold, ports, and what the
 * run was of), the engine's records, and the rule "write, then tell". See coordinator_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/store/json.h"
#include "scheduler/coordinator_impl.h"

#define RUN_KIND         "run"
#define HISTORY_KEPT_MAX 1000 /* plans, commits, checkpoints, rollbacks: the newest of each */

static const char *const port_names[NET_CHANNELS] = {
    [NET_CONTROL] = "control_port", [NET_BULK] = "bulk_port", [NET_LOBBY] = "port"};

static int read_run(const struct blob *b, struct coordinator_life *ret, struct reason *why)
{
    struct json *doc = NULL;
    uint64_t port[NET_CHANNELS] = {0};
    int status = json_parse(b->data, b->size, &doc, why);

    if (status == 0)
        status = json_get_u64(doc, "term", &ret->term, why);
    if (status == 0)
        status = json_get_hex(doc, "job_id", ret->job_id, sizeof ret->job_id, why);
    if (status == 0)
        status = json_get_hex(doc, "capability", ret->capability, sizeof ret->capability, why);
    if (status == 0)
        status = json_get_hex(doc, "key", ret->key.bytes, sizeof ret->key.bytes, why);
    if (status == 0)
        status = json_get_hex(doc, "job", ret->job_hash, sizeof ret->job_hash, why);
    for (int i = 0; status == 0 && i < NET_CHANNELS; i++) {
        status = json_get_u64(doc, port_names[i], &port[i], why);
        if (status == 0 && port[i] > UINT16_MAX)
            status = reason_set(why, -E_CORRUPT, "%s is no port", port_names[i]);
        ret->port[i] = (uint16_t)port[i];
    }
    json_free(doc);
    return status;
}

static void write_hex(struct jsonw *w, const char *name, const uint8_t *bytes, size_t n)
{
    char text[2 * HASH_BYTES + 1];

    for (size_t i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    jsonw_str(w, name, text);
}

/* Within a transaction. */
static int put_run(struct coordinator *c, struct reason *why)
{
    const struct coordinator_life *r = &c->run;
    char term[24];
    struct jsonw w;
    int status = -E_NOMEM;

    snprintf(term, sizeof term, "%" PRIu64, r->term);
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "term", term);
    write_hex(&w, "job_id", r->job_id, sizeof r->job_id);
    write_hex(&w, "capability", r->capability, sizeof r->capability);
    write_hex(&w, "key", r->key.bytes, sizeof r->key.bytes);
    write_hex(&w, "job", r->job_hash, sizeof r->job_hash);
    for (int i = 0; i < NET_CHANNELS; i++)
        jsonw_int(&w, port_names[i], r->port[i]);
    jsonw_object_end(&w);
    if (jsonw_text(&w))
        status = ledger_put(c->ledger, RUN_KIND, 0, jsonw_text(&w), strlen(jsonw_text(&w)), why);
    jsonw_done(&w);
    return status;
}

/* What peers were told of the job and computed with: another text or seed is another job. */
static void hash_job(const struct coordinator_config *config, uint8_t ret[HASH_BYTES])
{
    struct hash h;

    hash_init(&h);
    hash_update(&h, config->job_text, strlen(config->job_text));
    hash_update(&h, &config->job->seed, sizeof config->job->seed);
    hash_final(&h, ret);
}

/* Fills c->run from the ledger, or begins it. */
static int load_run(struct coordinator *c, struct reason *why)
{
    struct blob *b = NULL;
    uint8_t job[HASH_BYTES];
    int status = ledger_get(c->ledger, RUN_KIND, 0, &b, why);

    hash_job(&c->config, job);
    c->reattach = false;
    if (status == 0) {
        status = read_run(b, &c->run, why);
        blob_unref(b);
        if (status < 0)
            return reason_wrap(why, -E_CORRUPT, "the ledger in %s", c->config.run_dir);
        c->reattach = c->config.resume && c->config.order == NULL && key_equal(&c->run.key, &c->config.key->pub) &&
                      memcmp(c->run.job_hash, job, sizeof job) == 0;
    } else if (status == -E_NOENT) {
        if (why)
            *why = (struct reason){0}; /* a new run */
        status = 0;
        key_random(c->run.job_id, sizeof c->run.job_id);
        key_random(c->run.capability, sizeof c->run.capability);
    }
    c->run.term++;
    c->run.key = c->config.key->pub;
    memcpy(c->run.job_hash, job, sizeof job);
    return status;
}

int coordinator_begin_term(struct coordinator *c, struct reason *why)
{
    cleanup_mem_ char *path = file_join(c->config.run_dir, "ledger.db");
    int status = path ? ledger_open(path, &c->ledger, why) : -E_NOMEM;

    if (status == 0)
        status = load_run(c, why);
    if (status == 0)
        status = ledger_begin(c->ledger, why);
    if (status < 0)
        return status;
    status = put_run(c, why);
    for (int kind = 0; status == 0 && !c->config.resume && kind < COORD_RECORD_KINDS; kind++)
        status = ledger_prune(c->ledger, coord_record_names[kind], 0, why); /* of a run before in this folder */
    if (status == 0)
        return ledger_commit(c->ledger, why);
    ledger_cancel(c->ledger);
    return status;
}

int coordinator_note_ports(struct coordinator *c, struct reason *why)
{
    for (int i = 0; i < NET_CHANNELS; i++)
        c->run.port[i] = net_port(c->wire.net, i);
    int status = ledger_begin(c->ledger, why);

    if (status < 0)
        return status;
    status = put_run(c, why);
    if (status == 0)
        return ledger_commit(c->ledger, why);
    ledger_cancel(c->ledger);
    return status;
}

struct load {
    enum coord_record_kind kind;
    struct coord_record *records;
    uint32_t n, cap;
};

static int take_record(void *arg, uint64_t key, const void *data, size_t size)
{
    struct load *l = arg;
    struct coord_record *r;

    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 64;

        r = mem_resize(l->records, l->cap, cap, sizeof *r);
        if (!r)
            return -E_NOMEM;
        l->records = r;
        l->cap = cap;
    }
    r = &l->records[l->n];
    *r = (struct coord_record){.kind = l->kind, .key = key};
    if (blob_new(size, &r->data) < 0)
        return -E_NOMEM;
    if (size > 0)
        memcpy(r->data->data, data, size);
    l->n++;
    return 0;
}

int coordinator_load(struct coordinator *c, struct coord_record **ret, uint32_t *ret_n, struct reason *why)
{
    struct load l = {0};
    int status = 0;

    for (; status == 0 && l.kind < COORD_RECORD_KINDS; l.kind++)
        status = ledger_each(c->ledger, coord_record_names[l.kind], take_record, &l, why);
    if (status < 0) {
        coordinator_free_records(l.records, l.n);
        return status;
    }
    *ret = l.records;
    *ret_n = l.n;
    return 0;
}

void coordinator_free_records(struct coord_record *records, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        blob_unref(records[i].data);
    mem_free(records);
}

static int put_record(struct coordinator *c, const struct coord_record *r, struct reason *why)
{
    const char *kind = coord_record_names[r->kind];
    int status;

    if (!r->data)
        return ledger_remove(c->ledger, kind, r->key, why);
    if (r->history)
        status = ledger_append(c->ledger, kind, r->key, r->data->data, r->data->size, why);
    else
        status = ledger_put(c->ledger, kind, r->key, r->data->data, r->data->size, why);
    if (status == 0 && r->kind != COORD_RECORD_STATE && r->kind != COORD_RECORD_MEMBER)
        status = ledger_prune(c->ledger, kind, HISTORY_KEPT_MAX, why);
    return status;
}

int coordinator_write(struct coordinator *c, struct reason *why)
{
    struct coord_update *u = &c->update;
    int status = u->n_records > 0 ? ledger_begin(c->ledger, why) : 0;

    if (u->n_records == 0 || status < 0)
        return status;
    for (uint32_t i = 0; status == 0 && i < u->n_records; i++)
        status = put_record(c, &u->records[i], why);
    if (status == 0)
        status = ledger_commit(c->ledger, why);
    else
        ledger_cancel(c->ledger);
    coord_records_clear(u);
    return status;
}
