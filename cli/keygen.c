/* `shoal keygen`: make this machine's identity, or show the one there is. The secret never leaves its file. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/identity.h"
#include "crypto/key.h"
#include "runtime/base/jsonw.h"
#include "runtime/base/mem.h"

struct keygen_args {
    struct command_args common;
    const char *key, *state;
    bool force;
};

static int keygen_print(const struct keygen_args *a, const char *path, const struct key *pub, bool made)
{
    char hex[KEY_HEX_LEN + 1];
    key_hex(pub, hex);
    if (!a->common.json) {
        printf("%s %s\nidentity %s\n", made ? "made" : "already there:", path, hex);
        if (!made)
            printf("--force replaces it; other machines then see a new peer\n");
        return 0;
    }
    struct jsonw w;
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "key", hex);
    jsonw_str(&w, "path", path);
    jsonw_bool(&w, "made", made);
    jsonw_object_end(&w);
    const char *text = jsonw_text(&w);
    if (text != NULL)
        printf("%s\n", text);
    jsonw_done(&w);
    return text == NULL ? -E_NOMEM : 0;
}

static int keygen_run(void *args, struct reason *why)
{
    const struct keygen_args *a = args;
    cleanup_mem_ char *path = NULL;
    int r = identity_path(a->key, a->state, &path, why);
    if (r < 0)
        return r;
    struct key_pair pair;
    bool made = true;
    if (a->force) {
        r = key_generate(&pair);
        if (r == 0)
            r = key_save(path, &pair, true, why);
    } else {
        r = key_load_or_make(path, &pair, &made, why);
    }
    if (r == 0)
        r = keygen_print(a, path, &pair.pub, made);
    else
        identity_advise(r, why);
    key_pair_wipe(&pair);
    return r;
}

static const struct option keygen_options[] = {
    {"key", "FILE", OPTION_TEXT, offsetof(struct keygen_args, key), .unset = "key in the state folder",
     .help = "the key file"},
    {"state", "DIR", OPTION_TEXT, offsetof(struct keygen_args, state),
     .unset = "$SHOAL_HOME, else $XDG_CONFIG_HOME/shoal, else ~/.config/shoal",
     .help = "the folder that keeps this machine's identity"},
    {"force", NULL, OPTION_FLAG, offsetof(struct keygen_args, force), .help = "replace an existing key by a new one"},
};

const struct command command_keygen = {
    .name = "keygen",
    .summary = "make this machine's identity",
    .words = "",
    .about = "Makes the key that identifies this machine and prints its public half. It is also made on first use, so "
             "this is needed only to see the identity or to replace it. The file can be read by you alone.",
    .example = "shoal keygen",
    .options = keygen_options,
    .n_options = sizeof(keygen_options) / sizeof(keygen_options[0]),
    .args_size = sizeof(struct keygen_args),
    .run = keygen_run,
};
