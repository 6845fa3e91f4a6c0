/* Ctrl-C and SIGTERM for commands that run long: the first asks politely, the second at once, the third kills. */
#ifndef SHOAL_CLI_STOPPING_H
#define SHOAL_CLI_STOPPING_H

/* From now on SIGINT, SIGTERM and SIGHUP call stop(arg), which must be fit for a signal handler, and SIGPIPE is
 * ignored. hint (may be NULL) is written to standard error at the first one. One such at a time; stopping_end puts the
 * defaults back and must come before arg goes away. */
void stopping_begin(void (*stop)(void *arg), void *arg, const char *hint);
void stopping_end(void);

#endif
