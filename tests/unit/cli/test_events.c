/* Notes as lines, live line and JSON, byte for byte where scripts or eyes rely on it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/events.h"

struct fixture {
    char *text;
    size_t size;
    FILE *out;
    struct events *events;
};

static struct events_config config; /* of the next fixture */

static void fixture_open(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->out = open_memstream(&f->text, &f->size); /* keeps the addresses */
    assert_non_null(f->out);
    config.out = f->out;
    config.err = f->out;
    assert_int_equal(events_new(&config, &f->events), 0);
}

static void fixture_expect(struct fixture *f, const char *want)
{
    f->events = events_free(f->events);
    fclose(f->out);
    assert_string_equal(f->text, want);
    free(f->text);
    config = (struct events_config){0};
}

static struct note step_note(uint64_t step)
{
    return (struct note){.kind = NOTE_STEP,
                         .step = step,
                         .steps_total = 200,
                         .epoch = 1,
                         .n_peers = 3,
                         .loss = 2.5,
                         .norm = 1.25,
                         .lr = 0.0005,
                         .seconds = 0.5,
                         .tokens_per_s = 32768};
}

static void a_step_is_a_line(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    struct note n = step_note(12);
    events_note(f.events, &n);
    n.skipped = true;
    n.n_peers = 1;
    events_note(f.events, &n);
    fixture_expect(&f, "step 12/200  loss 2.5000  32.8k tok/s  0.50 s  3 peers  norm 1.250\n"
                       "step 12/200  loss 2.5000  32.8k tok/s  0.50 s  1 peer  norm 1.250  skipped: a gradient was not "
                       "finite\n");
}

static void the_live_line_is_redrawn_and_other_notes_stand_above_it(void **state)
{
    (void)state;
    config.terminal = true;
    config.columns = 40;
    struct fixture f;
    fixture_open(&f);
    struct note n = step_note(100);
    events_note(f.events, &n);
    n.step = 101;
    events_note(f.events, &n);
    const struct note warning = {.kind = NOTE_WARNING, .text = "two numerics classes"};
    events_note(f.events, &warning);
    n.step = 102;
    events_note(f.events, &n);
    fixture_expect(&f, "step 100/200  loss 2.5000  32.8k tok/s "
                       "\r\033[Kstep 101/200  loss 2.5000  32.8k tok/s "
                       "\r\033[Kwarning: two numerics classes\n"
                       "step 102/200  loss 2.5000  32.8k tok/s \n");
}

static void the_live_line_tells_the_time_left(void **state)
{
    (void)state;
    config.terminal = true;
    config.columns = 200;
    struct fixture f;
    fixture_open(&f);
    struct note n = step_note(50);
    n.seconds = 1;
    events_note(f.events, &n);
    fixture_expect(&f, "step 50/200  loss 2.5000  32.8k tok/s  1.00 s  3 peers  2m30s left\n");
}

static void other_notes_for_people(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    struct note notes[] = {
        {.kind = NOTE_INVITE, .text = "shoal1abc"}, /* not shown: show_invite is off */
        {.kind = NOTE_WAITING, .text = "waiting for 2 more peers"},
        {.kind = NOTE_PEER, .peer_state = NOTE_PEER_JOINED, .name = "box", .text = "cpu, 1 thread"},
        {.kind = NOTE_PEER, .peer_state = NOTE_PEER_DEAD, .name = "", .text = "killed by signal 9 (Killed)"},
        {.kind = NOTE_PLAN, .epoch = 2, .n_peers = 1, .seconds = 0.25, .text = "units 0-1: 0\nin-flight 4\n"},
        {.kind = NOTE_EVAL, .step = 50, .loss = 2.25},
        {.kind = NOTE_CHECKPOINT, .step = 100, .text = "runs/x/step-00000100"},
        {.kind = NOTE_DONE,
         .step = 200,
         .loss = 2,
         .eval_loss = 2.125,
         .unigram_loss = 3,
         .text = "runs/x/step-00000200"},
        {.kind = NOTE_STOPPED, .step = 7, .text = "a peer failed"},
    };
    assert_false(events_told_end(f.events));
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
        events_note(f.events, &notes[i]);
    events_line(f.events, "run folder: %s", "runs/x");
    assert_true(events_told_end(f.events));
    fixture_expect(&f, "waiting for 2 more peers\n"
                       "peer 00000000 (box) joined: cpu, 1 thread\n"
                       "peer 00000000 is gone: killed by signal 9 (Killed)\n"
                       "units 0-1: 0\nin-flight 4\n"
                       "step 50: validation loss 2.2500\n"
                       "step 100: checkpoint runs/x/step-00000100\n"
                       "done: 200 steps, loss 2.0000\n"
                       "validation loss 2.1250 (letter frequencies alone: 3.0000)\n"
                       "model hash 0000000000000000000000000000000000000000000000000000000000000000\n"
                       "checkpoint runs/x/step-00000200\n"
                       "shoal: a peer failed\n"
                       "run folder: runs/x\n");
}

