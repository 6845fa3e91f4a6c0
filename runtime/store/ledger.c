/* See ledger.h. One table, statements prepared once. In exclusive locking mode SQLite holds the file's lock from the
 * first read to the close and needs no shared memory beside the write-ahead log. */
#include "runtime/store/ledger.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "crypto/hash.h"
#include "runtime/base/mem.h"

#define APPLICATION_ID 0x53484f4c /* "SHOL", in the file's header */
#define FORMAT         1          /* user_version */

enum { PUT, REMOVE, PRUNE, GET, EACH, LAST, STATEMENTS };

static const char *const sql[STATEMENTS] = {
    [PUT] = "INSERT OR REPLACE INTO record(kind, key, data, hash) VALUES(?1, ?2, ?3, ?4)",
    [REMOVE] = "DELETE FROM record WHERE kind = ?1 AND key = ?2",
    [PRUNE] = ("DELETE FROM record WHERE kind = ?1 AND key <= "
               "(SELECT key FROM record WHERE kind = ?1 ORDER BY key DESC LIMIT 1 OFFSET ?2)"),
    [GET] = "SELECT key, data, hash FROM record WHERE kind = ?1 AND key = ?2",
    [EACH] = "SELECT key, data, hash FROM record WHERE kind = ?1 ORDER BY key",
    [LAST] = "SELECT max(key) FROM record WHERE kind = ?1",
};

struct ledger {
    char *path;
    sqlite3 *db;
    sqlite3_stmt *statement[STATEMENTS];
};

static int from_sqlite(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_NOMEM:
        return -E_NOMEM;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -E_AGAIN;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return -E_CORRUPT;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
        return -E_PERM;
    case SQLITE_TOOBIG:
        return -E_TOOBIG;
    default:
        return -E_IO;
    }
}

/* The failure of SQLite's last call. */
static int fail(const struct ledger *l, const char *what, int rc, struct reason *why)
{
    int status = from_sqlite(rc);

    if (status == -E_NOMEM)
        return reason_set(why, status, "no memory to %s the ledger %s", what, l->path);
    if (status == -E_AGAIN)
        return reason_set(why, status, "another process has the ledger %s open", l->path);
    if ((rc & 0xff) == SQLITE_NOTADB)
        return reason_set(why, status, "%s is not a ledger", l->path);
    if (status == -E_CORRUPT)
        return reason_set(why, status, "the ledger %s is damaged: %s", l->path, sqlite3_errmsg(l->db));
    return reason_set(why, status, "cannot %s the ledger %s: %s", what, l->path, sqlite3_errmsg(l->db));
}

static int execute(struct ledger *l, const char *what, const char *text, struct reason *why)
{
    int rc = sqlite3_exec(l->db, text, NULL, NULL, NULL);

    return rc == SQLITE_OK ? 0 : fail(l, what, rc, why);
}

/* The first column of the first row, as text in ret (size bytes) and as a number. */
static int ask(struct ledger *l, const char *text, char *ret, size_t size, int64_t *ret_number, struct reason *why)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(l->db, text, -1, &s, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        const unsigned char *column = sqlite3_column_text(s, 0);

        *ret_number = sqlite3_column_int64(s, 0);
        if (column)
            snprintf(ret, size, "%s", (const char *)column);
        else
            rc = SQLITE_NOMEM;
    }
    sqlite3_finalize(s);
    return rc == SQLITE_ROW ? 0 : fail(l, "read", rc, why);
}

/* Makes the file, for its owner alone: it holds what invites hold. SQLite makes the files beside it alike. */
static int touch(const char *path, struct reason *why)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd >= 0) {
        close(fd);
        return 0;
    }
    int e = errno;

    return reason_set(why,
                      e == ENOENT                               ? -E_NOENT
                      : e == EACCES || e == EROFS || e == EPERM ? -E_PERM
                                                                : -E_IO,
                      "cannot open the ledger %s: %s", path, strerror(e));
}

/* Whose file this is: 1 a ledger of ours, 0 an empty one. */
static int recognize(struct ledger *l, struct reason *why)
{
    char text[64] = "";
    int64_t id = 0, format = 0, tables = 0;
    int status = ask(l, "PRAGMA application_id", text, sizeof text, &id, why);

    if (status == 0)
        status = ask(l, "PRAGMA user_version", text, sizeof text, &format, why);
    if (status == 0)
        status = ask(l, "SELECT count(*) FROM sqlite_master", text, sizeof text, &tables, why);
    if (status < 0)
        return status;
    if (id == 0 && format == 0 && tables == 0)
        return 0;
    if (id != APPLICATION_ID || format < 1)
        return reason_set(why, -E_CORRUPT, "%s is a database, but not a ledger", l->path);
    if (format > FORMAT)
        return reason_set(why, -E_VERSION, "the ledger %s has format %lld, this Shoal knows %d: use a newer one",
                          l->path, (long long)format, FORMAT);
    status = ask(l, "PRAGMA quick_check(1)", text, sizeof text, &tables, why);
    if (status == 0 && strcmp(text, "ok") != 0)
        status = reason_set(why, -E_CORRUPT, "the ledger %s is damaged: %s", l->path, text);
    return status < 0 ? status : 1;
}

