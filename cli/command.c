/* The table of commands and its printed forms. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

const struct command *const command_table[] = {
    &command_train,   &command_coordinator, &command_peer,    &command_status, &command_generate,
    &command_devices, &command_keygen,      &command_version, &command_help,   NULL,
};

static const struct option common_options[] = {
    {"json", NULL, OPTION_FLAG, offsetof(struct command_args, json),
     .help = "print one JSON object a line, for programs; the log too"},
    {"log-level", "LEVEL", OPTION_TEXT, offsetof(struct command_args, log_level_text), .fallback = "warn",
     .help = "what goes to the log on standard error: error, warn, info or debug"},
    {"help", NULL, OPTION_FLAG, offsetof(struct command_args, help), .help = "print this"},
};

const struct option_table command_common = {"Common options", common_options,
                                            sizeof(common_options) / sizeof(common_options[0])};

const struct command *command_find(const char *name)
{
    for (size_t i = 0; command_table[i] != NULL; i++)
        if (strcmp(command_table[i]->name, name) == 0)
            return command_table[i];
    return NULL;
}

int command_unknown(const char *name, struct reason *why)
{
    const char *names[sizeof(command_table) / sizeof(command_table[0])];
    size_t n = 0;
    for (; command_table[n] != NULL; n++)
        names[n] = command_table[n]->name;
    const char *near = option_nearest(name, names, n);
    if (near != NULL)
        return reason_set(why, -E_INVAL, "there is no command \"%.64s\"; did you mean \"%s\"?", name, near);
    return reason_set(why, -E_INVAL, "there is no command \"%.64s\"; shoal help lists them", name);
}

void command_print_list(void)
{
    printf("shoal: train one model on whatever machines there are.\n\nCommands:\n");
    for (size_t i = 0; command_table[i] != NULL; i++)
        printf("  %-12s %s\n", command_table[i]->name, command_table[i]->summary);
    printf("\nshoal COMMAND --help tells all of one command; shoal help exit-codes lists the exit codes.\n"
           "To begin: shoal train examples/gpt-nano.yaml --peers 3\n");
}

void command_print_help(const struct command *command)
{
    printf("usage: shoal %s%s%s%s\n\n", command->name, command->words[0] == '\0' ? "" : " ", command->words,
           command->n_options == 0 ? "" : " [OPTIONS]");
    option_wrap(stdout, command->about, 0, 0);
    const struct option_table tables[] = {{"Options", command->options, command->n_options}, command_common};
    option_help(stdout, tables, 2);
    printf("\nExample:\n  %s\n", command->example);
}
