/* Paths and files of a run. What is in a checkpoint is model/checkpoint.h's business. */
#include "cli/rundir.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "model/checkpoint.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"

int rundir_path(const char *option, const char *job_name, char **ret, struct reason *why)
{
    (void)why;
    char *path = option != NULL ? mem_strdup(option) : file_join("runs", job_name);
    if (path == NULL)
        return -E_NOMEM;
    *ret = path;
    return 0;
}

/* Removes the checkpoints in dir and nothing else: dir is whatever the user typed. */
static int remove_checkpoints(const char *dir, struct reason *why)
{
    char **names = NULL;
    size_t n = 0;
    int r = file_list(dir, &names, &n, why);
    for (size_t i = 0; r == 0 && i < n; i++) {
        size_t digits = strncmp(names[i], "step-", 5) == 0 ? strspn(names[i] + 5, "0123456789") : 0;
        if (digits == 0 || names[i][5 + digits] != '\0')
            continue;
        cleanup_mem_ char *path = file_join(dir, names[i]);
        r = path == NULL ? -E_NOMEM : file_remove_tree(path, why);
    }
    file_names_free(names, n);
    return r;
}

int rundir_prepare(const char *dir, bool resume, bool overwrite, struct reason *why)
{
    int r = file_make_dirs(dir, why);
    if (r < 0)
        return reason_wrap(why, r, "the run's folder");
    if (resume)
        return 0;
    if (overwrite)
        return remove_checkpoints(dir, why);
    cleanup_mem_ char *latest = NULL;
    r = checkpoint_latest(dir, &latest, why);
    if (r == 0)
        return reason_set(
            why, -E_EXIST,
            "%s already holds checkpoints (newest: %s); use --resume to go on from there, --run OTHER for "
            "another folder, or --overwrite to remove them and begin anew",
            dir, latest);
    return r == -E_NOENT ? 0 : r;
}

int rundir_key(const char *dir, const char *name, struct key_pair *ret, char **ret_path, struct reason *why)
{
    char file[NAME_MAX_LEN + 16];
    snprintf(file, sizeof(file), "keys/%s.key", name);
    cleanup_mem_ char *path = file_join(dir, file);
    if (path == NULL)
        return -E_NOMEM;
    int r = key_load_or_make(path, ret, NULL, why);
    if (r == 0 && ret_path != NULL)
        *ret_path = TAKE_PTR(path);
    return r;
}

int rundir_invite_write(const char *dir, const char *invite, char **ret_path, struct reason *why)
{
    cleanup_mem_ char *path = file_join(dir, "invite");
    cleanup_mem_ char *line = mem_alloc(strlen(invite) + 2);
    if (path == NULL || line == NULL)
        return -E_NOMEM;
    size_t len = (size_t)sprintf(line, "%s\n", invite);
    int r = file_write(path, line, len, 0600, why);
    if (r == 0)
        *ret_path = TAKE_PTR(path);
    return r;
}

static int read_stdin(char *ret, size_t size, struct reason *why)
{
    size_t n = fread(ret, 1, size - 1, stdin);
    ret[n] = '\0';
    if (ferror(stdin))
        return reason_set(why, -E_IO, "cannot read the invite from standard input");
    return 0;
}

int rundir_invite_read(const char *word, struct invite *ret, struct reason *why)
{
    char text[2 * INVITE_TEXT_MAX];
    struct stat st;
    if (strcmp(word, "-") == 0) {
        int r = read_stdin(text, sizeof(text), why);
        return r < 0 ? r : invite_decode(text, ret, why);
    }
    if (strncmp(word, "shoal1", 6) == 0 || stat(word, &st) != 0)
        return invite_decode(word, ret, why);

    bool folder = S_ISDIR(st.st_mode);
    cleanup_mem_ char *path = folder ? file_join(word, "invite") : mem_strdup(word);
    cleanup_mem_ char *data = NULL;
    if (path == NULL)
        return -E_NOMEM;
    int r = file_read(path, sizeof(text), &data, NULL, why);
    if (r == -E_NOENT && folder)
        return reason_set(why, r,
                          "no run goes on in %s (it has no invite file); start one with shoal train or "
                          "shoal coordinator",
                          word);
    if (r == 0)
        r = invite_decode(data, ret, why);
    return r < 0 ? reason_wrap(why, r, "%s", path) : 0;
}
