/* Forced plans as people may write them. The first byte tells how many units the model has; the rest is the text.
 * Whatever is read must keep every rule once its peers have keys, print, and copy. */
#include <stdlib.h>
#include <string.h>

#include "parallel/plan.h"
#include "runtime/base/mem.h"
#include "tests/fuzz/fuzz.h"

static void use(struct plan *p, uint32_t n_units)
{
    struct plan copy = {0};
    char *text = NULL;

    for (uint32_t i = 0; i < p->n_peers; i++)
        memcpy(p->peers[i].key.bytes, &i, sizeof(i));
    if (plan_validate(p, n_units, NULL) < 0 || plan_copy(p, &copy) < 0 || plan_print(&copy, NULL, &text) < 0)
        abort();
    if (plan_stage_of(&copy, n_units - 1) != copy.n_stages - 1)
        abort();
    mem_free(text);
    plan_done(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reason why = {0};
    struct plan p = {0};
    char *text;
    int r;

    if (size == 0)
        return 0;
    text = malloc(size);
    if (text == NULL)
        abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    r = plan_parse(text, data[0], &p, &why);
    if (r == 0)
        use(&p, data[0]);
    else if (r != -E_CONFIG || why.text[0] == '\0')
        abort();
    plan_done(&p);
    free(text);
    return 0;
}
