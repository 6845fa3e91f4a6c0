/* A bounded queue of pointers between two threads, with an eventfd that a poll loop can wait on. Any number of pushing
 * threads, one popping thread. */
#ifndef SHOAL_RUNTIME_BASE_QUEUE_H
#define SHOAL_RUNTIME_BASE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

struct queue;

int queue_new(size_t capacity, struct queue **ret); /* -E_NOMEM, -E_IO (no descriptor) */
struct queue *queue_free(struct queue *q);          /* NULL ok; items left inside are the caller's to drain first */

/* 0; -E_AGAIN when full; -E_CLOSED after queue_close. Never blocks. */
int queue_push(struct queue *q, void *item);

/* The oldest item, or NULL when empty. Never blocks. */
void *queue_pop(struct queue *q);

/* Waits up to timeout_ns (< 0: for ever) for an item; NULL on time-out, or when closed and empty. */
void *queue_wait(struct queue *q, int64_t timeout_ns);

void queue_close(struct queue *q);   /* pushes fail from now on, waiters wake */
int queue_fd(const struct queue *q); /* readable while items are inside: poll it, never read it */

#endif
