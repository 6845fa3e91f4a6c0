/* A command of `shoal`: its words, its options, its work. main.c holds the table; each command is one file that defines
 * one of these and nothing else that others see. */
#ifndef SHOAL_CLI_COMMAND_H
#define SHOAL_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/option.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

#define COMMAND_WORDS_MAX 2

/* What every command gets; the first member of each command's arguments struct. */
struct command_args {
    bool json, help;
    const char *log_level_text;
    enum log_level log_level; /* log_level_text, parsed */
    const char *words[COMMAND_WORDS_MAX];
    size_t n_words;
    bool told; /* set by run: people or programs have been told of the failure, main says no more */
};

struct command {
    const char *name, *summary;
    const char *words; /* what follows the name, for the usage line: "JOB.yaml" */
    size_t min_words, max_words;
    const char *about;   /* a paragraph or two, wrapped when printed */
    const char *example; /* a whole line to type */
    const struct option *options;
    size_t n_options;
    size_t args_size; /* of the arguments struct */
    int (*run)(void *args, struct reason *why);
};

extern const struct command command_keygen, command_coordinator, command_peer, command_train, command_status,
    command_devices, command_generate, command_version, command_help;

extern const struct option_table command_common; /* the options of struct command_args */

/* All commands in the order in which help lists them, NULL at the end. */
extern const struct command *const command_table[];

const struct command *command_find(const char *name); /* NULL: none */
int command_unknown(const char *name, struct reason *why);
void command_print_list(void);                          /* `shoal help` */
void command_print_help(const struct command *command); /* `shoal COMMAND --help` */

#endif
