/* Paths and files of a run. What is in a checkpoint is model/checkpoint.h's business. */
#include "cli/rundir.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "model/checkpoint.h"
#include "runtime/base/mem.h"
#include "runtime/base/text.h"
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

char *rundir_checkpoints(const char *dir)
{
    return file_join(dir, "checkpoints");
}

/* Under the coordinator's lock, lest it be the run of another process that loses its checkpoints. */
static int remove_checkpoints(const char *dir, const char *checkpoints, struct reason *why)
{
    cleanup_mem_ char *lock_path = file_join(dir, "lock");
    struct file_lock *lock = NULL;
    if (lock_path == NULL)
        return -E_NOMEM;
    int r = file_lock(lock_path, &lock, why);
    if (r == -E_AGAIN)
        return reason_set(why, r, "a run goes on in %s; shoal status %s shows it, --run OTHER takes another folder",
                          dir, dir);
    if (r == 0)
        r = file_remove_tree(checkpoints, why);
    file_unlock(lock);
    return r;
}

/* No checkpoint is whole: to begin anew without a word would, in the end, overwrite what might be repaired. */
static int refuse_damaged(const char *checkpoints, struct reason *why)
{
    char **names = NULL;
    size_t n = 0, n_steps = 0;
    int r = file_list(checkpoints, &names, &n, why);
    if (r == -E_NOENT)
        return 0; /* nothing to resume from: the coordinator says so */
    for (size_t i = 0; r == 0 && i < n; i++)
        n_steps += strncmp(names[i], "step-", 5) == 0;
    file_names_free(names, n);
    if (r == 0 && n_steps > 0)
        r = reason_set(
            why, -E_CORRUPT,
            "%s holds %zu checkpoint%s, but none that is whole; repair one, or use --overwrite to remove them "
            "and begin anew",
            checkpoints, n_steps, text_s(n_steps));
    return r;
}

int rundir_prepare(const char *dir, bool resume, bool overwrite, struct reason *why)
{
    int r = file_make_dirs(dir, why);
    if (r < 0)
        return reason_wrap(why, r, "the run's folder");
    cleanup_mem_ char *checkpoints = rundir_checkpoints(dir);
    if (checkpoints == NULL)
        return -E_NOMEM;
    if (overwrite)
        return remove_checkpoints(dir, checkpoints, why);
    cleanup_mem_ char *latest = NULL;
    r = checkpoint_latest(checkpoints, &latest, NULL, why);
    if (resume)
        return r == -E_NOENT ? refuse_damaged(checkpoints, why) : r;
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
    if (strncmp(word, "shoal1", 6) == 0)
        return invite_decode(word, ret, why);
    if (stat(word, &st) != 0)
        return reason_set(why, -E_INVAL, "%.64s is neither an invite (they begin with shoal1) nor a file or folder: %s",
                          word, strerror(errno));

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
