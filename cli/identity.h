/* Where the command line finds a key: --key FILE, or this machine's identity. */
#ifndef SHOAL_CLI_IDENTITY_H
#define SHOAL_CLI_IDENTITY_H

#include "crypto/key.h"

/* The path to use: a copy of key_option if given, state_option/key if that is given, else key_default_path. mem_free.
 */
int identity_path(const char *key_option, const char *state_option, char **ret, struct reason *why);

/* When a key could not be read or made, adds to why how to name another place. Returns status. */
int identity_advise(int status, struct reason *why);

/* identity_path, and the key in it, made where there is none. The caller wipes *ret. */
int identity_load(const char *key_option, const char *state_option, struct key_pair *ret, struct reason *why);

#endif
