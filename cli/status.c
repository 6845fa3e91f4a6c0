/* `shoal status INVITE`: how a running job goes. What the coordinator leaves out is not shown, so an older or newer one
 * can be asked too. */
#include <math.h>
#include <stdio.h>

#include "cli/command.h"
#include "cli/rundir.h"
#include "runtime/base/mem.h"
#include "runtime/base/text.h"
#include "runtime/store/json.h"
#include "scheduler/status_client.h"

struct status_args {
    struct command_args common;
    uint64_t timeout;
};

static const char *text_of(const struct json *obj, const char *key)
{
    const char *s = json_str(json_get(obj, key));
    return s == NULL ? "" : s;
}

static double number_of(const struct json *obj, const char *key)
{
    double v = 0;
    return json_num(json_get(obj, key), &v) ? v : (double)NAN;
}

/* "0-3 50%, 4-5 100%": the units that a peer holds and its part of each one's microbatches. */
static void spans_text(const struct json *spans, char *ret, size_t size)
{
    size_t len = 0;
    ret[0] = '\0';
    for (const struct json *s = json_first(spans); s != NULL && len < size; s = json_next(s)) {
        double first = number_of(s, "first_unit"), last = number_of(s, "last_unit"), share = number_of(s, "share");
        const char *comma = len > 0 ? ", " : "";
        int n = first == last ? snprintf(ret + len, size - len, "%s%.0f", comma, first)
                              : snprintf(ret + len, size - len, "%s%.0f-%.0f", comma, first, last);
        len += (size_t)n;
        if (isfinite(share) && len < size)
            len += (size_t)snprintf(ret + len, size - len, " %.0f%%", 100 * share);
    }
}

static void print_head(const struct json *s)
{
    uint64_t step = 0, steps = 0;
    printf("job %s", text_of(s, "job"));
    if (json_u64(json_get(s, "step"), &step) && json_u64(json_get(s, "steps"), &steps))
        printf("  step %llu/%llu", (unsigned long long)step, (unsigned long long)steps);
    double loss = number_of(s, "loss"), rate = number_of(s, "tokens_per_s");
    if (isfinite(loss))
        printf("  loss %.4f", loss);
    if (isfinite(rate))
        printf("  %.0f tok/s", rate);
    printf("%s%s\n", text_of(s, "state")[0] == '\0' ? "" : "  ", text_of(s, "state"));
}

static void print_peer(const struct json *p)
{
    char memory[TEXT_SIZE_MAX] = "", speed[32] = "", spans[512];
    uint64_t bytes = 0;
    double seconds = number_of(p, "microbatch_seconds");
    if (json_u64(json_get(p, "memory_bytes"), &bytes))
        text_size(bytes, memory);
    if (isfinite(seconds) && seconds > 0)
        snprintf(speed, sizeof(speed), "%.1f/s", 1 / seconds);
    spans_text(json_get(p, "spans"), spans, sizeof(spans));
    printf("%-8.8s  %-16.16s  %-8.8s  %-12.12s  %9s  %10s  %s\n", text_of(p, "id"), text_of(p, "name"),
           text_of(p, "device"), text_of(p, "state"), speed, memory, spans);
}

static int status_print(const char *text, struct reason *why)
{
    struct json *s = NULL;
    size_t len = 0;
    while (text[len] != '\0')
        len++;
    int r = json_parse(text, len, &s, why);
    if (r < 0)
        return reason_wrap(why, r, "the coordinator's answer");
    print_head(s);
    const struct json *peers = json_get(s, "peers");
    printf("%-8s  %-16s  %-8s  %-12s  %9s  %10s  %s\n", "peer", "name", "device", "state", "speed", "memory",
           "units and share of the work");
    for (const struct json *p = json_first(peers); p != NULL; p = json_next(p))
        print_peer(p);
    json_free(s);
    return 0;
}

static int status_run(void *args, struct reason *why)
{
    const struct status_args *a = args;
    struct invite invite;
    int r = rundir_invite_read(a->common.words[0], &invite, why);
    if (r < 0)
        return r;
    cleanup_mem_ char *text = NULL;
    r = status_client_get(&invite, (int)a->timeout * 1000, &text, why);
    if (r < 0)
        return r;
    if (!a->common.json)
        return status_print(text, why);
    printf("%s\n", text);
    return 0;
}

static const struct option status_options[] = {
    {"timeout", "SECONDS", OPTION_COUNT, offsetof(struct status_args, timeout), .fallback = "5", .min = 1, .max = 3600,
     .help = "how long to wait for the answer"},
};

const struct command command_status = {
    .name = "status",
    .summary = "show how a running job goes",
    .words = "INVITE | RUN",
    .min_words = 1,
    .max_words = 1,
    .about =
        "Asks the coordinator of a running job and prints how far the job is, who takes part, and for each peer its "
        "measured speed (microbatches through the whole model), the units that it holds and its share of their "
        "work. Takes the invite, a file that holds it, or on the coordinator's machine the run's folder. With "
        "--json the answer is printed as it came.",
    .example = "shoal status runs/gpt-nano",
    .options = status_options,
    .n_options = sizeof(status_options) / sizeof(status_options[0]),
    .args_size = sizeof(struct status_args),
    .run = status_run,
};
