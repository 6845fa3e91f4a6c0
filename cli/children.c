/* Starting, watching and ending local peers. Each child is known by a pidfd, so a signal can never hit a process that
 * got the number of one that has ended. */
#include "cli/children.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define TERM_WAIT_MS   2000
#define LAST_WORDS_MAX 400

struct child {
    pid_t pid;
    int fd;         /* pidfd; -1 once reaped */
    char *log_path; /* NULL = none */
};

struct children {
    size_t cap, n; /* room, started */
    struct child *items;
    struct pollfd *polls; /* [n + 1], the last one for quit_fd */
    int quit_fd;
    bool watching; /* the thread runs */
    pthread_t watcher;
    void (*exited)(void *arg, size_t i, const char *text);
    void *arg;
};

/* In the child, between fork and exec: async-signal-safe calls only. Does not return. */
static void become(const struct children_config *config, size_t i, pid_t parent, int null_fd, int log_fd)
{
    /* Its own group, so that a Ctrl-C meant for us is ours to handle: we ask for a checkpoint first. */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127); /* the parent died before the line above */
    dup2(null_fd, STDIN_FILENO);
    if (log_fd >= 0) {
        dup2(log_fd, STDOUT_FILENO);
        dup2(log_fd, STDERR_FILENO);
    } else {
        dup2(STDERR_FILENO, STDOUT_FILENO); /* standard output is the parent's alone: programs read it */
    }
    syscall(SYS_close_range, 3u, ~0u, 0u); /* best effort: what we open is close-on-exec anyway */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    execv(config->program, (char *const *)config->argv[i]);
    static const char text[] = "shoal: cannot start a local peer: exec failed\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)ignored;
    _exit(127);
}

