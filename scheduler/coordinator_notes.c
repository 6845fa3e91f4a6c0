/* Notes wait until the records of their event are written: people and programs are told nothing either that a
 * coordinator which is started again would not know. See coordinator_impl.h. */
#include "runtime/base/mem.h"
#include "scheduler/coordinator_impl.h"

static void note_free(struct note *n)
{
    mem_free((char *)n->name);
    mem_free((char *)n->text);
}

void coordinator_keep_note(void *arg, const struct note *n)
{
    struct coordinator *c = arg;
    struct note copy = *n;

    if (c->n_notes == c->cap_notes) {
        uint32_t cap = c->cap_notes ? 2 * c->cap_notes : 8;
        struct note *grown = mem_resize(c->notes, c->cap_notes, cap, sizeof *grown);

        if (!grown) {
            c->update.fx.oom = true;
            return;
        }
        c->notes = grown;
        c->cap_notes = cap;
    }
    copy.name = n->name ? mem_strdup(n->name) : NULL;
    copy.text = n->text ? mem_strdup(n->text) : NULL;
    c->update.fx.oom = c->update.fx.oom || (n->name && !copy.name) || (n->text && !copy.text);
    if (n->kind == NOTE_DONE) /* what the engine does not know */
        copy.unigram_loss = data_unigram_loss(c->data);
    c->notes[c->n_notes++] = copy;
}

void coordinator_tell_notes(struct coordinator *c)
{
    for (uint32_t i = 0; i < c->n_notes; i++) {
        c->config.note(c->config.note_arg, &c->notes[i]);
        note_free(&c->notes[i]);
    }
    c->n_notes = 0;
}

void coordinator_free_notes(struct coordinator *c)
{
    for (uint32_t i = 0; i < c->n_notes; i++)
        note_free(&c->notes[i]);
    c->notes = mem_free(c->notes);
    c->n_notes = c->cap_notes = 0;
}
