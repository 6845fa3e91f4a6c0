/* One note as a JSON object: the forms that programs read (docs/cli.md). */
#ifndef SHOAL_CLI_EVENTS_JSON_H
#define SHOAL_CLI_EVENTS_JSON_H

#include <stdbool.h>

#include "runtime/base/jsonw.h"
#include "scheduler/note.h"

/* Writes the object for note into an initialised w. */
void events_json(struct jsonw *w, const struct note *note);

#endif
