/* Statuses to exit codes. Not the place of any sentence: those travel in struct reason. */
#include "cli/exit.h"

#include "runtime/base/status.h"

/* Every status has its line here; the count in the assertion makes a new one fail to compile until it has. */
static const int code_of_status[] = {
    [E_OK] = EXIT_DONE,
    [E_NOMEM] = EXIT_MEMORY,
    [E_INVAL] = EXIT_USAGE,
    [E_PROTO] = EXIT_INTERNAL,
    [E_VERSION] = EXIT_VERSION,
    [E_IO] = EXIT_FILE,
    [E_NOENT] = EXIT_FILE,
    [E_EXIST] = EXIT_FILE,
    [E_PERM] = EXIT_FILE,
    [E_AUTH] = EXIT_REFUSED,
    [E_AGAIN] = EXIT_FILE, /* a lock that another run holds */
    [E_CLOSED] = EXIT_UNREACHABLE,
    [E_TIMEOUT] = EXIT_UNREACHABLE,
    [E_TOOBIG] = EXIT_INTERNAL,
    [E_NODEV] = EXIT_USAGE, /* --device names one that is not there */
    [E_UNSUPPORTED] = EXIT_INTERNAL,
    [E_CORRUPT] = EXIT_FILE,
    [E_NUMERIC] = EXIT_INTERNAL,
    [E_CANCELED] = EXIT_STOPPED,
    [E_UNREACHABLE] = EXIT_UNREACHABLE,
    [E_CONFIG] = EXIT_FILE,
    [E_PEER] = EXIT_PEER,
    [E_INTERNAL] = EXIT_INTERNAL,
    [E_FIT] = EXIT_MEMORY,
};
_Static_assert(sizeof(code_of_status) / sizeof(code_of_status[0]) == E_STATUS_END, "a status without an exit code");

int exit_code(int status)
{
    int s = status < 0 ? -status : status;
    return s < E_STATUS_END ? code_of_status[s] : EXIT_INTERNAL;
}

void exit_print(FILE *out)
{
    fprintf(out, "Exit codes of shoal:\n\n");
#define X(name, code, meaning) fprintf(out, "  %3d  %s\n", code, meaning);
    EXIT_MAP(X)
#undef X
}
