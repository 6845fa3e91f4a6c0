/* A shaped link for trying things out: everything this process sends leaves over one wire of a given rate and arrives a
 * given delay later. What travels is not touched, only when it is handed to zmq.
 *
 * Control and lobby messages take their share of the wire but do not wait behind bulk, as two TCP flows would not. */
#include "runtime/net/net_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    double factor;
};

static const struct unit rate_units[] = {{"bit", 1.0 / 8}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}};
static const struct unit delay_units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};

/* "20mbit" of n bytes at text, as a whole number of at least 1 in the base unit. */
static int quantity_parse(const char *text, size_t n, const struct unit *units, size_t n_units, double *ret)
{
    char copy[32], *end;
    if (n == 0 || n >= sizeof copy)
        return -E_INVAL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (strspn(copy, "0123456789.") == 0)
        return -E_INVAL; /* strtod would take signs, "inf" and hexadecimal */
    double value = strtod(copy, &end);
    if ((size_t)(end - copy) != strspn(copy, "0123456789."))
        return -E_INVAL;
    for (size_t i = 0; i < n_units; i++) {
        if (strcasecmp(end, units[i].name) != 0)
            continue;
        value *= units[i].factor;
        if (!(value >= 1) || value > 1e15)
            return -E_INVAL;
        *ret = value;
        return 0;
    }
    return -E_INVAL;
}

int net_emulate_parse(const char *text, struct net_config *config, struct reason *why)
{
    uint64_t rate_bytes_s = 0;
    int64_t delay_ns = 0;
    for (const char *at = text;;) {
        size_t n = strcspn(at, ",");
        double value;
        if (n > 5 && strncmp(at, "rate=", 5) == 0 &&
            quantity_parse(at + 5, n - 5, rate_units, sizeof rate_units / sizeof *rate_units, &value) == 0)
            rate_bytes_s = (uint64_t)value;
        else if (n > 6 && strncmp(at, "delay=", 6) == 0 &&
                 quantity_parse(at + 6, n - 6, delay_units, sizeof delay_units / sizeof *delay_units, &value) == 0)
            delay_ns = (int64_t)value;
        else
            return reason_set(
                why, -E_INVAL,
                "cannot read \"%.*s\": expected rate=NUMBER(bit|kbit|mbit|gbit) or delay=NUMBER(us|ms|s), "
                "as in rate=20mbit,delay=40ms",
                (int)(n > 64 ? 64 : n), at);
        if (at[n] == '\0')
            break;
        at += n + 1;
    }
    config->emulate_rate_bytes_s = rate_bytes_s;
    config->emulate_delay_ns = delay_ns;
    return 0;
}

static int64_t wire_ns(uint64_t rate_bytes_s, size_t bytes)
{
    return rate_bytes_s ? (int64_t)ceil((double)bytes * 1e9 / (double)rate_bytes_s) : 0;
}

/* When a message of so many bytes handed over now would have arrived; per channel never earlier than the one before. */
int64_t net_emulate_due(struct net *n, enum net_channel channel, size_t bytes, int64_t now_ns)
{
    int64_t takes_ns = wire_ns(n->config.emulate_rate_bytes_s, bytes);
    int64_t *free_ns = &n->shaped_free_ns[channel];
    if (*free_ns < now_ns)
        *free_ns = now_ns;
    *free_ns += takes_ns;
    if (channel != NET_BULK && n->shaped_free_ns[NET_BULK] > now_ns)
        n->shaped_free_ns[NET_BULK] += takes_ns;
    return *free_ns + n->config.emulate_delay_ns;
}
