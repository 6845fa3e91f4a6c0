/* How a group's flat range is divided among its members: the closed form stated in reduce.h. */
#include <assert.h>

#include "parallel/reduce.h"

/* Fractions w[i] of the range by water-filling over the links' rates. */
static void fractions(const double *bw, uint32_t n, double *w)
{
    double u_min = bw[0];
    bool in[PEERS_MAX];

    for (uint32_t i = 0; i < n; i++) {
        in[i] = true;
        if (bw[i] < u_min)
            u_min = bw[i];
    }
    for (;;) {
        double sum = 0;
        uint32_t active = 0, worst = UINT32_MAX;

        for (uint32_t i = 0; i < n; i++)
            if (in[i]) {
                sum += bw[i];
                active++;
            }
        double t = (double)(n - 2 + active) / sum;

        if (t < 1 / u_min)
            t = 1 / u_min;
        double total = 0;

        for (uint32_t i = 0; i < n; i++) {
            w[i] = in[i] ? (t * bw[i] - 1) / (double)(n - 2) : 0;
            if (w[i] < 0 && (worst == UINT32_MAX || bw[i] < bw[worst]))
                worst = i;
            total += w[i];
        }
        if (worst == UINT32_MAX) {
            for (uint32_t i = 0; i < n; i++)
                w[i] /= total;
            return;
        }
        in[worst] = false;
    }
}

void reduce_ranges(uint64_t n_elems, const double *bw_bytes_s, uint32_t n_members, struct msg_reduce_member *members)
{
    assert(n_members >= 1 && n_members <= PEERS_MAX);
    double w[PEERS_MAX];
    bool known = n_members > 2;
    double sum = 0;
    uint64_t at = 0;
    /* Small groups are cut at single elements, large ones at whole pieces. */
    uint64_t unit = n_elems >= (uint64_t)REDUCE_PIECE_ELEMS * n_members * 4 ? REDUCE_PIECE_ELEMS : 1;

    for (uint32_t i = 0; i < n_members; i++)
        known = known && bw_bytes_s && bw_bytes_s[i] > 0;
    if (known)
        fractions(bw_bytes_s, n_members, w);
    else
        for (uint32_t i = 0; i < n_members; i++)
            w[i] = 1.0 / n_members;
    for (uint32_t i = 0; i < n_members; i++) {
        sum += w[i];
        uint64_t end = (uint64_t)((double)n_elems * sum / (double)unit + 0.5) * unit;

        if (i + 1 == n_members || end > n_elems)
            end = n_elems;
        if (end < at)
            end = at;
        members[i].lo = at;
        members[i].hi = end;
        at = end;
    }
}