static int set_up(struct ledger *l, struct reason *why)
{
    char mode[16] = "";
    int64_t number = 0;
    int status = execute(l, "open", "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL;", why), ours = 0;

    if (status == 0)
        status = ours = recognize(l, why); /* before anything is written: it may be somebody else's */
    if (status >= 0)
        status = ask(l, "PRAGMA journal_mode = WAL", mode, sizeof mode, &number, why);
    if (status == 0 && strcmp(mode, "wal") != 0)
        status = reason_set(why, -E_IO, "the ledger %s cannot have a write-ahead log: journal mode %s", l->path, mode);
    if (status == 0) /* takes the lock, even if the file is only read after this */
        status = execute(l, "open", "BEGIN IMMEDIATE; COMMIT;", why);
    if (status == 0 && !ours)
        status = execute(l, "make",
                         "BEGIN IMMEDIATE;"
                         "CREATE TABLE record(kind TEXT NOT NULL, key INTEGER NOT NULL, data BLOB NOT NULL,"
                         " hash BLOB NOT NULL, PRIMARY KEY(kind, key)) WITHOUT ROWID;"
                         "PRAGMA application_id = 1397247820; PRAGMA user_version = 1; COMMIT;",
                         why);
    for (int i = 0; status == 0 && i < STATEMENTS; i++) {
        int rc = sqlite3_prepare_v3(l->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &l->statement[i], NULL);

        if (rc != SQLITE_OK)
            status = fail(l, "read", rc, why);
    }
    return status;
}

int ledger_open(const char *path, struct ledger **ret, struct reason *why)
{
    struct ledger *l = mem_calloc(1, sizeof *l);
    int status = touch(path, why), rc;

    _Static_assert(APPLICATION_ID == 1397247820 && FORMAT == 1, "as in the SQL text");
    if (status < 0 || !l || !(l->path = mem_strdup(path))) {
        mem_free(l);
        return status < 0 ? status : reason_set(why, -E_NOMEM, "no memory to open the ledger %s", path);
    }
    rc = sqlite3_open_v2(path, &l->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_FULLMUTEX, NULL);
    status = rc == SQLITE_OK ? set_up(l, why) : fail(l, "open", rc, why);
    if (status < 0) {
        ledger_close(l);
        return status;
    }
    *ret = l;
    return 0;
}

struct ledger *ledger_close(struct ledger *l)
{
    if (!l)
        return NULL;
    for (int i = 0; i < STATEMENTS; i++)
        sqlite3_finalize(l->statement[i]);
    sqlite3_close(l->db);
    mem_free(l->path);
    return mem_free(l);
}

int ledger_begin(struct ledger *l, struct reason *why)
{
    return execute(l, "write", "BEGIN IMMEDIATE", why);
}

int ledger_commit(struct ledger *l, struct reason *why)
{
    int status = execute(l, "write", "COMMIT", why);

    if (status < 0)
        ledger_cancel(l);
    return status;
}

void ledger_cancel(struct ledger *l)
{
    if (!sqlite3_get_autocommit(l->db)) /* some failures have ended it already */
        sqlite3_exec(l->db, "ROLLBACK", NULL, NULL, NULL);
}

static void hash_record(const char *kind, uint64_t key, const void *data, size_t size, uint8_t ret[HASH_BYTES])
{
    uint8_t number[8];
    struct hash h;

    for (int i = 0; i < 8; i++)
        number[i] = (uint8_t)(key >> 8 * i);
    hash_init(&h);
    hash_update(&h, kind, strlen(kind) + 1);
    hash_update(&h, number, sizeof number);
    if (size > 0)
        hash_update(&h, data, size);
    hash_final(&h, ret);
}

static sqlite3_stmt *bind(struct ledger *l, int which, const char *kind)
{
    sqlite3_stmt *s = l->statement[which];

    assert(strlen(kind) > 0 && strlen(kind) <= LEDGER_KIND_MAX_LEN);
    sqlite3_bind_text(s, 1, kind, -1, SQLITE_STATIC); /* allocates nothing: cannot fail */
    return s;
}

/* What was bound is the caller's and goes. */
static void done(sqlite3_stmt *s)
{
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
}

/* Runs a statement that gives no rows. */
static int run(struct ledger *l, sqlite3_stmt *s, struct reason *why)
{
    int rc = sqlite3_step(s), status = rc == SQLITE_DONE ? 0 : fail(l, "write", rc, why);

    done(s);
    return status;
}

