/* The exit codes of `shoal`: one table that maps statuses to codes, is printed by `shoal help exit-codes`, and is
 * documented in docs/cli.md. Scripts rely on the numbers: append, never change one. */
#ifndef SHOAL_CLI_EXIT_H
#define SHOAL_CLI_EXIT_H

#include <stdio.h>

/* X(name, code, meaning) */
#define EXIT_MAP(X)                                                                                                    \
    X(DONE, 0, "done")                                                                                                 \
    X(USAGE, 2, "the command line is wrong: unknown option, missing word, mistyped invite")                            \
    X(FILE, 3, "a file, folder, port or job cannot be used: missing, damaged, not permitted, wrong contents")          \
    X(UNREACHABLE, 4, "nobody answers where the coordinator should be")                                                \
    X(REFUSED, 5, "refused: another key than the invite's, or not admitted to the job")                                \
    X(VERSION, 6, "the other side, or a file, speaks an incompatible version")                                         \
    X(PEER, 7, "a peer (or the coordinator) failed during the run: shoal train JOB.yaml --resume goes on")             \
    X(MEMORY, 8, "out of memory, or the job does not fit the peers")                                                   \
    X(INTERNAL, 9, "anything else: a limit, a numerical failure, a bug")                                               \
    X(STOPPED, 130, "stopped by Ctrl-C or SIGTERM")

enum exit_code {
#define X(name, code, meaning) EXIT_##name = (code),
    EXIT_MAP(X)
#undef X
};

/* The exit code of a status: 0, or -E_*. */
int exit_code(int status);

/* The table for people. */
void exit_print(FILE *out);

#endif
