/* Finding the files that a job names and joining them into one text. It knows nothing of samples. Invariant: the text
 * depends on the files' names and contents only, not on the order a folder lists them in nor on the locale. */
#include "model/data_files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/mem.h"

#define FILE_BYTES_MAX ((off_t)1 << 40)
#define PROBE_BYTES    4096 /* a NUL byte in the first so many means: not text */

struct joined {
    uint8_t *text;
    size_t n, cap;
    struct file_id {
        dev_t dev;
        ino_t ino;
    } * seen;
    size_t n_seen, cap_seen;
};

/* p with room for `more` elements of size bytes behind n; NULL (p stays) when out of memory. */
static void *grow(void *p, size_t n, size_t *cap, size_t more, size_t size)
{
    size_t want = *cap;
    void *q;

    if (more <= *cap - n)
        return p;
    while (want - n < more)
        want = want > 0 ? 2 * want : 4096 / size;
    q = mem_resize(p, *cap, want, size);
    if (q)
        *cap = want;
    return q;
}

static bool seen(const struct joined *j, const struct stat *st)
{
    for (size_t i = 0; i < j->n_seen; i++)
        if (j->seen[i].dev == st->st_dev && j->seen[i].ino == st->st_ino)
            return true;
    return false;
}

/* Reads fd to its end behind what is there. */
static int append_all(struct joined *j, int fd, size_t size_hint, const char *path, struct reason *why)
{
    size_t want = size_hint + 1; /* one more, to see the end without growing */

    for (;;) {
        uint8_t *text = grow(j->text, j->n, &j->cap, want, 1);
        ssize_t got;

        if (!text)
            return reason_set(why, -E_NOMEM, "out of memory for the data: %s", path);
        j->text = text;
        got = read(fd, j->text + j->n, j->cap - j->n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return reason_set(why, -E_IO, "data.paths: cannot read %s: %s", path, strerror(errno));
        if (got == 0)
            return 0;
        j->n += (size_t)got;
        want = 1;
    }
}

/* Appends one file. named: the job names it itself, so that what is no text is a mistake. */
static int add_file(struct joined *j, const char *path, bool named, struct reason *why)
{
    const size_t start = j->n;
    struct file_id *ids;
    struct stat st;
    int fd, r;

    if (stat(path, &st) < 0) {
        if (!named)
            return 0; /* a dangling link, or gone since it was listed */
        return reason_set(why, errno == ENOENT ? -E_NOENT : -E_IO, "data.paths: %s: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode))
        return named ? reason_set(why, -E_CONFIG, "data.paths: %s is neither a file nor a folder", path) : 0;
    if (seen(j, &st))
        return 0;
    if (st.st_size > FILE_BYTES_MAX)
        return reason_set(why, -E_CONFIG, "data.paths: %s is too large for memory", path);
    ids = grow(j->seen, j->n_seen, &j->cap_seen, 1, sizeof(*j->seen));
    if (!ids)
        return reason_set(why, -E_NOMEM, "out of memory for the data");
    j->seen = ids;
    j->seen[j->n_seen++] = (struct file_id){st.st_dev, st.st_ino};
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return reason_set(why, -E_IO, "data.paths: cannot open %s: %s", path, strerror(errno));
    r = append_all(j, fd, (size_t)st.st_size, path, why);
    close(fd);
    if (r < 0)
        return r;
    if (j->n > start && memchr(j->text + start, 0, j->n - start < PROBE_BYTES ? j->n - start : PROBE_BYTES)) {
        j->n = start;
        if (named)
            return reason_set(why, -E_CONFIG, "data.paths: %s is not text (it has a NUL byte near its start)", path);
    }
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Hidden files stay out, as they do with a glob. */
static int not_hidden(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static int dirent_by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int add_folder(struct joined *j, const char *path, struct reason *why)
{
    struct dirent **entries;
    const int n = scandir(path, &entries, not_hidden, dirent_by_bytes);
    int r = 0;

    if (n < 0)
        return reason_set(why, -E_IO, "data.paths: cannot list %s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        const size_t len = strlen(path) + strlen(entries[i]->d_name) + 2;
        cleanup_mem_ char *file = r == 0 ? mem_alloc(len) : NULL;

        if (r == 0 && !file)
            r = reason_set(why, -E_NOMEM, "out of memory for the data");
        if (r == 0) {
            snprintf(file, len, "%s/%s", path, entries[i]->d_name);
            r = add_file(j, file, false, why);
        }
        free(entries[i]); /* scandir's own */
    }
    free(entries);
    return r;
}

static int add_glob(struct joined *j, const char *pattern, struct reason *why)
{
    glob_t g;
    const int e = glob(pattern, GLOB_NOSORT, NULL, &g);
    int r = 0;

    if (e == GLOB_NOMATCH)
        return reason_set(why, -E_NOENT, "data.paths: nothing matches %s", pattern);
    if (e != 0)
        return e == GLOB_NOSPACE ? reason_set(why, -E_NOMEM, "out of memory for the data")
                                 : reason_set(why, -E_IO, "data.paths: cannot search for %s", pattern);
    qsort(g.gl_pathv, g.gl_pathc, sizeof(*g.gl_pathv), by_bytes);
    for (size_t i = 0; r == 0 && i < g.gl_pathc; i++)
        r = add_file(j, g.gl_pathv[i], false, why);
    globfree(&g);
    return r;
}

static int add_path(struct joined *j, const char *path, struct reason *why)
{
    struct stat st;

    if (stat(path, &st) == 0)
        return S_ISDIR(st.st_mode) ? add_folder(j, path, why) : add_file(j, path, true, why);
    if (strpbrk(path, "*?["))
        return add_glob(j, path, why);
    return add_file(j, path, true, why);
}

int data_files_read(char *const *paths, size_t n_paths, uint8_t **ret_text, size_t *ret_n, struct reason *why)
{
    struct joined j = {0};
    int r = 0;

    assert(n_paths > 0);
    for (size_t i = 0; r == 0 && i < n_paths; i++)
        r = add_path(&j, paths[i], why);
    if (r == 0 && j.n == 0)
        r = reason_set(why, -E_CONFIG, "data.paths: %s%s hold no text", paths[0],
                       n_paths > 1 ? " and what follows" : "");
    mem_free(j.seen);
    if (r < 0) {
        mem_free(j.text);
        return r;
    }
    *ret_text = j.text;
    *ret_n = j.n;
    return 0;
}
