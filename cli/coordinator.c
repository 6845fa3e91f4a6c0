/* `shoal coordinator JOB.yaml`: run a job's coordinator for peers elsewhere. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/jobrun.h"

#define DEFAULT_PORT 7001

struct coordinator_args {
    struct command_args common;
    struct jobrun_args run;
    const char *host;
    uint64_t port;
    struct option_list advertise;
};

static int coordinator_command_run(void *args, struct reason *why)
{
    struct coordinator_args *a = args;
    struct jobrun run = {0};
    int r = jobrun_load(a->common.words[0], &a->run, &run, why);
    if (r == 0)
        r = jobrun_open(&run, &a->run, &a->common, true, why);
    if (r == 0) {
        const struct coordinator_config listen = {
            .host = a->host,
            .port = a->port == OPTION_UNSET ? DEFAULT_PORT : (uint16_t)a->port,
            .same_port = a->port == OPTION_UNSET,
            .advertise = a->advertise.items,
            .n_advertise = (uint32_t)a->advertise.n,
        };
        r = jobrun_start(&run, &listen, a->run.resume, why);
    }
    if (r == 0)
        r = jobrun_run(&run, &a->common.told, why);
    jobrun_done(&run);
    return r;
}

static const struct option coordinator_options[] = {
    JOBRUN_OPTIONS(struct coordinator_args, "peers to wait for before the first step",
                   "peers are numbered as they join"),
    {"listen", "HOST", OPTION_TEXT, offsetof(struct coordinator_args, host), .fallback = "*",
     .help = "address to listen on, * for all of this machine's"},
    {"port", "P", OPTION_COUNT, offsetof(struct coordinator_args, port),
     .unset = "7001, with --resume the ports of before", .max = 65533,
     .help = "first of three ports in a row (the lobby, control, bulk); 0 takes any that are free"},
    {"advertise", "ADDR", OPTION_LIST, offsetof(struct coordinator_args, advertise),
     .unset = "this machine's addresses",
     .help = "an address under which peers reach this machine, for the invite; may be given several times, needed "
             "behind a router that forwards the ports"},
};

const struct command command_coordinator = {
    .name = "coordinator",
    .summary = "run a job's coordinator and print the invite for other machines",
    .words = "JOB.yaml",
    .min_words = 1,
    .max_words = 1,
    .about =
        "Keeps the job's ledger, waits for the peers, gives each its share, and writes the checkpoints. It prints "
        "an invite: type `shoal peer INVITE` on each machine that shall take part. It computes nothing itself; "
        "run a peer beside it to use this machine too.\n\nThe invite lets anyone who has it join: hand it on as you "
        "would a password. Ctrl-C stops after a checkpoint; --resume goes on. If this process dies, start it again "
        "with --resume: "
        "the peers wait for it, and go on at the step they were at.",
    .example = "shoal coordinator examples/gpt-nano.yaml --peers 2",
    .options = coordinator_options,
    .n_options = sizeof(coordinator_options) / sizeof(coordinator_options[0]),
    .args_size = sizeof(struct coordinator_args),
    .run = coordinator_command_run,
};
