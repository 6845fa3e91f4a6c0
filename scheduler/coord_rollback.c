/* Nobody is left who holds some unit: the run goes back to its last checkpoint, or to version 0, which anybody can make
 * from the seed, and goes on with the peers that are there under a new plan (design 7). See coord_impl.h. */
#include <inttypes.h>
#include <stdio.h>

#include "runtime/base/clock.h"
#include "scheduler/coord_impl.h"

#define REGATHER_NS (3 * NS_PER_S) /* so long the fleet of before is waited for; then whoever is there goes on */

void coord_start_again(struct coord *c)
{
    const struct coord_config *k = &c->config;

    c->version = k->start_version;
    c->updates = k->start_updates;
    c->loss = k->start_loss;
    c->lineage++;
    coord_record_point(c, COORD_RECORD_ROLLBACK, c->lineage,
                       &(struct coord_save){.version = c->version, .updates = c->updates, .loss = c->loss});
}

void coord_rollback(struct coord *c)
{
    struct coord_config *k = &c->config;
    char text[TEXT_MAX_LEN + 1];

    if (c->saving.phase == SAVING_WRITE) { /* a newer checkpoint is about to be there: coord_on_saved comes back here */
        c->phase = COORD_STALLED;
        return;
    }
    if (c->has_saved) {
        k->start_version = c->saved_version;
        k->start_updates = c->saved_updates;
        k->start_loss = c->saved_loss;
        k->resumed = true;
    }
    snprintf(text, sizeof text, "going back from step %" PRIu64 " to %s of step %" PRIu64, c->version,
             k->resumed ? "the checkpoint" : "the beginning", k->start_version);
    coord_note(c, &(struct note){.kind = NOTE_ROLLBACK, .step = k->start_version, .text = text});
    coord_forget_plan(c);
    coord_start_again(c);
    c->has_commit = false;
    c->save_due = false;
    c->parted_at = 0;
    c->phase = COORD_GATHER;
    c->regather_until = c->now_ns + REGATHER_NS;
    c->waiting_said_at = 0;
    c->update->rollback = k->resumed;
    c->update->rollback_version = k->start_version;
    coord_check_exited(c); /* nobody may be left, and the wait for the checkpoint was all that was left to do */
}

uint32_t coord_wanted(const struct coord *c)
{
    return c->regather_until == 0 || c->now_ns < c->regather_until ? c->config.job->peers : 1;
}
