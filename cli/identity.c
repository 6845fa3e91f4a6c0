/* Finding keys. Reading and making them is crypto/key.h. */
#include "cli/identity.h"

#include <stdlib.h>

#include "runtime/base/mem.h"
#include "runtime/store/file.h"

int identity_path(const char *key_option, const char *state_option, char **ret, struct reason *why)
{
    char *path = NULL;
    if (key_option == NULL && state_option == NULL)
        return key_default_path(ret, why);
    path = key_option != NULL ? mem_strdup(key_option) : file_join(state_option, "key");
    if (path == NULL)
        return -E_NOMEM;
    *ret = path;
    return 0;
}

int identity_advise(int status, struct reason *why)
{
    if (status != -E_IO && status != -E_PERM && status != -E_NOENT && status != -E_EXIST)
        return status;
    return reason_set(why, status, "%s; --key FILE or --state DIR names another place", reason_text(why, status));
}

int identity_load(const char *key_option, const char *state_option, struct key_pair *ret, struct reason *why)
{
    cleanup_mem_ char *path = NULL;
    int r = identity_path(key_option, state_option, &path, why);
    return r < 0 ? r : identity_advise(key_load_or_make(path, ret, NULL, why), why);
}
