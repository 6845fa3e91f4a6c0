/* `shoal`: finds the command, reads its options, runs it, says what went wrong, exits. The only place that prints a
 * failure, and the only one that turns a status into an exit code. */
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/command.h"
#include "cli/exit.h"
#include "crypto/key.h"
#include "runtime/base/jsonw.h"
#include "runtime/base/mem.h"

static void print_failure(const struct command *command, const struct command_args *args, int status,
                          const struct reason *why)
{
    const char *text = reason_text(why, status);
    if (args != NULL && args->json) {
        struct jsonw w;
        jsonw_init(&w);
        jsonw_object(&w, NULL);
        jsonw_str(&w, "event", "error");
        jsonw_int(&w, "exit_code", exit_code(status));
        jsonw_str(&w, "text", text);
        jsonw_object_end(&w);
        if (jsonw_text(&w) != NULL)
            printf("%s\n", jsonw_text(&w));
        jsonw_done(&w);
    }
    if (command == NULL)
        fprintf(stderr, "shoal: %s\n", text);
    else
        fprintf(stderr, "shoal %s: %s\n", command->name, text);
}

/* Reads the options. Positive: help was asked for and printed. */
static int parse(const struct command *command, int argc, char **argv, struct command_args *args, struct reason *why)
{
    const struct option_table tables[] = {{"Options", command->options, command->n_options}, command_common};
    int r = option_parse(tables, 2, argc, argv, args, args->words, command->max_words, &args->n_words, why);
    if (r < 0)
        return r;
    if (args->help) {
        command_print_help(command);
        return 1;
    }
    if (args->n_words < command->min_words)
        return reason_set(why, -E_INVAL, "%s is missing; for example: %s", command->words, command->example);
    r = log_level_parse(args->log_level_text, &args->log_level);
    if (r < 0)
        return reason_set(why, r, "--log-level %.32s: must be error, warn, info or debug", args->log_level_text);
    return 0;
}

static int run(const struct command *command, int argc, char **argv)
{
    cleanup_mem_ struct command_args *args = mem_calloc(1, command->args_size);
    struct reason why = {0};
    int r = args == NULL ? -E_NOMEM : parse(command, argc, argv, args, &why);
    if (r > 0)
        return EXIT_DONE;
    if (r < 0) {
        print_failure(command, args, r, &why);
        if (r == -E_INVAL)
            fprintf(stderr, "usage: shoal %s %s [OPTIONS]; shoal %s --help tells all\n", command->name, command->words,
                    command->name);
        return exit_code(r);
    }
    log_setup(args->log_level, args->json);
    r = key_setup(&why);
    if (r == 0)
        r = command->run(args, &why);
    if (r < 0 && !args->told)
        print_failure(command, args, r, &why);
    if (fflush(stdout) != 0 && r == 0)
        r = -E_IO;
    return exit_code(r);
}

/* Every peer's link takes descriptors, and the usual soft limit is only there for programs that use select(). */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* refused: the old limit will do for small fleets */
}

int main(int argc, char **argv)
{
    raise_descriptors();
    /* Numbers are written and read with a point, whatever the machine's language. */
    setlocale(LC_ALL, "C");
    if (argc < 2) {
        command_print_list();
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    const struct command *command = command_find(name);
    if (command == NULL) {
        struct reason why = {0};
        int r = command_unknown(name, &why);
        print_failure(NULL, NULL, r, &why);
        return exit_code(r);
    }
    return run(command, argc - 2, argv + 2);
}
