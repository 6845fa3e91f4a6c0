/* The table of commands: each one's options and help are sound. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"

/* Every command: a valid table (fallbacks parse, names are unique), complete help, no line beyond the screen. */
static void every_command_has_a_sound_table_and_help(void **state)
{
    (void)state;
    for (size_t i = 0; command_table[i] != NULL; i++) {
        const struct command *c = command_table[i];
        assert_ptr_equal(command_find(c->name), c);
        const struct option_table tables[] = {{"Options", c->options, c->n_options}, command_common};
        struct command_args *args = calloc(1, c->args_size);
        assert_non_null(args);
        assert_int_equal(option_parse(tables, 2, 0, NULL, args, args->words, 2, &args->n_words, NULL), 0);
        assert_string_equal(args->log_level_text, "warn");
        free(args);

        char *text = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&text, &size);
        option_help(f, tables, 2);
        fclose(f);
        for (size_t o = 0; o < c->n_options; o++) {
            char name[64];
            snprintf(name, sizeof(name), "  --%s", c->options[o].name);
            assert_non_null(strstr(text, name));
            assert_int_equal(c->options[o].metavar == NULL, c->options[o].type == OPTION_FLAG);
            for (size_t p = 0; p < o; p++)
                assert_string_not_equal(c->options[o].name, c->options[p].name);
        }
        for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
            assert_true(strlen(line) <= 80);
        free(text);
    }
}

static void unknown_commands_suggest(void **state)
{
    (void)state;
    struct reason why = {0};
    assert_null(command_find("trian"));
    assert_int_equal(command_unknown("trian", &why), -E_INVAL);
    assert_non_null(strstr(why.text, "did you mean \"train\"?"));
    assert_int_equal(command_unknown("frobnicate", &why), -E_INVAL);
    assert_non_null(strstr(why.text, "shoal help lists them"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_has_a_sound_table_and_help),
        cmocka_unit_test(unknown_commands_suggest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
