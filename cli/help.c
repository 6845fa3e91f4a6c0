/* `shoal help [TOPIC]` and `shoal version`. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/exit.h"
#include "parallel/proto.h"
#include "runtime/base/jsonw.h"

static int help_run(void *args, struct reason *why)
{
    const struct command_args *a = args;
    if (a->n_words == 0) {
        command_print_list();
        return 0;
    }
    if (strcmp(a->words[0], "exit-codes") == 0) {
        exit_print(stdout);
        return 0;
    }
    const struct command *command = command_find(a->words[0]);
    if (command == NULL)
        return command_unknown(a->words[0], why);
    command_print_help(command);
    return 0;
}

const struct command command_help = {
    .name = "help",
    .summary = "tell about a command, or the exit codes",
    .words = "[COMMAND | exit-codes]",
    .max_words = 1,
    .about = "Without a word it lists the commands.",
    .example = "shoal help train",
    .args_size = sizeof(struct command_args),
    .run = help_run,
};

static int version_run(void *args, struct reason *why)
{
    (void)why;
    const struct command_args *a = args;
    if (!a->json) {
        printf("shoal %s (protocol %u)\n", SHOAL_VERSION, PROTO_VERSION);
        return 0;
    }
    struct jsonw w;
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "version", SHOAL_VERSION);
    jsonw_int(&w, "protocol", PROTO_VERSION);
    jsonw_object_end(&w);
    const char *text = jsonw_text(&w);
    if (text != NULL)
        printf("%s\n", text);
    jsonw_done(&w);
    return text == NULL ? -E_NOMEM : 0;
}

const struct command command_version = {
    .name = "version",
    .summary = "print the version",
    .words = "",
    .about =
        "Prints the version of the program and of the protocol. Machines of one job need the same protocol version.",
    .example = "shoal version",
    .args_size = sizeof(struct command_args),
    .run = version_run,
};
