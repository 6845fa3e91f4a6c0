/* `shoal train JOB.yaml`: a coordinator and N local peers, each a process with its own key, on this machine. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "cli/children.h"
#include "cli/command.h"
#include "cli/jobrun.h"
#include "cli/rundir.h"
#include "cli/value.h"
#include "kernels/registry.h"
#include "runtime/base/mem.h"
#include "runtime/base/text.h"
#include "runtime/net/net.h"
#include "runtime/store/file.h"

#define LOCAL_PEERS_MAX 64 /* processes on one machine */
#define ARGV_MAX        24
/* For local peers to end by themselves after a good run, after a bad one (some may not know of it). */
#define END_WAIT_MS     5000
#define END_BAD_WAIT_MS 1000

struct train_args {
    struct command_args common;
    struct jobrun_args run;
    const char *speeds, *threads, *memory, *device, *emulate;
};

/* One local peer: its key and the words of its command line. */
struct local {
    struct key key;
    char *key_path, *log_path;
    char speed[64], threads[64], memory[64];
    char *argv[ARGV_MAX];
};

struct train {
    struct jobrun run;
    size_t n;
    struct local *locals; /* [n] */
    struct key *order;    /* [n] their keys: plan files number them as --speeds does */
    char *lists[3];       /* storage behind split options */
    struct children *children;
};

/* Values of a list option for n peers: one for all, or one each. *n is set by the first list that has more than one
 * value when it is 0. copies[i] points into *storage. */
static int spread(const char *name, const char *text, size_t *n, char **values, char **storage, struct reason *why)
{
    size_t count = 0;
    int r = value_split(text, values, LOCAL_PEERS_MAX, &count, why);
    if (r < 0)
        return reason_wrap(why, r, "--%s", name);
    *storage = values[0];
    if (*n == 0 && count > 1)
        *n = count;
    if (count == 1) {
        for (size_t i = 1; i < LOCAL_PEERS_MAX; i++)
            values[i] = values[0];
        return 0;
    }
    if (count != *n)
        return reason_set(why, -E_INVAL, "--%s has %zu values for %zu peer%s: give one for all, or one for each", name,
                          count, *n, text_s(*n));
    return 0;
}

static int check_number(const char *name, const char *text, double min, double max, struct reason *why)
{
    double v = 0;
    int r = value_number(text, &v, why);
    if (r < 0)
        return reason_wrap(why, r, "--%s", name);
    if (v < min || v > max)
        return reason_set(why, -E_INVAL, "--%s %.32s: must lie between %g and %g", name, text, min, max);
    return 0;
}

/* Reads the lists into t->locals and settles t->n: --peers, else the length of a list, else the job's. */
static int read_lists(const struct train_args *a, struct train *t, uint64_t job_peers, struct reason *why)
{
    char *values[3][LOCAL_PEERS_MAX];
    const char *const names[3] = {"speeds", "threads", "memory"};
    const char *const texts[3] = {a->speeds, a->threads, a->memory};
    size_t n = a->run.peers == OPTION_UNSET ? 0 : a->run.peers;
    if (n > LOCAL_PEERS_MAX)
        return reason_set(why, -E_INVAL, "--peers %zu: at most %d peers of one machine", n, LOCAL_PEERS_MAX);
    for (int l = 0; l < 3; l++) {
        int r = texts[l] == NULL ? 0 : spread(names[l], texts[l], &n, values[l], &t->lists[l], why);
        if (r < 0)
            return r;
    }
    t->n = n == 0 ? job_peers : n;
    if (t->n > LOCAL_PEERS_MAX)
        return reason_set(why, -E_CONFIG,
                          "the job waits for %zu peers; --peers N starts fewer on this machine (at most "
                          "%d)",
                          t->n, LOCAL_PEERS_MAX);
    t->locals = mem_calloc(t->n, sizeof(*t->locals));
    if (t->locals == NULL)
        return -E_NOMEM;
    for (size_t i = 0; i < t->n; i++) {
        struct local *p = &t->locals[i];
        uint64_t bytes = 0;
        int r = check_number("speeds", values[0][i], 0.01, 1, why);
        if (r == 0)
            r = check_number("threads", values[1][i], 1, 1024, why);
        if (r == 0 && texts[2] != NULL && (r = value_size(values[2][i], &bytes, why)) < 0)
            reason_wrap(why, r, "--memory");
        if (r < 0)
            return r;
        snprintf(p->speed, sizeof(p->speed), "%s", values[0][i]);
        snprintf(p->threads, sizeof(p->threads), "%s", values[1][i]);
        if (texts[2] == NULL) /* they share what is free */
            snprintf(p->memory, sizeof(p->memory), "%llu", (unsigned long long)(mem_offer_bytes() / t->n));
        else
            snprintf(p->memory, sizeof(p->memory), "%s", values[2][i]);
    }
    return 0;
}

