/* Names in a checkpoint. See checkpoint_files.h. */
#include "model/checkpoint_files.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/store/file.h"

#define PREFIX "step-"

void checkpoint_name(uint64_t version, char ret[CHECKPOINT_NAME_LEN])
{
    snprintf(ret, CHECKPOINT_NAME_LEN, PREFIX "%08" PRIu64, version);
}

bool checkpoint_name_version(const char *name, uint64_t *ret)
{
    const size_t n = strlen(PREFIX);
    char again[CHECKPOINT_NAME_LEN];
    uint64_t version;

    if (strncmp(name, PREFIX, n) != 0 || strspn(name + n, "0123456789") != strlen(name + n))
        return false;
    version = strtoull(name + n, NULL, 10);
    checkpoint_name(version, again); /* also refuses what overflowed, and other numbers of leading zeros */
    if (strcmp(again, name) != 0)
        return false;
    *ret = version;
    return true;
}

static int compare_descending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x < y) - (x > y);
}

int checkpoint_versions(const char *dir, uint64_t **ret, size_t *ret_n, struct reason *why)
{
    uint64_t *versions;
    char **names;
    size_t n_names, n = 0;
    int r = file_list(dir, &names, &n_names, why);

    if (r < 0)
        return r;
    versions = mem_calloc(n_names, sizeof(*versions));
    for (size_t i = 0; versions != NULL && i < n_names; i++) {
        if (checkpoint_name_version(names[i], &versions[n]))
            n++;
    }
    file_names_free(names, n_names);
    if (versions == NULL)
        return reason_set(why, -E_NOMEM, "no memory to list %s", dir);
    qsort(versions, n, sizeof(*versions), compare_descending);
    *ret = versions;
    *ret_n = n;
    return 0;
}

void checkpoint_tensor(const struct model *m, uint32_t t, enum params_part part, char name[CHECKPOINT_TENSOR_NAME_LEN],
                       struct safetensors_tensor *ret)
{
    static const char *const suffix[PARAMS_PARTS] = {"", ".moment1", ".moment2"};
    const struct model_tensor *tensor = &m->tensors[t];

    assert(t < m->n_tensors && part < PARAMS_PARTS);
    snprintf(name, CHECKPOINT_TENSOR_NAME_LEN, "transformer.%s%s", tensor->name, suffix[part]);
    *ret = (struct safetensors_tensor){
        .name = name,
        .dtype = SAFETENSORS_F32,
        .n_dims = tensor->n_dims,
        .size = (size_t)tensor->n * sizeof(float),
    };
    memcpy(ret->dims, tensor->dims, tensor->n_dims * sizeof(ret->dims[0]));
}
