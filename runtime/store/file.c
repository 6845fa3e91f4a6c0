/* Files and folders. See file.h. The order of the system calls in file_write is the point: data reach the disk before
 * the name points at them, and the name reaches the disk before we say that it is done. */
#include "runtime/store/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_lock {
    int fd;
};

static int from_errno(int e)
{
    switch (e) {
    case ENOENT:
    case ENOTDIR:
        return -E_NOENT;
    case EACCES:
    case EPERM:
    case EROFS:
        return -E_PERM;
    case EEXIST:
        return -E_EXIST;
    case ENOMEM:
        return -E_NOMEM;
    default:
        return -E_IO;
    }
}

const char *file_advice(int e)
{
    return e == ENOSPC || e == EDQUOT ? "; free some space there" : "";
}

static int fail_errno(struct reason *why, const char *what, const char *path)
{
    const int e = errno;

    return reason_set(why, from_errno(e), "cannot %s %s: %s%s", what, path, strerror(e), file_advice(e));
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

char *file_join(const char *dir, const char *name)
{
    const size_t n_dir = dir != NULL ? strlen(dir) : 0;
    const size_t n_name = strlen(name);
    const bool slash = n_dir > 0 && dir[n_dir - 1] != '/';
    char *s = mem_alloc(n_dir + n_name + 2);

    if (s == NULL)
        return NULL;
    if (n_dir > 0)
        memcpy(s, dir, n_dir);
    if (slash)
        s[n_dir] = '/';
    memcpy(s + n_dir + (slash ? 1 : 0), name, n_name + 1);
    return s;
}

int file_read(const char *path, size_t size_max, char **ret_data, size_t *ret_size, struct reason *why)
{
    cleanup_(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    cleanup_mem_ char *data = NULL;
    struct stat st;
    size_t n = 0;

    assert(size_max < SIZE_MAX - 1);
    if (fd < 0)
        return fail_errno(why, "open", path);
    if (fstat(fd, &st) < 0)
        return fail_errno(why, "look at", path);
    if (!S_ISREG(st.st_mode))
        return reason_set(why, -E_INVAL, "%s is not a regular file", path);
    if ((uint64_t)st.st_size > size_max)
        return reason_set(why, -E_TOOBIG, "%s has %lld bytes, more than %zu", path, (long long)st.st_size, size_max);
    data = mem_alloc((size_t)st.st_size + 1);
    if (data == NULL)
        return reason_set(why, -E_NOMEM, "no memory to read %s", path);
    while (n < (size_t)st.st_size) { /* what is appended meanwhile is not ours; what is cut off ends it */
        const ssize_t got = read(fd, data + n, (size_t)st.st_size - n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(why, "read", path);
        if (got == 0)
            break;
        n += (size_t)got;
    }
    data[n] = '\0';
    *ret_data = TAKE_PTR(data);
    if (ret_size != NULL)
        *ret_size = n;
    return 0;
}

static int write_all(int fd, const void *data, size_t size)
{
    for (size_t n = 0; n < size;) {
        const ssize_t put = write(fd, (const char *)data + n, size - n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        n += (size_t)put;
    }
    return 0;
}

/* The folder part of path: "." when it has none. */
static char *dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *s;

    if (slash == NULL)
        return mem_strdup(".");
    s = mem_strdup(path);
    if (s != NULL)
        s[slash == path ? 1 : slash - path] = '\0';
    return s;
}

int file_write(const char *path, const void *data, size_t size, unsigned mode, struct reason *why)
{
    cleanup_mem_ char *dir = dir_of(path);
    cleanup_mem_ char *temp = mem_alloc(strlen(path) + sizeof(".XXXXXX"));
    cleanup_(close_fd) int fd = -1;
    int r = 0;

    if (dir == NULL || temp == NULL)
        return reason_set(why, -E_NOMEM, "no memory to write %s", path);
    sprintf(temp, "%s.XXXXXX", path);
    fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0)
        return fail_errno(why, "create a file beside", path);
    if (fchmod(fd, mode) < 0 || write_all(fd, data, size) < 0 || fsync(fd) < 0)
        r = fail_errno(why, "write", temp);
    else if (rename(temp, path) < 0)
        r = fail_errno(why, "replace", path);
    if (r < 0) {
        unlink(temp);
        return r;
    }
    return file_sync_dir(dir, why);
}

int file_make_dirs(const char *path, struct reason *why)
{
    cleanup_mem_ char *s = mem_strdup(path);
    struct stat st;

    if (s == NULL)
        return reason_set(why, -E_NOMEM, "no memory to make the folder %s", path);
    for (size_t i = 1; s[0] != '\0'; i++) {
        const char c = s[i];

        if (c != '/' && c != '\0')
            continue;
        s[i] = '\0';
        if (mkdir(s, 0777) < 0 && errno != EEXIST)
            return fail_errno(why, "make the folder", s);
        s[i] = c;
        if (c == '\0')
            break;
    }
    if (stat(path, &st) < 0)
        return fail_errno(why, "look at", path);
    if (!S_ISDIR(st.st_mode))
        return reason_set(why, -E_EXIST, "%s is there and is not a folder", path);
    return 0;
}

int file_sync_dir(const char *path, struct reason *why)
{
    cleanup_(close_fd) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return fail_errno(why, "open the folder", path);
    if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: a file system without it */
        return fail_errno(why, "sync the folder", path);
    return 0;
}

int file_remove_tree(const char *path, struct reason *why)
{
    char **names = NULL;
    size_t n = 0;
    struct stat st;
    int r;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : fail_errno(why, "look at", path);
    if (!S_ISDIR(st.st_mode))
        return unlink(path) < 0 && errno != ENOENT ? fail_errno(why, "remove", path) : 0;
    r = file_list(path, &names, &n, why);
    for (size_t i = 0; r == 0 && i < n; i++) {
        cleanup_mem_ char *inner = file_join(path, names[i]);

        r = inner != NULL ? file_remove_tree(inner, why) : reason_set(why, -E_NOMEM, "no memory to remove %s", path);
    }
    file_names_free(names, n);
    if (r == 0 && rmdir(path) < 0 && errno != ENOENT)
        r = fail_errno(why, "remove the folder", path);
    return r;
}

bool file_exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds name to the list, whose room grows by doubling. */
static int names_add(char ***names, size_t *n, size_t *cap, const char *name)
{
    char *copy;

    if (*n == *cap) {
        const size_t grown = *cap > 0 ? 2 * *cap : 16;
        char **p = mem_resize(*names, *cap, grown, sizeof(char *));

        if (p == NULL)
            return -E_NOMEM;
        *names = p;
        *cap = grown;
    }
    copy = mem_strdup(name);
    if (copy == NULL)
        return -E_NOMEM;
    (*names)[(*n)++] = copy;
    return 0;
}

int file_list(const char *path, char ***ret, size_t *ret_n, struct reason *why)
{
    DIR *d = opendir(path);
    char **names = NULL;
    size_t n = 0, cap = 0;
    struct dirent *e;
    int r = 0;

    if (d == NULL)
        return fail_errno(why, "open the folder", path);
    while (r == 0 && (errno = 0, e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = names_add(&names, &n, &cap, e->d_name);
    }
    if (r < 0)
        reason_set(why, r, "no memory to list %s", path);
    else if (errno != 0)
        r = fail_errno(why, "list", path);
    closedir(d);
    if (r < 0) {
        file_names_free(names, n);
        return r;
    }
    if (n > 0)
        qsort(names, n, sizeof(char *), compare_names);
    *ret = names;
    *ret_n = n;
    return 0;
}

void file_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        mem_free(names[i]);
    mem_free(names);
}

int file_lock(const char *path, struct file_lock **ret, struct reason *why)
{
    struct file_lock *l = mem_alloc(sizeof(*l));
    int r = 0;

    if (l == NULL)
        return reason_set(why, -E_NOMEM, "no memory to lock %s", path);
    /* flock, not fcntl: the lock belongs to the open file, so that two holders in one process exclude each other too,
     * and closing some other descriptor of the file does not drop it. */
    l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (l->fd < 0)
        r = fail_errno(why, "open", path);
    else if (flock(l->fd, LOCK_EX | LOCK_NB) < 0)
        r = errno == EWOULDBLOCK ? reason_set(why, -E_AGAIN, "another process holds %s", path)
                                 : fail_errno(why, "lock", path);
    if (r < 0) {
        close_fd(&l->fd);
        mem_free(l);
        return r;
    }
    *ret = l;
    return 0;
}

struct file_lock *file_unlock(struct file_lock *l)
{
    if (l != NULL) {
        close(l->fd);
        mem_free(l);
    }
    return NULL;
}
