/* A bounded queue of pointers. Not a channel between processes. Invariant, under the lock: the eventfd's counter is 1
 * while items are inside and 0 when none is, so a poll loop neither misses an item nor spins. */
#include "runtime/base/queue.h"

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/status.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int fd;
    bool closed;
    size_t capacity, head, count;
    void *items[];
};

int queue_new(size_t capacity, struct queue **ret)
{
    assert(capacity > 0);
    size_t bytes;
    if (!size_mul(capacity, sizeof(void *), &bytes) || bytes > SIZE_MAX - sizeof(struct queue))
        return -E_NOMEM;
    struct queue *q = mem_alloc(sizeof(*q) + bytes);
    if (!q)
        return -E_NOMEM;
    *q = (struct queue){.capacity = capacity};
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0) {
        mem_free(q);
        return -E_IO;
    }
    /* None of these fails on Linux with default attributes and a known clock. */
    pthread_condattr_t attr;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->wake, &attr);
    pthread_condattr_destroy(&attr);
    *ret = q;
    return 0;
}

struct queue *queue_free(struct queue *q)
{
    if (!q)
        return NULL;
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->lock);
    close(q->fd);
    return mem_free(q);
}

int queue_push(struct queue *q, void *item)
{
    assert(item);
    int r = 0;
    pthread_mutex_lock(&q->lock);
    if (q->closed) {
        r = -E_CLOSED;
    } else if (q->count == q->capacity) {
        r = -E_AGAIN;
    } else {
        q->items[(q->head + q->count) % q->capacity] = item;
        if (q->count++ == 0) {
            int w = eventfd_write(q->fd, 1);
            assert(w == 0);
            (void)w;
            pthread_cond_signal(&q->wake);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return r;
}

static void *take_locked(struct queue *q)
{
    if (q->count == 0)
        return NULL;
    void *item = q->items[q->head];
    q->head = (q->head + 1) % q->capacity;
    if (--q->count == 0) {
        eventfd_t value;
        int r = eventfd_read(q->fd, &value);
        assert(r == 0 && value == 1); /* else somebody read the descriptor */
        (void)r;
    }
    return item;
}

void *queue_pop(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    void *item = take_locked(q);
    pthread_mutex_unlock(&q->lock);
    return item;
}

void *queue_wait(struct queue *q, int64_t timeout_ns)
{
    int64_t now = clock_now_ns();
    int64_t until = timeout_ns < 0 || timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
    struct timespec t = {.tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S};

    pthread_mutex_lock(&q->lock);
    int r = 0;
    while (q->count == 0 && !q->closed && r != ETIMEDOUT)
        r = pthread_cond_timedwait(&q->wake, &q->lock, &t);
    void *item = take_locked(q);
    pthread_mutex_unlock(&q->lock);
    return item;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

int queue_fd(const struct queue *q)
{
    return q->fd;
}
