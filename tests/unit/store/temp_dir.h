/* A folder of a test's own below the system's temporary folder, removed with all it holds afterwards. */
#ifndef SHOAL_TESTS_UNIT_STORE_TEMP_DIR_H
#define SHOAL_TESTS_UNIT_STORE_TEMP_DIR_H

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/mem.h"
#include "runtime/store/file.h"

/* cmocka set-up and tear-down; *state is the path. */
static inline int temp_dir_make(void **state)
{
    const char *base = getenv("TMPDIR");
    char *path = file_join(base != NULL ? base : "/tmp", "shoal-test-XXXXXX");

    if (path == NULL || mkdtemp(path) == NULL)
        return -1;
    *state = path;
    return 0;
}

static inline int temp_dir_remove(void **state)
{
    const int r = file_remove_tree(*state, NULL);

    mem_free(*state);
    return r;
}

#endif
