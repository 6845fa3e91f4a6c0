/* Notes of a coordinator (scheduler/note.h) to people and programs. On a terminal: one live line for the step, other
 * notes above it. Elsewhere: one line a note. With --json: one object a line, in the forms that docs/cli.md lists.
 *
 * One thread, the one that runs the coordinator. When the reader has gone (a closed pipe), on_closed is called once and
 * nothing is written any more. */
#ifndef SHOAL_CLI_EVENTS_H
#define SHOAL_CLI_EVENTS_H

#include <stdbool.h>
#include <stdio.h>

#include "runtime/base/status.h"
#include "scheduler/note.h"

struct events_config {
    FILE *out;
    FILE *err; /* where people are told that the run ended early */
    bool json;
    bool terminal;    /* out is one: draw the live line */
    int columns;      /* of the terminal; <= 0: 80 */
    bool show_invite; /* people are told the invite (JSON always has it) */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

struct events;

int events_new(const struct events_config *config, struct events **ret); /* -E_NOMEM */
struct events *events_free(struct events *e);                            /* ends the live line; NULL ok; returns NULL */

/* A note_fn; arg is the struct events. */
void events_note(void *arg, const struct note *note);

/* A line of our own among the notes: "run folder: runs/x". Not shown with --json. */
void events_line(struct events *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A note said why the run ended (NOTE_STOPPED), so main need not repeat it. */
bool events_told_end(const struct events *e);

#endif
