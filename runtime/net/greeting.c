/* One raw look at a port that a dial failed on. libzmq reports a wrong server key, a dead port and a foreign program
 * with the same events, so we connect once ourselves, begin a ZMTP 3 greeting and read the 64 bytes that every ZMTP 3
 * peer answers (ZMTP 3.1, RFC 37: signature ff ........ 7f, version, mechanism in bytes 12 to 31). Never blocks;
 * nothing of the answer is trusted beyond choosing a sentence. */
#include "runtime/net/net_internal.h"

#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define GREETING_BYTES  64
#define SIGNATURE_BYTES 10
#define MECHANISM_AT    12
#define MECHANISM_BYTES 20

struct net_probe {
    struct net *net;
    struct net_source source;
    int fd, error; /* error: errno of connect */
    uint16_t port;
    bool connected;
    size_t got;
    uint8_t in[GREETING_BYTES];
};

int net_probe_start(struct net_link *l, const struct sockaddr_storage *addr, uint16_t port, struct net_probe **ret)
{
    struct net_probe *p = mem_calloc(1, sizeof *p);
    if (!p)
        return -E_NOMEM;
    p->net = l->net;
    p->port = port;
    p->source.fd = -1;
    net_node_init(&p->source.ready);
    struct sockaddr_storage to = *addr;
    socklen_t len = to.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (to.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&to)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)&to)->sin_port = htons(port);
    p->fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0) {
        p->error = errno;
    } else if (connect(p->fd, (struct sockaddr *)&to, len) < 0 && errno != EINPROGRESS) {
        p->error = errno;
    } else if (net_source_add(l->net, &p->source, NET_SOURCE_PROBE, p->fd, EPOLLOUT, l) != 0) {
        close(p->fd);
        mem_free(p);
        return -E_IO;
    }
    *ret = p;
    return 0;
}

static enum net_probe_result refused_by(int error)
{
    switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
        return NET_PROBE_REFUSED;
    case ETIMEDOUT:
        return NET_PROBE_TIMEOUT;
    default:
        return NET_PROBE_UNREACHABLE;
    }
}

static bool is_signature(const uint8_t *in, size_t got)
{
    return (got < 1 || in[0] == 0xff) && (got < SIGNATURE_BYTES || in[SIGNATURE_BYTES - 1] == 0x7f);
}

static enum net_probe_result greeting_judge(const struct net_probe *p, bool ended)
{
    static const uint8_t curve[MECHANISM_BYTES] = "CURVE";
    if (!is_signature(p->in, p->got))
        return NET_PROBE_OTHER;
    if (p->got == GREETING_BYTES)
        return memcmp(p->in + MECHANISM_AT, curve, sizeof curve) == 0 ? NET_PROBE_CURVE : NET_PROBE_NO_CURVE;
    if (!ended)
        return NET_PROBE_AGAIN;
    return NET_PROBE_OTHER;
}

/* Only signature and version: that brings out the peer's whole greeting, while naming a mechanism it does not have
 * would make it hang up before saying its own. */
static void greeting_send(const struct net_probe *p)
{
    static const uint8_t out[SIGNATURE_BYTES + 1] = {0xff, [8] = 1, [9] = 0x7f, [10] = 3};
    /* It always fits a fresh socket's buffer; if not, the silence is judged. */
    ssize_t rc = send(p->fd, out, sizeof out, MSG_NOSIGNAL);
    (void)rc;
}

/* To be called when the descriptor is ready, or with timed_out when nothing came of it in time. */
enum net_probe_result net_probe_step(struct net_probe *p, bool timed_out)
{
    if (p->error)
        return refused_by(p->error);
    if (timed_out) {
        if (!p->connected)
            return NET_PROBE_TIMEOUT;
        return p->got ? greeting_judge(p, true) : NET_PROBE_SILENT;
    }
    if (!p->connected) {
        socklen_t len = sizeof p->error;
        if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &p->error, &len) < 0)
            p->error = errno;
        if (p->error)
            return refused_by(p->error);
        p->connected = true;
        greeting_send(p);
        if (net_source_change(p->net, &p->source, EPOLLIN) != 0)
            return NET_PROBE_SILENT;
    }
    ssize_t n = recv(p->fd, p->in + p->got, GREETING_BYTES - p->got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return NET_PROBE_AGAIN;
    if (n > 0)
        p->got += (size_t)n;
    return greeting_judge(p, n <= 0);
}

const char *net_probe_heard(const struct net_probe *p, char *ret, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && n < p->got && n < 16 && isascii(p->in[n]) && isprint(p->in[n]) && p->in[n] != '"') {
        ret[n] = (char)p->in[n];
        n++;
    }
    ret[n] = '\0';
    return ret;
}

int net_probe_errno(const struct net_probe *p)
{
    return p->error;
}

uint16_t net_probe_port(const struct net_probe *p)
{
    return p->port;
}

struct net_probe *net_probe_free(struct net_probe *p)
{
    if (p) {
        net_source_remove(p->net, &p->source);
        if (p->fd >= 0)
            close(p->fd);
        mem_free(p);
    }
    return NULL;
}