#define ZERO_HEX "0000000000000000000000000000000000000000000000000000000000000000"

static void every_note_is_a_json_object(void **state)
{
    (void)state;
    config.json = true;
    struct fixture f;
    fixture_open(&f);
    struct note notes[] = {
        {.kind = NOTE_INVITE, .text = "shoal1abc"},
        {.kind = NOTE_WAITING, .text = "waiting"},
        {.kind = NOTE_PEER, .peer_state = NOTE_PEER_LEFT, .name = "box", .text = "bye"},
        {.kind = NOTE_PLAN, .epoch = 2, .n_peers = 1, .seconds = 0.25, .text = "units 0-1: 0\n"},
        step_note(12),
        {.kind = NOTE_EVAL, .step = 50, .loss = 2.25},
        {.kind = NOTE_CHECKPOINT, .step = 100, .text = "p"},
        {.kind = NOTE_WARNING, .text = "\"quoted\""},
        {.kind = NOTE_DONE, .step = 200, .loss = 2, .eval_loss = (double)NAN, .unigram_loss = 3, .text = "p"},
        {.kind = NOTE_STOPPED, .step = 7, .text = "why"},
    };
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
        events_note(f.events, &notes[i]);
    events_line(f.events, "for people only");
    fixture_expect(
        &f, "{\"event\":\"invite\",\"invite\":\"shoal1abc\"}\n"
            "{\"event\":\"waiting\",\"text\":\"waiting\"}\n"
            "{\"event\":\"peer\",\"id\":\"" ZERO_HEX "\",\"state\":\"left\",\"name\":\"box\",\"why\":\"bye\"}\n"
            "{\"event\":\"plan\",\"epoch\":2,\"peers\":1,\"predicted_seconds\":0.25,\"plan\":\"units 0-1: 0\\n\"}\n"
            "{\"event\":\"step\",\"step\":12,\"steps_total\":200,\"loss\":2.5,\"tokens_per_s\":32768,\"seconds\":0.5,"
            "\"epoch\":1,\"peers\":3,\"norm\":1.25,\"lr\":0.0005,\"skipped\":false}\n"
            "{\"event\":\"eval\",\"step\":50,\"loss\":2.25}\n"
            "{\"event\":\"checkpoint\",\"step\":100,\"path\":\"p\"}\n"
            "{\"event\":\"warning\",\"text\":\"\\\"quoted\\\"\"}\n"
            "{\"event\":\"done\",\"steps\":200,\"loss\":2,\"hash\":\"" ZERO_HEX
            "\",\"eval_loss\":null,\"unigram_loss\":3,\"checkpoint\":\"p\"}\n"
            "{\"event\":\"stopped\",\"step\":7,\"why\":\"why\"}\n");
}

static void on_closed(void *arg)
{
    ++*(int *)arg;
}

static void a_reader_that_has_gone_is_told_once(void **state)
{
    (void)state;
    int n_closed = 0;
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    config = (struct events_config){.out = full, .err = full, .on_closed = on_closed, .on_closed_arg = &n_closed};
    struct events *e = NULL;
    assert_int_equal(events_new(&config, &e), 0);
    struct note n = step_note(1);
    events_note(e, &n);
    events_note(e, &n);
    events_line(e, "x");
    assert_int_equal(n_closed, 1);
    events_free(e);
    fclose(full);
    config = (struct events_config){0};
}

static void durations(void **state)
{
    (void)state;
    const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0.00 s"},   {9.99, "9.99 s"}, {12.4, "12 s"},     {59.9, "1m00s"}, {65, "1m05s"},
                 {3725, "1h02m"}, {-1, "?"},        {(double)NAN, "?"}, {1e300, "years"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[32];
        events_duration(cases[i].seconds, text);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_a_line),
        cmocka_unit_test(the_live_line_is_redrawn_and_other_notes_stand_above_it),
        cmocka_unit_test(the_live_line_tells_the_time_left),
        cmocka_unit_test(other_notes_for_people),
        cmocka_unit_test(every_note_is_a_json_object),
        cmocka_unit_test(a_reader_that_has_gone_is_told_once),
        cmocka_unit_test(durations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
