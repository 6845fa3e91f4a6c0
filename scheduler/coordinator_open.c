/* Starting a coordinator: the run's folder and term, the checkpoint to resume from, sockets, the invite, the engine.
 * See coordinator.h. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "scheduler/coordinator_impl.h"

static void wake(void *arg)
{
    net_wake(((struct coordinator *)arg)->wire.net);
}

static int open_run(struct coordinator *c, struct reason *why)
{
    cleanup_mem_ char *lock = file_join(c->config.run_dir, "lock");
    int status;

    c->checkpoints_dir = file_join(c->config.run_dir, "checkpoints");
    if (!lock || !c->checkpoints_dir)
        return -E_NOMEM;
    status = file_make_dirs(c->config.run_dir, why);
    if (status == 0)
        status = file_lock(lock, &c->lock, why);
    if (status == -E_AGAIN)
        return reason_set(why, status,
                          "another coordinator is running in %s; wait for it, or choose another folder with --run",
                          c->config.run_dir);
    if (status == 0)
        status = coordinator_begin_term(c, why);
    return status;
}

int coordinator_open_checkpoint(struct coordinator *c, struct reason *why)
{
    cleanup_mem_ char *path = NULL;
    int status = checkpoint_latest(c->checkpoints_dir, &path, &c->damaged, why);

    if (status == -E_NOENT) {
        if (why)
            *why = (struct reason){0};
        return 0;
    }
    if (status == 0 && c->n_checkpoints == COORDINATOR_ROLLBACKS_MAX)
        status = reason_set(why, -E_TOOBIG, "the run went back to a checkpoint %u times", c->n_checkpoints);
    if (status == 0)
        status = checkpoint_open(path, c->model, &c->checkpoint, why);
    if (status < 0)
        return status;
    c->checkpoints[c->n_checkpoints++] = c->checkpoint;
    mem_free(c->checkpoint_path);
    c->checkpoint_path = TAKE_PTR(path);
    return 0;
}

__attribute__((format(printf, 3, 4))) static void say(struct coordinator *c, enum note_kind kind, const char *fmt, ...)
{
    char text[2 * REASON_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->config.note(c->config.note_arg, &(struct note){.kind = kind, .text = text});
}

void coordinator_say_resumed(struct coordinator *c)
{
    const struct checkpoint_state *s = c->checkpoint ? checkpoint_state(c->checkpoint) : NULL;
    const uint64_t last = c->config.stop_after ? c->config.stop_after : c->config.job->train.steps;
    struct reason why = {0};
    char changed[256];
    struct job then;

    if (!s) {
        say(c, NOTE_WARNING, "there is no checkpoint to resume from: beginning at step 0");
        return;
    }
    if (c->damaged.text[0])
        say(c, NOTE_WARNING, "a newer checkpoint is damaged and left alone: %s", c->damaged.text);
    if (s->version >= last)
        say(c, NOTE_WAITING, "already at step %" PRIu64 " (%s): nothing is left to train", s->version,
            c->checkpoint_path);
    else
        say(c, NOTE_WAITING, "resuming at step %" PRIu64 " from %s", s->version, c->checkpoint_path);
    if (s->data_fingerprint != data_fingerprint(c->data) || s->seed != c->config.job->seed)
        say(c, NOTE_WARNING,
            "the %s changed since the checkpoint of step %" PRIu64 ": training goes on, but not to the same bits",
            s->seed != c->config.job->seed ? "seed" : "training text", s->version);
    if (checkpoint_job(c->checkpoint_path, &then, NULL, &why) < 0)
        return;
    job_differences(c->config.job, &then, changed, sizeof changed);
    if (changed[0])
        say(c, NOTE_WARNING,
            "the job has other values than at step %" PRIu64 ": %s; training goes on with the new ones", s->version,
            changed);
    job_done(&then);
}

static int open_net(struct coordinator *c, struct reason *why)
{
    uint16_t port = c->config.port;
    bool again = c->config.resume && c->config.same_port && c->run.port[NET_LOBBY];
    struct net_config n = {.host = c->config.host, .listen = {true, true, true}};

    memcpy(n.curve_pub, c->config.key->curve_pub, sizeof n.curve_pub);
    memcpy(n.curve_secret, c->config.key->curve_secret, sizeof n.curve_secret);
    if (again) {
        memcpy(n.port, c->run.port, sizeof n.port);
    } else if (port) {
        n.port[NET_LOBBY] = port;
        n.port[NET_CONTROL] = (uint16_t)(port + 1);
        n.port[NET_BULK] = (uint16_t)(port + 2);
    }
    int status = net_open(&n, &c->wire.net, why);

    if (status == -E_IO && port)
        reason_set(why, status, "%s; --port %u takes the ports %u to %u, --port 0 any that are free",
                   reason_text(why, status), port, port, port + 2);
    return status < 0 ? status : coordinator_note_ports(c, why);
}

static int make_invite(struct coordinator *c, struct reason *why)
{
    struct invite inv = {.coordinator = c->config.key->pub};
    char local[ADDRS_MAX][HOST_MAX_LEN + 1];
    bool any =
        strcmp(c->config.host, "*") == 0 || strcmp(c->config.host, "0.0.0.0") == 0 || strcmp(c->config.host, "::") == 0;
    int n_local = any ? net_local_addrs(local, ADDRS_MAX) : 0;
    uint32_t n = c->config.n_advertise ? c->config.n_advertise : any ? (uint32_t)n_local : 1;

    memcpy(inv.job_id, c->run.job_id, sizeof inv.job_id);
    memcpy(inv.capability, c->run.capability, sizeof inv.capability);
    for (uint32_t i = 0; i < n && i < ADDRS_MAX; i++) {
        const char *host = c->config.n_advertise ? c->config.advertise[i] : any ? local[i] : c->config.host;

        if (snprintf(inv.addrs[i].host, sizeof inv.addrs[i].host, "%s", host) > HOST_MAX_LEN)
            return reason_set(why, -E_INVAL, "the address to advertise is too long: %s", host);
        inv.addrs[i].port = net_port(c->wire.net, NET_LOBBY);
        inv.n_addrs++;
    }
    int status = invite_encode(&inv, c->invite);

    return status < 0 ? reason_set(why, status, "no invite can be made of the addresses to advertise") : 0;
}

static int make_engine(struct coordinator *c, struct reason *why)
{
    const struct checkpoint_state *s = c->checkpoint ? checkpoint_state(c->checkpoint) : NULL;
    const struct job *job = c->config.job;
    struct coord_record *records = NULL;
    uint32_t n_records = 0;
    int status = coordinator_load(c, &records, &n_records, why);
    struct coord_config e = {.job = job,
                             .model = c->model,
                             .key = c->config.key,
                             .job_text = c->job_text,
                             .plan_text = c->config.plan_text,
                             .order = c->config.order,
                             .n_order = c->config.n_order,
                             .term = c->run.term,
                             .stop_after = c->config.stop_after ? c->config.stop_after : job->train.steps,
                             .start_version = s ? s->version : 0,
                             .start_updates = s ? s->updates : 0,
                             .start_loss = s ? s->loss : 0,
                             .resumed = s != NULL,
                             .dead_ns = c->config.dead_ns,
                             .control_port = net_port(c->wire.net, NET_CONTROL),
                             .bulk_port = net_port(c->wire.net, NET_BULK),
                             .records = records,
                             .n_records = n_records,
                             .reattach = c->reattach};

    memcpy(e.job_id, c->run.job_id, sizeof e.job_id);
    memcpy(e.capability, c->run.capability, sizeof e.capability);
    if (status == 0)
        status = coord_new(&e, &c->engine);
    coordinator_free_records(records, n_records);
    return status == -E_CORRUPT && why->text[0] == '\0'
               ? reason_set(why, status, "the ledger in %s holds what no coordinator wrote", c->config.run_dir)
               : status;
}

static int make_saver(struct coordinator *c)
{
    return saver_new(&(struct saver_config){.model = c->model,
                                            .job = c->config.job,
                                            .job_text = c->config.job_text,
                                            .dir = c->checkpoints_dir,
                                            .data_fingerprint = data_fingerprint(c->data),
                                            .wake = wake,
                                            .wake_arg = c},
                     &c->saver);
}

int coordinator_new(const struct coordinator_config *config, struct coordinator **ret, struct reason *why)
{
    struct coordinator *c = mem_calloc(1, sizeof *c);
    int status;

    if (!c)
        return -E_NOMEM;
    c->config = *config;
    pthread_mutex_init(&c->exited_lock, NULL);
    c->update.note = coordinator_keep_note;
    c->update.note_arg = c;
    status = model_new(config->job, &c->model, why);
    if (status == 0)
        status = data_open(config->job, &c->data, why);
    if (status == 0)
        status = blob_new(strlen(config->job_text), &c->job_text);
    if (status == 0) {
        memcpy(c->job_text->data, config->job_text, c->job_text->size);
        status = open_run(c, why);
    }
    if (status == 0 && config->resume)
        status = coordinator_open_checkpoint(c, why);
    if (status == 0)
        status = open_net(c, why);
    if (status == 0)
        status = make_invite(c, why);
    if (status == 0)
        status = make_engine(c, why);
    if (status == 0)
        status = make_saver(c);
    if (status < 0) {
        coordinator_free(c);
        return status;
    }
    *ret = c;
    return 0;
}

struct coordinator *coordinator_free(struct coordinator *c)
{
    if (!c)
        return NULL;
    saver_free(c->saver);
    coord_update_done(&c->update);
    coordinator_free_notes(c);
    coord_free(c->engine);
    net_free(c->wire.net);
    wire_done(&c->wire);
    for (uint32_t i = 0; i < c->n_checkpoints; i++)
        checkpoint_free(c->checkpoints[i]);
    data_free(c->data);
    model_free(c->model);
    blob_unref(c->job_text);
    mem_free(c->checkpoint_path);
    mem_free(c->checkpoints_dir);
    ledger_close(c->ledger);
    file_unlock(c->lock);
    pthread_mutex_destroy(&c->exited_lock);
    return mem_free(c);
}

const char *coordinator_invite(const struct coordinator *c)
{
    return c->invite;
}
