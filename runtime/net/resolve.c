/* Looking up a host name. Numeric addresses are read at once; a name goes to getaddrinfo, which may block for seconds,
 * in a detached thread of its own. The thread and the dial share one counted object: whoever lets go last frees it, so
 * a hang-up never waits for a resolver. */
#include "runtime/net/net_internal.h"

#include <assert.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RESOLVE_STACK_BYTES (256u << 10)

struct net_resolve {
    _Atomic unsigned refs;
    int done_fd; /* eventfd, written once by the thread */
    char host[HOST_MAX_LEN + 1];
    int error; /* of getaddrinfo */
    size_t n_addrs;
    struct sockaddr_storage addrs[NET_DIAL_ADDRS_MAX];
};

/* One address as numeric text, "[...]" around IPv6 allowed. */
bool net_resolve_numeric(const char *host, struct sockaddr_storage *ret)
{
    char bare[HOST_MAX_LEN + 1];
    size_t n = strlen(host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        memcpy(bare, host + 1, n - 2);
        bare[n - 2] = '\0';
        host = bare;
    }
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return false;
    memset(ret, 0, sizeof *ret);
    memcpy(ret, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return true;
}

static void *resolve_main(void *arg)
{
    struct net_resolve *r = arg;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    r->error = getaddrinfo(r->host, NULL, &hints, &list);
    if (r->error == 0) {
        for (struct addrinfo *a = list; a && r->n_addrs < NET_DIAL_ADDRS_MAX; a = a->ai_next) {
            if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
                memcpy(&r->addrs[r->n_addrs++], a->ai_addr, a->ai_addrlen);
        }
        freeaddrinfo(list);
    }
    uint64_t one = 1;
    ssize_t rc = write(r->done_fd, &one, sizeof one);
    assert(rc == sizeof one); /* an eventfd at 0 takes a 1 */
    net_resolve_free(r);
    return NULL;
}

int net_resolve_start(const char *host, struct net_resolve **ret, int *ret_fd)
{
    assert(strlen(host) <= HOST_MAX_LEN);
    struct net_resolve *r = mem_calloc(1, sizeof *r);
    if (!r)
        return -E_NOMEM;
    atomic_init(&r->refs, 2);
    memcpy(r->host, host, strlen(host) + 1);
    r->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->done_fd < 0) {
        mem_free(r);
        return -E_IO;
    }
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, RESOLVE_STACK_BYTES);
    int rc = pthread_create(&thread, &attr, resolve_main, r);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        close(r->done_fd);
        mem_free(r);
        return -E_AGAIN;
    }
    *ret = r;
    *ret_fd = r->done_fd;
    return 0;
}

int net_resolve_take(struct net_resolve *r, struct sockaddr_storage *ret, size_t cap, size_t *ret_n, struct reason *why)
{
    uint64_t count;
    ssize_t rc = read(r->done_fd, &count, sizeof count);
    if (rc != sizeof count)
        return -E_AGAIN;
    if (r->error != 0 || r->n_addrs == 0)
        return reason_set(why, -E_NOENT, "no address is known for \"%s\": %s", r->host,
                          r->error ? gai_strerror(r->error) : "it has none we can use");
    size_t n = r->n_addrs < cap ? r->n_addrs : cap;
    memcpy(ret, r->addrs, n * sizeof *ret);
    *ret_n = n;
    return 0;
}

struct net_resolve *net_resolve_free(struct net_resolve *r)
{
    if (r && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) {
        close(r->done_fd);
        mem_free(r);
    }
    return NULL;
}
