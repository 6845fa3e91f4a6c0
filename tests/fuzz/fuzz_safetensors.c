/* The header of a tensor file is a stranger's text: whatever it says, the parser answers with a sentence or with
 * tensors that lie in the input. */
#include <assert.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/store/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors *s = NULL;
    struct reason why = {0};
    uint8_t *aligned;
    uint64_t sum = 0;

    aligned = mem_alloc(size);
    assert(aligned != NULL);
    if (size > 0)
        memcpy(aligned, data, size);
    if (safetensors_parse(aligned, size, &s, &why) < 0) {
        assert(s == NULL && why.text[0] != '\0');
    } else {
        for (size_t i = 0; i < safetensors_count(s); i++) {
            const struct safetensors_tensor *t = safetensors_at(s, i);

            assert(safetensors_find(s, t->name) == t);
            for (size_t b = 0; b < t->size; b++)
                sum += ((const uint8_t *)t->data)[b];
        }
        assert(sum <= 255 * size);
    }
    safetensors_free(s);
    mem_free(aligned);
    return 0;
}