static void argv_fill(const struct train_args *a, char *invite_path, struct local *p)
{
    /* Never the invite itself: command lines can be read by everyone on the machine. */
    const char *words[ARGV_MAX] = {"shoal",   "peer",     invite_path, "--key",       p->key_path,
                                   "--speed", p->speed,   "--threads", p->threads,    "--memory",
                                   p->memory, "--listen", "127.0.0.1", "--log-level", a->common.log_level_text};
    size_t n = 15;
    const char *const optional[2][2] = {{"--device", a->device}, {"--emulate", a->emulate}};
    for (int i = 0; i < 2; i++) {
        if (optional[i][1] == NULL)
            continue;
        words[n++] = optional[i][0];
        words[n++] = optional[i][1];
    }
    assert(n < ARGV_MAX);
    for (size_t i = 0; i < ARGV_MAX; i++)
        p->argv[i] = (char *)words[i]; /* exec's argv is not const, but only read */
}

/* The local peers' keys and files; the words of their command lines need the coordinator first. */
static int locals_prepare(struct train *t, struct reason *why)
{
    t->order = mem_calloc(t->n, sizeof(*t->order));
    if (t->order == NULL)
        return -E_NOMEM;
    for (size_t i = 0; i < t->n; i++) {
        struct local *p = &t->locals[i];
        char name[32];
        struct key_pair pair;
        snprintf(name, sizeof(name), "peer-%zu", i);
        int r = rundir_key(t->run.dir, name, &pair, &p->key_path, why);
        if (r < 0)
            return r;
        p->key = t->order[i] = pair.pub;
        key_pair_wipe(&pair);
        snprintf(name, sizeof(name), "peer-%zu.log", i);
        p->log_path = file_join(t->run.dir, name);
        if (p->log_path == NULL)
            return -E_NOMEM;
    }
    return 0;
}

/* On the watching thread. */
static void on_exited(void *arg, size_t i, const char *text)
{
    struct train *t = arg;
    coordinator_peer_exited(t->run.coordinator, &t->locals[i].key, text);
}

static int locals_start(const struct train_args *a, struct train *t, struct reason *why)
{
    char *const *argv[LOCAL_PEERS_MAX];
    const char *logs[LOCAL_PEERS_MAX];
    for (size_t i = 0; i < t->n; i++) {
        argv_fill(a, t->run.invite_path, &t->locals[i]);
        argv[i] = t->locals[i].argv;
        logs[i] = t->locals[i].log_path;
    }
    const struct children_config config = {
        .program = "/proc/self/exe",
        .n = t->n,
        .argv = argv,
        .log_path = a->common.log_level == LOG_DEBUG ? NULL : logs,
        .exited = on_exited,
        .arg = t,
    };
    return children_start(&config, &t->children, why);
}

/* What every local peer would refuse is refused before one is started. */
static int check_peers_options(const struct train_args *a, struct reason *why)
{
    struct kern k = {0};
    struct net_config net = {0};
    int r = a->emulate == NULL ? 0 : net_emulate_parse(a->emulate, &net, why);
    if (r < 0)
        return reason_wrap(why, r, "--emulate");
    r = a->device == NULL ? 0 : kern_open(a->device, 1, &k, why);
    kern_close(&k);
    return r < 0 ? reason_wrap(why, r, "--device") : 0;
}

