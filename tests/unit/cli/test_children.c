/* Local peers as processes: how each end is told, and that none is left. /bin/sh stands for the peer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/children.h"

#define N_MAX 4

struct seen {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    size_t n;
    char text[N_MAX][600]; /* by child */
};

static void seen_exited(void *arg, size_t i, const char *text)
{
    struct seen *s = arg;
    pthread_mutex_lock(&s->lock);
    snprintf(s->text[i], sizeof(s->text[i]), "%s", text);
    s->n++;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

static void seen_wait(struct seen *s, size_t n)
{
    pthread_mutex_lock(&s->lock);
    while (s->n < n)
        pthread_cond_wait(&s->cond, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static struct children *start(struct seen *s, const char *const *scripts, size_t n, const char *const *logs)
{
    char *argv[N_MAX][4];
    char *const *argvs[N_MAX];
    for (size_t i = 0; i < n; i++) {
        argv[i][0] = (char *)"sh";
        argv[i][1] = (char *)"-c";
        argv[i][2] = (char *)scripts[i];
        argv[i][3] = NULL;
        argvs[i] = argv[i];
    }
    memset(s, 0, sizeof(*s));
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->cond, NULL);
    const struct children_config config = {
        .program = "/bin/sh", .n = n, .argv = argvs, .log_path = logs, .exited = seen_exited, .arg = s};
    struct children *c = NULL;
    struct reason why = {0};
    if (children_start(&config, &c, &why) < 0)
        fail_msg("%s", why.text);
    return c;
}

static void nobody_is_left(void)
{
    errno = 0;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void each_end_is_told_with_its_cause(void **state)
{
    (void)state;
    char dir[] = "/tmp/shoal-children-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char log[4][64];
    const char *logs[4];
    for (int i = 0; i < 4; i++) {
        snprintf(log[i], sizeof(log[i]), "%s/%d", dir, i);
        logs[i] = log[i];
    }
    struct seen s;
    const char *const scripts[] = {"exit 0", "kill -9 $$", "echo first >&2; echo the last words >&2; exit 8", "exit 3"};
    struct children *c = start(&s, scripts, 4, logs);
    seen_wait(&s, 4);
    assert_string_equal(s.text[0], "its process ended with exit code 0");
    assert_string_equal(s.text[1], "killed by signal 9 (Killed)");
    assert_string_equal(s.text[2], "its process ended with exit code 8: the last words");
    assert_string_equal(s.text[3], "its process ended with exit code 3");
    children_free(c, 0);
    nobody_is_left();
    for (int i = 0; i < 4; i++)
        unlink(log[i]);
    rmdir(dir);
}

static void children_that_do_not_end_are_ended_and_not_told(void **state)
{
    (void)state;
    struct seen s;
    /* The second one does not heed SIGTERM (an ignored signal stays ignored through exec). */
    const char *const scripts[] = {"exec tail -f /dev/null", "trap '' TERM; exec tail -f /dev/null", "cat; exit 0"};
    struct children *c = start(&s, scripts, 3, NULL);
    seen_wait(&s, 1); /* standard input is empty, so the third one ends by itself */
    children_hush(c);
    children_free(c, 0);
    nobody_is_left();
    assert_int_equal(s.n, 1);
    assert_string_equal(s.text[2], "its process ended with exit code 0");
}

static void children_may_end_by_themselves(void **state)
{
    (void)state;
    struct seen s;
    const char *const scripts[] = {"exit 0"};
    struct children *c = start(&s, scripts, 1, NULL);
    children_free(c, 60000);
    nobody_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_end_is_told_with_its_cause),
        cmocka_unit_test(children_that_do_not_end_are_ended_and_not_told),
        cmocka_unit_test(children_may_end_by_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
