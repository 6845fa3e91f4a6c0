/* `shoal peer INVITE`: offer this machine to a job. */
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/identity.h"
#include "cli/rundir.h"
#include "cli/stopping.h"
#include "peer/peer.h"
#include "runtime/base/jsonw.h"

struct peer_args {
    struct command_args common;
    const char *key, *state, *device, *host, *emulate;
    uint64_t threads, memory, port;
    double speed;
};

static void say(void *arg, const char *line)
{
    const struct peer_args *a = arg;
    if (!a->common.json) {
        printf("%s\n", line);
    } else {
        struct jsonw w;
        jsonw_init(&w);
        jsonw_object(&w, NULL);
        jsonw_str(&w, "event", "say");
        jsonw_str(&w, "text", line);
        jsonw_object_end(&w);
        if (jsonw_text(&w) != NULL)
            printf("%s\n", jsonw_text(&w));
        jsonw_done(&w);
    }
    fflush(stdout);
}

static void stop(void *arg)
{
    peer_stop(arg);
}

static int peer_with(struct peer_args *a, const struct invite *invite, const struct key_pair *key, struct reason *why)
{
    const struct peer_config config = {
        .invite = invite,
        .key = key,
        .device = a->device,
        .n_threads = (int)a->threads,
        .memory_bytes = a->memory == OPTION_UNSET ? 0 : a->memory,
        .speed = a->speed,
        .host = a->host,
        .port = (uint16_t)a->port,
        .emulate = a->emulate,
        .say = say,
        .say_arg = a,
    };
    struct peer *p = NULL;
    int r = peer_new(&config, &p, why);
    if (r < 0)
        return r;
    stopping_begin(stop, p, "\nshoal: leaving; Ctrl-C again leaves at once\n");
    r = peer_run(p, why);
    stopping_end();
    peer_free(p);
    return r;
}

static int peer_command_run(void *args, struct reason *why)
{
    struct peer_args *a = args;
    struct invite invite;
    int r = rundir_invite_read(a->common.words[0], &invite, why);
    if (r < 0)
        return r;
    struct key_pair key;
    r = identity_load(a->key, a->state, &key, why);
    if (r < 0)
        return r;
    r = peer_with(a, &invite, &key, why);
    key_pair_wipe(&key);
    return r;
}

static const struct option peer_options[] = {
    {"device", "DEVICE", OPTION_TEXT, offsetof(struct peer_args, device), .unset = "the best there is",
     .help = "what to compute with; shoal devices lists them"},
    {"threads", "N", OPTION_COUNT, offsetof(struct peer_args, threads), .fallback = "0", .max = 1024,
     .help = "threads of a CPU device; 0: one for each core"},
    {"memory", "SIZE", OPTION_SIZE, offsetof(struct peer_args, memory), .unset = "what is free, less a margin",
     .help = "memory to offer, as 512MiB or 4GiB"},
    {"speed", "F", OPTION_NUMBER, offsetof(struct peer_args, speed), .fallback = "1", .min = 0.01, .max = 1,
     .help = "work at a fraction of full speed, resting in between: good manners on a machine in use"},
    {"emulate", "LINK", OPTION_TEXT, offsetof(struct peer_args, emulate), .unset = "none",
     .help = "send as over a slow link, for trying things out: rate=20mbit,delay=40ms"},
    {"listen", "HOST", OPTION_TEXT, offsetof(struct peer_args, host), .unset = "the one that faces the coordinator",
     .help = "address at which other peers reach this one"},
    {"port", "P", OPTION_COUNT, offsetof(struct peer_args, port), .fallback = "0", .max = 65534,
     .help = "first of two ports in a row for other peers; 0: any"},
    {"key", "FILE", OPTION_TEXT, offsetof(struct peer_args, key), .unset = "this machine's identity",
     .help = "the key to join with; two peers on one machine need two"},
    {"state", "DIR", OPTION_TEXT, offsetof(struct peer_args, state),
     .unset = "$SHOAL_HOME, else $XDG_CONFIG_HOME/shoal, else ~/.config/shoal",
     .help = "the folder that keeps this machine's identity"},
};

const struct command command_peer = {
    .name = "peer",
    .summary = "offer this machine to a job",
    .words = "INVITE",
    .min_words = 1,
    .max_words = 1,
    .about =
        "Joins the job that the invite names, measures what this machine can do, and computes the share it is "
        "given until the job is over. No data set is needed here. INVITE is the text that the coordinator printed, "
        "a file that holds it, the folder of a run on this machine, or - for standard input: the last three keep it "
        "from others on this machine, who can read command lines.\n\nCtrl-C leaves "
        "politely.",
    .example = "shoal peer shoal1...",
    .options = peer_options,
    .n_options = sizeof(peer_options) / sizeof(peer_options[0]),
    .args_size = sizeof(struct peer_args),
    .run = peer_command_run,
};