static int train_with(struct train_args *a, struct train *t, struct reason *why)
{
    int r = jobrun_load(a->common.words[0], &a->run, &t->run, why);
    if (r == 0)
        r = check_peers_options(a, why);
    if (r == 0)
        r = read_lists(a, t, t->run.job.peers, why);
    if (r == 0)
        r = jobrun_open(&t->run, &a->run, &a->common, false, why);
    if (r == 0)
        r = locals_prepare(t, why);
    if (r < 0)
        return r;
    t->run.job.peers = (uint32_t)t->n;
    const struct coordinator_config listen = {.host = "127.0.0.1", .order = t->order, .n_order = (uint32_t)t->n};
    r = jobrun_start(&t->run, &listen, a->run.resume, why);
    if (r == 0)
        r = locals_start(a, t, why);
    if (r == 0)
        r = jobrun_run(&t->run, &a->common.told, why);
    return r;
}

static int train_run(void *args, struct reason *why)
{
    struct train t = {0};
    int r = train_with(args, &t, why);
    if (t.children != NULL)
        children_hush(t.children); /* before the coordinator that it tells goes away */
    jobrun_finish(&t.run);
    children_free(t.children, r < 0 ? END_BAD_WAIT_MS : END_WAIT_MS);
    for (size_t i = 0; t.locals != NULL && i < t.n; i++) {
        mem_free(t.locals[i].key_path);
        mem_free(t.locals[i].log_path);
    }
    mem_free(t.locals);
    mem_free(t.order);
    for (int l = 0; l < 3; l++)
        mem_free(t.lists[l]);
    jobrun_done(&t.run);
    return r;
}

static const struct option train_options[] = {
    JOBRUN_OPTIONS(struct train_args, "peers to start", "peer 0 is the first one of the lists"),
    {"speeds", "LIST", OPTION_TEXT, offsetof(struct train_args, speeds), .fallback = "1",
     .help = "fraction of full speed of each peer, as 1,0.5,0.25: a mixed fleet on one machine"},
    {"threads", "LIST", OPTION_TEXT, offsetof(struct train_args, threads), .fallback = "1",
     .help = "threads of each peer. One, because the peers share this machine's cores; the result does not depend on "
             "it"},
    {"memory", "LIST", OPTION_TEXT, offsetof(struct train_args, memory), .unset = "an equal part of what is free",
     .help = "memory that each peer offers, as 512MiB or 1GiB,4GiB"},
    {"device", "DEVICE", OPTION_TEXT, offsetof(struct train_args, device), .unset = "the best there is",
     .help = "what every peer computes with; shoal devices lists them"},
    {"emulate", "LINK", OPTION_TEXT, offsetof(struct train_args, emulate), .unset = "none",
     .help = "links as slow as this between the peers: rate=20mbit,delay=40ms"},
};

const struct command command_train = {
    .name = "train",
    .summary = "train a job on this machine: a coordinator and N local peers",
    .words = "JOB.yaml",
    .min_words = 1,
    .max_words = 1,
    .about = "Starts a coordinator and as many peers as the job or --peers says, all on this machine, and trains the "
             "job to its end. Peers are processes of their own that talk over encrypted links, exactly as they would "
             "between machines; their output goes to peer-N.log in the run's folder (to the terminal with --log-level "
             "debug).\n\nThe model hash at the end does not depend on the number of peers, their speeds, threads or "
             "shares. Ctrl-C stops after a checkpoint; --resume goes on.",
    .example = "shoal train examples/gpt-nano.yaml --peers 3 --speeds 1,0.5,0.25",
    .options = train_options,
    .n_options = sizeof(train_options) / sizeof(train_options[0]),
    .args_size = sizeof(struct train_args),
    .run = train_run,
};
