/* What `shoal train` and `shoal coordinator` share: the options about a job's run, the job with those in force, its
 * folder, its key, its printed events, and running the coordinator with Ctrl-C wired up. */
#ifndef SHOAL_CLI_JOBRUN_H
#define SHOAL_CLI_JOBRUN_H

#include "cli/command.h"
#include "cli/events.h"
#include "crypto/key.h"
#include "model/job.h"
#include "scheduler/coordinator.h"

struct jobrun_args {
    const char *run, *plan, *key;
    uint64_t peers, steps, seed;
    double dead_after;
    bool resume, overwrite;
};

/* Rows of an option table for a struct `type` with a member `struct jobrun_args run`. */
#define JOBRUN_OPTIONS(type, peers_help, plan_help)                                                                    \
    {                                                                                                                  \
        "peers",                                                                                                       \
        "N",                                                                                                           \
        OPTION_COUNT,                                                                                                  \
        offsetof(type, run.peers),                                                                                     \
        .unset = "the job's",                                                                                          \
        .min = 1,                                                                                                      \
        .max = PEERS_MAX,                                                                                              \
        .help = peers_help},                                                                                           \
        {"steps",                                                                                                      \
         "N",                                                                                                          \
         OPTION_COUNT,                                                                                                 \
         offsetof(type, run.steps),                                                                                    \
         .unset = "all of the job's",                                                                                  \
         .min = 1,                                                                                                     \
         .max = (double)JOB_STEPS_MAX,                                                                                 \
         .help = "stop after N steps of the job; the learning rate still follows the whole job, so that a later "      \
                 "--resume goes on as if there had been no stop"},                                                     \
        {"resume", NULL, OPTION_FLAG, offsetof(type, run.resume),                                                      \
         .help = "go on: with the peers of before if they are still there, else from the newest checkpoint in the "    \
                 "run's folder"},                                                                                      \
        {"run",                                                                                                        \
         "DIR",                                                                                                        \
         OPTION_TEXT,                                                                                                  \
         offsetof(type, run.run),                                                                                      \
         .unset = "runs/NAME, NAME being the job's",                                                                   \
         .help = "the run's folder: checkpoints, keys, logs"},                                                         \
        {"overwrite", NULL, OPTION_FLAG, offsetof(type, run.overwrite),                                                \
         .help = "remove the checkpoints of an earlier run in that folder"},                                           \
        {"plan",                                                                                                       \
         "FILE",                                                                                                       \
         OPTION_TEXT,                                                                                                  \
         offsetof(type, run.plan),                                                                                     \
         .unset = "the scheduler decides",                                                                             \
         .help = "a plan to follow: lines `units 0-2: 0 1*3`, `in-flight 4`; " plan_help},                             \
        {"seed",                                                                                                       \
         "N",                                                                                                          \
         OPTION_COUNT,                                                                                                 \
         offsetof(type, run.seed),                                                                                     \
         .unset = "the job's",                                                                                         \
         .help = "of the initial parameters and the choice of samples"},                                               \
        {"dead-after",                                                                                                 \
         "SECONDS",                                                                                                    \
         OPTION_NUMBER,                                                                                                \
         offsetof(type, run.dead_after),                                                                               \
         .fallback = "2",                                                                                              \
         .min = 0.5,                                                                                                   \
         .max = 3600,                                                                                                  \
         .help = "a peer that is silent for so long counts as dead, one whose link broke after half of it, one whose " \
                 "links to all others broke, too, after a tenth; its work goes to others. More for bad links"},        \
    {                                                                                                                  \
        "key", "FILE", OPTION_TEXT, offsetof(type, run.key),                                                           \
            .unset = "keys/coordinator.key in the run's folder",                                                       \
            .help = "the coordinator's key; invites name it, so one key keeps invites valid"                           \
    }

struct jobrun {
    struct job job; /* overrides in force */
    char *job_text, *plan_text, *dir;
    uint64_t stop_after;
    int64_t dead_ns;
    struct key_pair key;
    struct events *events;
    struct coordinator *coordinator; /* made by jobrun_start */
    char *invite_path;               /* the run's invite file */
};

/* The job file, the overrides and the plan's text. On failure *ret holds what there is; jobrun_done in any case. */
int jobrun_load(const char *job_path, const struct jobrun_args *args, struct jobrun *ret, struct reason *why);

/* After jobrun_load: the run's folder, its key, its events. */
int jobrun_open(struct jobrun *run, const struct jobrun_args *args, const struct command_args *common, bool show_invite,
                struct reason *why);

/* Makes the coordinator and writes the run's invite file. The socket fields of `listen` are used, the rest is filled in
 * here. */
int jobrun_start(struct jobrun *run, const struct coordinator_config *listen, bool resume, struct reason *why);

/* Runs the coordinator to its end, with Ctrl-C asking it to stop. ret_told: a note has said why it ended. */
int jobrun_run(struct jobrun *run, bool *ret_told, struct reason *why);

/* Frees the coordinator (its last messages go out) and removes the invite file. */
void jobrun_finish(struct jobrun *run);

void jobrun_done(struct jobrun *run); /* zeroed ok */

#endif
