/* A run from the command line's side. What happens in it is scheduler/coordinator.h. */
#include "cli/jobrun.h"

#include <assert.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/rundir.h"
#include "cli/stopping.h"
#include "model/model.h"
#include "parallel/plan.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"

#define PLAN_TEXT_MAX (256u << 10)

/* Reads the forced plan to find what is wrong with it before anybody waits for it. */
static int plan_load(const char *path, struct jobrun *run, struct reason *why)
{
    struct model *model = NULL;
    struct plan plan = {0};
    int r = file_read(path, PLAN_TEXT_MAX, &run->plan_text, NULL, why);
    if (r == 0)
        r = model_new(&run->job, &model, why);
    if (r == 0)
        r = plan_parse(run->plan_text, model->n_units, &plan, why);
    plan_done(&plan);
    model_free(model);
    return r < 0 ? reason_wrap(why, r, "--plan %s", path) : 0;
}

int jobrun_load(const char *path, const struct jobrun_args *args, struct jobrun *run, struct reason *why)
{
    if (args->resume && args->overwrite)
        return reason_set(why, -E_INVAL, "--resume goes on from the checkpoints that --overwrite removes: take one");
    int r = job_load(path, &run->job, &run->job_text, why);
    if (r == -E_NOENT)
        return reason_set(why, r, "there is no job file %s; examples/gpt-nano.yaml is one to begin with", path);
    if (r < 0)
        return r;
    if (args->peers != OPTION_UNSET)
        run->job.peers = (uint32_t)args->peers;
    if (args->seed != OPTION_UNSET)
        run->job.seed = args->seed;
    run->dead_ns = (int64_t)(args->dead_after * (double)NS_PER_S);
    run->stop_after = args->steps == OPTION_UNSET ? run->job.train.steps : args->steps;
    if (run->stop_after > run->job.train.steps)
        return reason_set(why, -E_CONFIG,
                          "--steps %llu: the job ends after %llu steps, and so does its learning-rate schedule; raise "
                          "train.steps in %s for a longer run",
                          (unsigned long long)run->stop_after, (unsigned long long)run->job.train.steps, path);
    return args->plan != NULL ? plan_load(args->plan, run, why) : 0;
}

/* Nobody reads the events any more: as if Ctrl-C had been pressed, the work is not lost. */
static void on_closed(void *arg)
{
    struct jobrun *run = arg;
    if (run->coordinator != NULL)
        coordinator_stop(run->coordinator);
}

static int events_open(const struct command_args *common, bool show_invite, struct jobrun *run)
{
    struct winsize size = {0};
    bool terminal = !common->json && isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    struct events_config config = {
        .out = stdout,
        .err = stderr,
        .json = common->json,
        .terminal = terminal,
        .columns = size.ws_col,
        .show_invite = show_invite,
        .on_closed = on_closed,
        .on_closed_arg = run,
    };
    return events_new(&config, &run->events);
}

int jobrun_open(struct jobrun *run, const struct jobrun_args *args, const struct command_args *common, bool show_invite,
                struct reason *why)
{
    int r = rundir_path(args->run, run->job.name, &run->dir, why);
    if (r == 0)
        r = rundir_prepare(run->dir, args->resume, args->overwrite, why);
    if (r == 0)
        r = args->key != NULL ? key_load_or_make(args->key, &run->key, NULL, why)
                              : rundir_key(run->dir, "coordinator", &run->key, NULL, why);
    if (r == 0)
        r = events_open(common, show_invite, run);
    return r;
}

int jobrun_start(struct jobrun *run, const struct coordinator_config *listen, bool resume, struct reason *why)
{
    struct coordinator_config config = *listen;
    config.job = &run->job;
    config.job_text = run->job_text;
    config.run_dir = run->dir;
    config.plan_text = run->plan_text;
    config.stop_after = run->stop_after;
    config.resume = resume;
    config.dead_ns = run->dead_ns;
    config.key = &run->key;
    config.note = events_note;
    config.note_arg = run->events;
    int r = coordinator_new(&config, &run->coordinator, why);
    if (r < 0)
        return r;
    events_line(run->events, "run folder: %s", run->dir);
    return rundir_invite_write(run->dir, coordinator_invite(run->coordinator), &run->invite_path, why);
}

static void stop(void *arg)
{
    coordinator_stop(arg);
}

int jobrun_run(struct jobrun *run, bool *ret_told, struct reason *why)
{
    stopping_begin(stop, run->coordinator, "\nshoal: stopping after a checkpoint; Ctrl-C again stops at once\n");
    int r = coordinator_run(run->coordinator, why);
    stopping_end();
    *ret_told = events_told_end(run->events);
    return r;
}

void jobrun_finish(struct jobrun *run)
{
    run->coordinator = coordinator_free(run->coordinator);
    if (run->invite_path != NULL)
        unlink(run->invite_path); /* an invite that leads nowhere would only puzzle people */
    run->invite_path = mem_free(run->invite_path);
}

void jobrun_done(struct jobrun *run)
{
    jobrun_finish(run);
    run->events = events_free(run->events);
    key_pair_wipe(&run->key);
    job_done(&run->job);
    mem_free(run->job_text);
    mem_free(run->plan_text);
    mem_free(run->dir);
}
