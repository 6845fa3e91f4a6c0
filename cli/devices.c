/* `shoal devices`: what this machine could offer: each backend's devices with their memory, cores and numerics class.
 */
#include <stdio.h>

#include "cli/command.h"
#include "kernels/registry.h"
#include "runtime/base/jsonw.h"
#include "runtime/base/text.h"

#define DEVICES_MAX 64 /* of one backend */

struct devices_args {
    struct command_args common;
    uint64_t threads;
};

/* The numerics class, or why it cannot be told. */
static int fingerprint(const char *device, int n_threads, char ret[17], struct reason *why)
{
    struct kern k = {0};
    int r = kern_open(device, n_threads, &k, why);
    if (r < 0)
        return r;
    r = kern_fingerprint(&k, ret);
    kern_close(&k);
    return r < 0 ? reason_set(why, r, "%s does not compute: %s", device, status_text(r)) : 0;
}

static int print_device(const struct devices_args *a, const char *id, const struct kern_device *d)
{
    char class[17] = "";
    struct reason why = {0};
    int r = fingerprint(id, (int)a->threads, class, &why);
    if (!a->common.json) {
        char memory[TEXT_SIZE_MAX];
        text_size(d->memory_bytes, memory);
        printf("%-10s %-40s %6u %12s  %s\n", id, d->name, d->n_cores, memory, r < 0 ? reason_text(&why, r) : class);
        return 0;
    }
    struct jsonw w;
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "device", id);
    jsonw_str(&w, "name", d->name);
    jsonw_int(&w, "cores", d->n_cores);
    jsonw_int(&w, "memory_bytes", (int64_t)d->memory_bytes);
    if (r < 0)
        jsonw_str(&w, "problem", reason_text(&why, r));
    else
        jsonw_str(&w, "fingerprint", class);
    jsonw_object_end(&w);
    const char *text = jsonw_text(&w);
    if (text != NULL)
        printf("%s\n", text);
    jsonw_done(&w);
    return text == NULL ? -E_NOMEM : 0;
}

static int devices_run(void *args, struct reason *why)
{
    const struct devices_args *a = args;
    int total = 0;
    if (!a->common.json)
        printf("%-10s %-40s %6s %12s  %s\n", "device", "name", "cores", "memory", "numerics class");
    for (size_t b = 0; kern_registry_at(b) != NULL; b++) {
        const struct kern_backend *backend = kern_registry_at(b);
        struct kern_device devices[DEVICES_MAX];
        int n = backend->devices(devices, DEVICES_MAX);
        if (n < 0)
            return reason_set(why, n, "backend %s cannot list its devices: %s", backend->name, status_text(n));
        for (int i = 0; i < n; i++) {
            char id[40];
            snprintf(id, sizeof(id), "%s:%d", backend->name, i);
            int r = print_device(a, id, &devices[i]);
            if (r < 0)
                return r;
        }
        total += n;
    }
    return total > 0 ? 0 : reason_set(why, -E_NODEV, "no device can be used here");
}

static const struct option devices_options[] = {
    {"threads", "N", OPTION_COUNT, offsetof(struct devices_args, threads), .fallback = "1", .min = 1, .max = 1024,
     .help = "threads for computing the numerics class; it must not depend on them"},
};

const struct command command_devices = {
    .name = "devices",
    .summary = "list what this machine can compute with",
    .words = "",
    .about = "Lists the devices that `shoal peer --device` takes, with the memory that is free now. Devices of one "
             "numerics class give the same bits: a job run on them has the same model hash, however it is spread.",
    .example = "shoal devices",
    .options = devices_options,
    .n_options = sizeof(devices_options) / sizeof(devices_options[0]),
    .args_size = sizeof(struct devices_args),
    .run = devices_run,
};
