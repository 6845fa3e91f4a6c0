/* Prints what our units make of a checkpoint and a prompt, as JSON, for tools/transformers_check.py to compare:
 *     print_logits CHECKPOINT PROMPT     {"tokens":[...],"logits":[[...],...]}: the n_ctx last bytes of PROMPT
 *     print_logits --make DIR            writes a checkpoint of a small random model below DIR and prints its path
 * Not a test by itself, and not installed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "model/generate.h"
#include "model/tokenizer.h"
#include "runtime/base/jsonw.h"
#include "tests/unit/model/random_checkpoint.h"

static int print_json(const struct model *m, const int32_t *tokens, size_t n, const float *logits)
{
    struct jsonw w;
    const char *text;

    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_array(&w, "tokens");
    for (size_t i = 0; i < n; i++)
        jsonw_int(&w, NULL, tokens[i]);
    jsonw_array_end(&w);
    jsonw_array(&w, "logits");
    for (size_t i = 0; i < n; i++) {
        jsonw_array(&w, NULL);
        for (size_t v = 0; v < m->n_vocab; v++)
            jsonw_num(&w, NULL, (double)logits[i * m->n_vocab + v]);
        jsonw_array_end(&w);
    }
    jsonw_array_end(&w);
    jsonw_object_end(&w);
    text = jsonw_text(&w);
    if (text != NULL)
        puts(text);
    jsonw_done(&w);
    return text != NULL ? 0 : -E_NOMEM;
}

static int print_logits(struct generate *g, const char *prompt)
{
    const struct model *m = generate_model(g);
    const size_t len = strlen(prompt), n = len < m->n_ctx ? len : m->n_ctx;
    cleanup_mem_ int32_t *tokens = mem_calloc(n, sizeof(int32_t));
    cleanup_mem_ float *logits = mem_calloc(n * m->n_vocab, sizeof(float));
    int r;

    if (n == 0)
        return -E_INVAL;
    if (tokens == NULL || logits == NULL)
        return -E_NOMEM;
    tokenizer_encode((const uint8_t *)prompt + (len - n), n, tokens);
    r = generate_logits(g, tokens, n, 0, logits);
    return r == 0 ? print_json(m, tokens, n, logits) : r;
}

int main(int argc, char **argv)
{
    struct reason why = {0};
    struct generate *g = NULL;
    struct kern kern = {0};
    char *path = NULL;
    int r;

    if (argc != 3) {
        fprintf(stderr, "usage: %s CHECKPOINT PROMPT | --make DIR\n", argv[0]);
        return 2;
    }
    if (strcmp(argv[1], "--make") == 0) {
        r = random_checkpoint(argv[2], &path, &why);
        if (r == 0)
            puts(path);
        mem_free(path);
    } else {
        r = kern_open("cpu", 1, &kern, &why);
        if (r == 0)
            r = generate_open(argv[1], &kern, &g, &why);
        if (r == 0)
            r = print_logits(g, argv[2]);
        generate_free(g);
        kern_close(&kern);
    }
    if (r < 0)
        fprintf(stderr, "%s\n", reason_text(&why, r));
    return r < 0 ? 1 : 0;
}