static int start_one(struct children *c, const struct children_config *config, size_t i, int null_fd,
                     struct reason *why)
{
    struct child *child = &c->items[i];
    int log_fd = -1;
    if (config->log_path != NULL) {
        child->log_path = mem_strdup(config->log_path[i]);
        if (child->log_path == NULL)
            return -E_NOMEM;
        log_fd = open(child->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
        if (log_fd < 0)
            return reason_set(why, -E_IO, "cannot write %s: %s", child->log_path, strerror(errno));
    }
    pid_t parent = getpid();
    child->pid = fork();
    if (child->pid == 0)
        become(config, i, parent, null_fd, log_fd);
    int r = child->pid > 0 ? 0 : reason_set(why, -E_IO, "cannot start a local peer: %s", strerror(errno));
    if (log_fd >= 0)
        close(log_fd);
    if (r < 0)
        return r;
    child->fd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    if (child->fd < 0) {
        r = reason_set(why, -E_IO, "cannot watch a local peer (pidfd_open): %s; Linux 5.3 or newer is needed",
                       strerror(errno));
        kill(child->pid, SIGKILL); /* not reaped yet, so the number is still its own */
        waitpid(child->pid, NULL, 0);
        return r;
    }
    c->n = i + 1;
    return 0;
}

/* The last line that the child wrote, without its newline; "" if none. */
static void last_words(const struct child *child, char ret[LAST_WORDS_MAX])
{
    ret[0] = '\0';
    FILE *f = child->log_path == NULL ? NULL : fopen(child->log_path, "re");
    if (f == NULL)
        return;
    if (fseek(f, -(LAST_WORDS_MAX - 1), SEEK_END) != 0)
        rewind(f);
    size_t n = fread(ret, 1, LAST_WORDS_MAX - 1, f);
    fclose(f);
    while (n > 0 && ret[n - 1] == '\n')
        n--;
    ret[n] = '\0';
    char *line = memrchr(ret, '\n', n);
    if (line != NULL)
        memmove(ret, line + 1, strlen(line + 1) + 1);
}

static void how_it_ended(const struct child *child, int status, char *ret, size_t size)
{
    char words[LAST_WORDS_MAX];
    if (WIFSIGNALED(status)) {
        int sig = WTERMSIG(status);
        snprintf(ret, size, "killed by signal %d (%s)", sig, strsignal(sig));
        return;
    }
    last_words(child, words);
    if (words[0] != '\0' && WEXITSTATUS(status) != 0)
        snprintf(ret, size, "its process ended with exit code %d: %s", WEXITSTATUS(status), words);
    else
        snprintf(ret, size, "its process ended with exit code %d", WEXITSTATUS(status));
}

/* The child's pidfd is readable: takes its exit status. */
static void reap(struct children *c, size_t i, bool tell)
{
    struct child *child = &c->items[i];
    int status = 0;
    pid_t got;
    while ((got = waitpid(child->pid, &status, 0)) < 0 && errno == EINTR)
        ;
    close(child->fd);
    child->fd = -1;
    if (got != child->pid || !tell)
        return;
    char text[LAST_WORDS_MAX + 128];
    how_it_ended(child, status, text, sizeof(text));
    c->exited(c->arg, i, text);
}

/* Waits for ends of children up to timeout_ms (< 0: for ever). False when told to quit or nobody is left. */
static bool wait_some(struct children *c, int timeout_ms, bool tell)
{
    size_t alive = 0;
    for (size_t i = 0; i < c->n; i++) {
        c->polls[i] = (struct pollfd){.fd = c->items[i].fd, .events = POLLIN}; /* poll skips -1 */
        alive += c->items[i].fd >= 0;
    }
    c->polls[c->n] = (struct pollfd){.fd = tell ? c->quit_fd : -1, .events = POLLIN};
    if (alive == 0)
        return false;
    if (poll(c->polls, c->n + 1, timeout_ms) <= 0)
        return true;
    for (size_t i = 0; i < c->n; i++)
        if (c->polls[i].revents != 0)
            reap(c, i, tell);
    return c->polls[c->n].revents == 0;
}

static void *watch(void *arg)
{
    struct children *c = arg;
    while (wait_some(c, -1, true))
        ;
    return NULL;
}

static int watch_start(struct children *c, struct reason *why)
{
    /* Signals are the main thread's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(&c->watcher, NULL, watch, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    c->watching = e == 0;
    return e == 0 ? 0 : reason_set(why, -E_IO, "cannot start a thread: %s", strerror(e));
}

int children_start(const struct children_config *config, struct children **ret, struct reason *why)
{
    assert(config->n > 0 && config->exited != NULL);
    struct children *c = mem_calloc(1, sizeof(*c));
    if (c == NULL)
        return -E_NOMEM;
    int r = -E_NOMEM;
    int null_fd = -1;
    c->exited = config->exited;
    c->arg = config->arg;
    c->cap = config->n;
    c->quit_fd = eventfd(0, EFD_CLOEXEC);
    c->items = mem_calloc(config->n, sizeof(*c->items));
    c->polls = mem_calloc(config->n + 1, sizeof(*c->polls));
    if (c->items != NULL && c->polls != NULL) {
        null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        r = null_fd >= 0 && c->quit_fd >= 0 ? 0
                                            : reason_set(why, -E_IO, "cannot start local peers: %s", strerror(errno));
    }
    for (size_t i = 0; r == 0 && i < config->n; i++)
        r = start_one(c, config, i, null_fd, why);
    if (r == 0)
        r = watch_start(c, why);
    if (null_fd >= 0)
        close(null_fd);
    if (r < 0) {
        children_free(c, 0);
        return r;
    }
    *ret = c;
    return 0;
}

static void signal_all(struct children *c, int sig)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->items[i].fd >= 0)
            syscall(SYS_pidfd_send_signal, c->items[i].fd, sig, NULL, 0);
}

static void wait_until(struct children *c, int wait_ms)
{
    int64_t end = clock_now_ns() + wait_ms * NS_PER_MS;
    for (int64_t now = clock_now_ns(); now < end; now = clock_now_ns())
        if (!wait_some(c, (int)((end - now) / NS_PER_MS) + 1, false))
            return;
}

void children_hush(struct children *c)
{
    if (!c->watching)
        return;
    uint64_t one = 1;
    ssize_t w = write(c->quit_fd, &one, sizeof(one));
    assert(w == sizeof(one));
    (void)w;
    pthread_join(c->watcher, NULL);
    c->watching = false;
}

struct children *children_free(struct children *c, int wait_ms)
{
    if (c == NULL)
        return NULL;
    children_hush(c);
    wait_until(c, wait_ms);
    signal_all(c, SIGTERM);
    wait_until(c, TERM_WAIT_MS);
    signal_all(c, SIGKILL);
    while (wait_some(c, -1, false))
        ;
    if (c->quit_fd >= 0)
        close(c->quit_fd);
    for (size_t i = 0; c->items != NULL && i < c->cap; i++)
        mem_free(c->items[i].log_path);
    mem_free(c->items);
    mem_free(c->polls);
    return mem_free(c);
}
