/* This machine's addresses that others could dial. A guess about what is reachable, best first; only a dial tells. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/net/net.h"

#define CANDIDATES_MAX 64

struct candidate {
    int rank; /* lower is better */
    int order;
    char text[HOST_MAX_LEN + 1];
};

/* Interfaces that lead to containers and virtual machines on this host, not to others. */
static bool is_inner_interface(const char *name)
{
    static const char *const prefixes[] = {"docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* 0 public IPv4, 1 private IPv4, 2 global IPv6, 3 other IPv6; +10 inner interfaces; -1 cannot be dialled by others. */
static int rank_of(const struct ifaddrs *a)
{
    int base = is_inner_interface(a->ifa_name) ? 10 : 0;
    if (a->ifa_addr->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a->ifa_addr, sizeof in);
        uint32_t ip = ntohl(in.sin_addr.s_addr);
        if ((ip >> 16) == 0xa9fe) /* 169.254/16, link-local */
            return -1;
        bool is_private = (ip >> 24) == 10 || (ip >> 20) == 0xac1 || (ip >> 16) == 0xc0a8 || (ip >> 22) == 0x191;
        return base + (is_private ? 1 : 0);
    }
    struct sockaddr_in6 in6;
    memcpy(&in6, a->ifa_addr, sizeof in6);
    if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr))
        return -1;
    return base + ((in6.sin6_addr.s6_addr[0] & 0xe0) == 0x20 ? 2 : 3);
}

static int compare(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    return a->rank != b->rank ? (a->rank < b->rank ? -1 : 1) : a->order - b->order;
}

static size_t collect(const struct ifaddrs *all, bool loopback, struct candidate ret[CANDIDATES_MAX])
{
    size_t n = 0;
    for (const struct ifaddrs *a = all; a && n < CANDIDATES_MAX; a = a->ifa_next) {
        if (!a->ifa_addr || !(a->ifa_flags & IFF_UP) || !(a->ifa_flags & IFF_LOOPBACK) == loopback)
            continue;
        int family = a->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6)
            continue;
        struct candidate *c = &ret[n];
        c->rank = rank_of(a);
        c->order = (int)n;
        socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if (c->rank < 0 || getnameinfo(a->ifa_addr, len, c->text, sizeof c->text, NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        n++;
    }
    return n;
}

int net_local_addrs(char (*ret)[HOST_MAX_LEN + 1], int cap)
{
    static const char fallback[] = "127.0.0.1";
    struct ifaddrs *all = NULL;
    struct candidate found[CANDIDATES_MAX];
    size_t n = 0;
    if (getifaddrs(&all) == 0) {
        n = collect(all, false, found);
        if (n == 0)
            n = collect(all, true, found);
        freeifaddrs(all);
    }
    if (n == 0 && cap > 0) {
        memcpy(ret[0], fallback, sizeof fallback);
        return 1;
    }
    qsort(found, n, sizeof *found, compare);
    int count = 0;
    for (; count < cap && count < (int)n; count++)
        memcpy(ret[count], found[count].text, sizeof found[count].text);
    return count;
}