int ledger_put(struct ledger *l, const char *kind, uint64_t key, const void *data, size_t size, struct reason *why)
{
    uint8_t hash[HASH_BYTES];
    sqlite3_stmt *s = bind(l, PUT, kind);

    assert(key <= LEDGER_KEY_MAX && !sqlite3_get_autocommit(l->db));
    if (size > LEDGER_RECORD_MAX)
        return reason_set(why, -E_TOOBIG, "a record of %zu bytes for the ledger %s", size, l->path);
    hash_record(kind, key, data, size, hash);
    sqlite3_bind_int64(s, 2, (sqlite3_int64)key);
    if (size > 0)
        sqlite3_bind_blob64(s, 3, data, size, SQLITE_STATIC);
    else
        sqlite3_bind_zeroblob(s, 3, 0);
    sqlite3_bind_blob64(s, 4, hash, sizeof hash, SQLITE_STATIC);
    return run(l, s, why);
}

int ledger_append(struct ledger *l, const char *kind, uint64_t key, const void *data, size_t size, struct reason *why)
{
    sqlite3_stmt *s = bind(l, LAST, kind);
    int rc = sqlite3_step(s), status = rc == SQLITE_ROW ? 0 : fail(l, "read", rc, why);

    if (status == 0 && sqlite3_column_type(s, 0) != SQLITE_NULL && (uint64_t)sqlite3_column_int64(s, 0) >= key)
        status = reason_set(why, -E_EXIST, "the ledger %s has %s %llu already, %llu cannot follow", l->path, kind,
                            (unsigned long long)sqlite3_column_int64(s, 0), (unsigned long long)key);
    done(s);
    return status < 0 ? status : ledger_put(l, kind, key, data, size, why);
}

int ledger_remove(struct ledger *l, const char *kind, uint64_t key, struct reason *why)
{
    sqlite3_stmt *s = bind(l, REMOVE, kind);

    assert(key <= LEDGER_KEY_MAX && !sqlite3_get_autocommit(l->db));
    sqlite3_bind_int64(s, 2, (sqlite3_int64)key);
    return run(l, s, why);
}

int ledger_prune(struct ledger *l, const char *kind, uint64_t keep, struct reason *why)
{
    sqlite3_stmt *s = bind(l, PRUNE, kind);

    assert(keep <= LEDGER_KEY_MAX && !sqlite3_get_autocommit(l->db));
    sqlite3_bind_int64(s, 2, (sqlite3_int64)keep);
    return run(l, s, why);
}

/* The row that s stands at; data is valid until the next step. */
static int read_row(struct ledger *l, sqlite3_stmt *s, const char *kind, uint64_t *ret_key, const void **ret_data,
                    size_t *ret_size, struct reason *why)
{
    uint8_t hash[HASH_BYTES];
    uint64_t key = (uint64_t)sqlite3_column_int64(s, 0);
    const void *data = sqlite3_column_blob(s, 1), *stored = sqlite3_column_blob(s, 2);
    size_t size = (size_t)sqlite3_column_bytes(s, 1), stored_size = (size_t)sqlite3_column_bytes(s, 2);

    if (sqlite3_errcode(l->db) == SQLITE_NOMEM)
        return fail(l, "read", SQLITE_NOMEM, why);
    hash_record(kind, key, data, size, hash);
    if (stored_size != HASH_BYTES || memcmp(stored, hash, HASH_BYTES) != 0)
        return reason_set(why, -E_CORRUPT, "the ledger %s is damaged: %s %llu is not what was written", l->path, kind,
                          (unsigned long long)key);
    *ret_key = key;
    *ret_data = data;
    *ret_size = size;
    return 0;
}

int ledger_get(struct ledger *l, const char *kind, uint64_t key, struct blob **ret, struct reason *why)
{
    sqlite3_stmt *s = bind(l, GET, kind);
    struct blob *b = NULL;
    const void *data;
    size_t size;
    int rc, status;

    assert(key <= LEDGER_KEY_MAX);
    sqlite3_bind_int64(s, 2, (sqlite3_int64)key);
    rc = sqlite3_step(s);
    if (rc == SQLITE_DONE)
        status = reason_set(why, -E_NOENT, "the ledger %s has no %s %llu", l->path, kind, (unsigned long long)key);
    else
        status = rc == SQLITE_ROW ? read_row(l, s, kind, &key, &data, &size, why) : fail(l, "read", rc, why);
    if (status == 0 && (status = blob_new(size, &b)) == 0) {
        if (size > 0)
            memcpy(b->data, data, size);
        *ret = b;
    }
    done(s);
    return status;
}

int ledger_each(struct ledger *l, const char *kind, ledger_fn fn, void *arg, struct reason *why)
{
    sqlite3_stmt *s = bind(l, EACH, kind);
    const void *data;
    size_t size;
    uint64_t key;
    int rc, status = 0;

    while (status == 0 && (rc = sqlite3_step(s)) != SQLITE_DONE) {
        status = rc == SQLITE_ROW ? read_row(l, s, kind, &key, &data, &size, why) : fail(l, "read", rc, why);
        if (status == 0)
            status = fn(arg, key, data, size);
    }
    done(s);
    return status;
}
