/* Key files: one line of text, "shoal-key-1 <seed, 64 hex digits> <checksum, 8 hex digits>", the checksum being the
 * first four bytes of BLAKE2b-256 over what stands before it. Nobody but the owner may read one, and one is never seen
 * half written: a temporary file is filled and synced, then takes the name. Buffers that held a seed are wiped. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crypto/hash.h"
#include "crypto/key.h"
#include "runtime/base/mem.h"

#define MAGIC          "shoal-key-"
#define HEAD           MAGIC "1 "
#define HEAD_LEN       (sizeof(HEAD) - 1)
#define SEED_BYTES     32
#define CHECKSUM_BYTES 4
#define SUMMED_LEN     (HEAD_LEN + 2 * SEED_BYTES)
#define LINE_LEN       (SUMMED_LEN + 1 + 2 * CHECKSUM_BYTES) /* without the line break */
#define TEMP_SUFFIX    ".new-XXXXXX"

static int status_of(int err)
{
    return err == ENOENT ? -E_NOENT : err == EACCES || err == EPERM ? -E_PERM : err == EEXIST ? -E_EXIST : -E_IO;
}

static void closep(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

/* The checksum of the first SUMMED_LEN characters, as hex digits and a NUL. */
static void checksum_hex(const char *line, char ret[2 * CHECKSUM_BYTES + 1])
{
    uint8_t hash[HASH_BYTES];

    hash_of(line, SUMMED_LEN, hash);
    sodium_bin2hex(ret, 2 * CHECKSUM_BYTES + 1, hash, CHECKSUM_BYTES);
}

/* Reads at most n bytes: *ret_n of them, n if there may be more. */
static int read_all(int fd, char *buf, size_t n, size_t *ret_n)
{
    size_t have = 0;

    while (have < n) {
        const ssize_t got = read(fd, buf + have, n - have);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_of(errno);
        if (got == 0)
            break;
        have += (size_t)got;
    }
    *ret_n = have;
    return 0;
}

static int parse(const char *path, const char *text, size_t n, uint8_t ret_seed[SEED_BYTES], struct reason *why)
{
    char sum[2 * CHECKSUM_BYTES + 1];
    size_t n_seed = 0;

    if (n > 0 && text[n - 1] == '\n')
        n--;
    if (n < HEAD_LEN || memcmp(text, MAGIC, sizeof(MAGIC) - 1) != 0)
        return reason_set(why, -E_CORRUPT, "%s is not a key file", path);
    if (memcmp(text, HEAD, HEAD_LEN) != 0)
        return reason_set(why, -E_VERSION, "%s is a key file of another version than this program's", path);
    if (n != LINE_LEN)
        return reason_set(why, -E_CORRUPT, "the key file %s is damaged: it has %zu characters instead of %zu", path, n,
                          (size_t)LINE_LEN);
    checksum_hex(text, sum);
    if (text[SUMMED_LEN] != ' ' || memcmp(text + SUMMED_LEN + 1, sum, 2 * CHECKSUM_BYTES) != 0)
        return reason_set(why, -E_CORRUPT, "the key file %s is damaged: its checksum does not match", path);
    if (sodium_hex2bin(ret_seed, SEED_BYTES, text + HEAD_LEN, 2 * SEED_BYTES, NULL, &n_seed, NULL) != 0 ||
        n_seed != SEED_BYTES)
        return reason_set(why, -E_CORRUPT, "the key file %s is damaged: its key is not hexadecimal", path);
    return 0;
}

int key_load(const char *path, struct key_pair *ret, struct reason *why)
{
    cleanup_(closep) const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up */
    char text[LINE_LEN + 2];
    uint8_t seed[SEED_BYTES];
    struct stat st;
    size_t n = 0;
    int rc;

    if (fd < 0 || fstat(fd, &st) != 0)
        return reason_set(why, status_of(errno), "cannot open the key file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return reason_set(why, -E_CORRUPT, "%s is not a key file", path);
    if ((st.st_mode & 077) != 0)
        return reason_set(why, -E_PERM, "the key file %s is open to other users: chmod 600 %s", path, path);
    rc = read_all(fd, text, sizeof(text), &n);
    if (rc < 0)
        reason_set(why, rc, "cannot read the key file %s: %s", path, strerror(errno));
    else
        rc = parse(path, text, n, seed, why);
    sodium_memzero(text, sizeof(text));
    if (rc == 0)
        rc = key_from_seed(seed, ret);
    sodium_memzero(seed, sizeof(seed));
    return rc;
}

/* Makes the folders that lead to path, those that are missing, for the owner only. */
static int make_folders(const char *path, struct reason *why)
{
    cleanup_mem_ char *folder = mem_strdup(path);

    if (folder == NULL)
        return -E_NOMEM;
    for (char *p = folder[0] == '/' ? folder + 1 : folder; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return reason_set(why, status_of(errno), "cannot make the folder %s: %s", folder, strerror(errno));
        *p = '/';
    }
    return 0;
}

static int write_all(int fd, const char *buf, size_t n)
{
    while (n > 0) {
        const ssize_t put = write(fd, buf, n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return status_of(errno);
        buf += put;
        n -= (size_t)put;
    }
    return fsync(fd) == 0 ? 0 : status_of(errno);
}

/* Gives temp the name path. Without force by link(2), which never replaces; what a file system without hard links
 * holds could not be kept from other users either. */
static int take_name(const char *temp, const char *path, bool force)
{
    if ((force ? rename(temp, path) : link(temp, path)) != 0)
        return status_of(errno);
    if (!force)
        unlink(temp);
    return 0;
}

/* The folder in which path stands, open: a new name lasts only once its folder is on disk. */
static int open_folder(const char *path, int *ret_fd, struct reason *why)
{
    cleanup_mem_ char *folder = mem_strdup(path);
    char *slash;

    if (folder == NULL)
        return -E_NOMEM;
    slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder ? 1 : 0] = '\0';
    *ret_fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*ret_fd < 0)
        return reason_set(why, status_of(errno), "cannot open the folder of %s: %s", path, strerror(errno));
    return 0;
}

static int save_line(const char *path, const char *line, size_t n, bool force, struct reason *why)
{
    const size_t path_len = strlen(path);
    cleanup_mem_ char *temp = mem_alloc(path_len + sizeof(TEMP_SUFFIX));
    cleanup_(closep) int folder = -1;
    int rc, fd;

    if (temp == NULL)
        return -E_NOMEM;
    memcpy(temp, path, path_len);
    memcpy(temp + path_len, TEMP_SUFFIX, sizeof(TEMP_SUFFIX));
    rc = open_folder(path, &folder, why);
    if (rc < 0)
        return rc;
    fd = mkostemp(temp, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return reason_set(why, status_of(errno), "cannot write beside %s: %s", path, strerror(errno));
    rc = write_all(fd, line, n);
    if (close(fd) != 0 && rc == 0)
        rc = status_of(errno);
    if (rc == 0)
        rc = take_name(temp, path, force);
    if (rc < 0) {
        reason_set(why, rc, "cannot write the key file %s: %s", path, strerror(errno));
        unlink(temp);
        return rc;
    }
    if (fsync(folder) != 0)
        return reason_set(why, -E_IO, "cannot sync the folder of %s: %s", path, strerror(errno));
    return 0;
}

int key_save(const char *path, const struct key_pair *k, bool force, struct reason *why)
{
    char line[LINE_LEN + 2] = HEAD; /* the line break and sodium_bin2hex's NULs */
    int rc;

    sodium_bin2hex(line + HEAD_LEN, 2 * SEED_BYTES + 1, k->secret, SEED_BYTES); /* the secret starts with the seed */
    line[SUMMED_LEN] = ' ';
    checksum_hex(line, line + SUMMED_LEN + 1);
    line[LINE_LEN] = '\n';
    rc = make_folders(path, why);
    if (rc == 0)
        rc = save_line(path, line, LINE_LEN + 1, force, why);
    sodium_memzero(line, sizeof(line));
    return rc;
}

int key_load_or_make(const char *path, struct key_pair *ret, bool *ret_made, struct reason *why)
{
    bool made = false;
    int rc = key_load(path, ret, why);

    if (rc == -E_NOENT) {
        struct key_pair k;

        if (why != NULL)
            *why = (struct reason){0}; /* no failure, so far */
        rc = key_generate(&k);
        if (rc == 0)
            rc = key_save(path, &k, false, why);
        made = rc == 0;
        if (made)
            *ret = k;
        key_pair_wipe(&k);
        if (rc == -E_EXIST) /* another process was quicker: take its key */
            rc = key_load(path, ret, why);
    }
    if (rc == 0 && ret_made != NULL)
        *ret_made = made;
    return rc;
}

int key_default_path(char **ret, struct reason *why)
{
    static const struct {
        const char *variable, *rest;
    } places[] = {{"SHOAL_HOME", "key"}, {"XDG_CONFIG_HOME", "shoal/key"}, {"HOME", ".config/shoal/key"}};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *home = getenv(places[i].variable);
        size_t n;
        char *path;

        if (home == NULL || home[0] == '\0')
            continue;
        n = strlen(home) + 1 + strlen(places[i].rest) + 1;
        path = mem_alloc(n);
        if (path == NULL)
            return -E_NOMEM;
        snprintf(path, n, "%s/%s", home, places[i].rest);
        *ret = path;
        return 0;
    }
    return reason_set(why, -E_NOENT, "no place for the key: neither SHOAL_HOME nor HOME is set");
}
