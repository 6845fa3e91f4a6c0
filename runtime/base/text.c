/* See text.h. Every form has at least two digits that mean something. */
#include "runtime/base/text.h"

#include <math.h>
#include <stdio.h>

const char *text_s(uint64_t n)
{
    return n == 1 ? "" : "s";
}

void text_size(uint64_t size_bytes, char ret[TEXT_SIZE_MAX])
{
    static const char units[][4] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)size_bytes;
    size_t u = 0;

    while (v >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
        v /= 1024;
        u++;
    }
    snprintf(ret, TEXT_SIZE_MAX, u == 0 ? "%.0f %s" : "%.1f %s", v, units[u]);
}

void text_duration(double seconds, char ret[TEXT_DURATION_MAX])
{
    if (!isfinite(seconds) || seconds < 0)
        snprintf(ret, TEXT_DURATION_MAX, "?");
    else if (seconds < 0.09995)
        snprintf(ret, TEXT_DURATION_MAX, "%.*f ms", seconds == 0 ? 0 : seconds < 0.0009995 ? 2 : 1, 1e3 * seconds);
    else if (seconds < 9.995)
        snprintf(ret, TEXT_DURATION_MAX, "%.2f s", seconds);
    else if (seconds < 59.5)
        snprintf(ret, TEXT_DURATION_MAX, "%.0f s", seconds);
    else if (seconds < 3599.5)
        snprintf(ret, TEXT_DURATION_MAX, "%dm%02ds", (int)round(seconds) / 60, (int)round(seconds) % 60);
    else if (seconds < 1e8)
        snprintf(ret, TEXT_DURATION_MAX, "%dh%02dm", (int)(seconds / 3600 + 1e-9), (int)fmod(seconds / 60, 60));
    else
        snprintf(ret, TEXT_DURATION_MAX, "years");
}
