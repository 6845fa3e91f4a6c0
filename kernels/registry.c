/* The backends, best first, and opening a device by its name "backend" or "backend:index". */
#include "kernels/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct kern_backend *kern_registry_at(size_t i)
{
    static const struct kern_backend *const backends[] = {&kern_cpu_backend};
    return i < sizeof backends / sizeof *backends ? backends[i] : NULL;
}

/* "backend" or "backend:index"; index < 0 when the name is not of that form or not this backend's. */
static int device_index(const struct kern_backend *b, const char *device)
{
    const size_t len = strlen(b->name);
    if (strncmp(device, b->name, len) != 0)
        return -1;
    if (device[len] == '\0')
        return 0;
    const char *digits = device + len + 1;
    const size_t n = strspn(digits, "0123456789");
    if (device[len] != ':' || n == 0 || n > 4 || digits[n] != '\0')
        return -1;
    return atoi(digits);
}

static int no_device(const char *device, struct reason *why)
{
    char list[256] = "";
    size_t at = 0;
    const struct kern_backend *b;
    for (size_t i = 0; (b = kern_registry_at(i)) != NULL; i++) {
        const int n = b->devices(NULL, 0);
        for (int d = 0; d < n && at < sizeof list; d++) {
            const int w = snprintf(list + at, sizeof list - at, "%s%s:%d", at > 0 ? ", " : "", b->name, d);
            at += w > 0 ? (size_t)w : 0;
        }
    }
    return reason_set(why, -E_NODEV, "no device \"%.64s\"; there is: %s", device ? device : "", list);
}

int kern_open(const char *device, int n_threads, struct kern *ret, struct reason *why)
{
    const struct kern_backend *b;
    for (size_t i = 0; (b = kern_registry_at(i)) != NULL; i++) {
        const int n = b->devices(NULL, 0);
        const int index = device ? device_index(b, device) : 0;
        if (index < 0 || index >= n)
            continue;
        const struct kern_config config = {.device = index, .n_threads = n_threads};
        struct kern_ctx *ctx;
        const int r = b->open(&config, &ctx);
        if (r < 0)
            return reason_set(why, r, "cannot open device %s:%d with %d threads: %s", b->name, index, n_threads,
                              status_text(r));
        *ret = (struct kern){.backend = b, .ops = b->ops, .ctx = ctx};
        return 0;
    }
    return no_device(device, why);
}

void kern_close(struct kern *k)
{
    if (!k || !k->backend)
        return;
    k->backend->close(k->ctx);
    *k = (struct kern){0};
}
