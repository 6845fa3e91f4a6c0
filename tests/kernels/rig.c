/* See rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/reference.h"
#include "runtime/base/mem.h"
#include "tests/kernels/rig.h"

#include <math.h>
#include <string.h>

struct rig rig_cpu(int n_threads, int64_t offset)
{
    struct rig r = {.offset = offset, .rng = rng_make(1, "rig")};
    struct reason why = {0};
    if (kern_open("cpu", n_threads, &r.k, &why) < 0)
        fail_msg("%s", why.text);
    return r;
}

struct rig rig_reference(void)
{
    struct rig r = {.rng = rng_make(1, "rig")};
    const struct kern_config config = {.n_threads = 1};
    r.k.backend = &kern_reference_backend;
    r.k.ops = kern_reference_backend.ops;
    assert_int_equal(kern_reference_backend.open(&config, &r.k.ctx), 0);
    return r;
}

void rig_reset(struct rig *r)
{
    for (int i = 0; i < r->n_buffers; i++)
        mem_free(r->buffers[i].mem);
    r->n_buffers = 0;
    r->rng = rng_make(1, "rig");
}

void rig_done(struct rig *r)
{
    rig_reset(r);
    kern_close(&r->k);
}

static float *buffer(struct rig *r, const char *name, int64_t n)
{
    assert_true(r->n_buffers < RIG_BUFFERS_MAX);
    void *mem = mem_alloc((size_t)(n + r->offset) * sizeof(float));
    assert_non_null(mem);
    float *data = (float *)mem + r->offset;
    r->buffers[r->n_buffers++] = (struct rig_buffer){.name = name, .mem = mem, .data = data, .n = n};
    return data;
}

const float *rig_in(struct rig *r, int64_t n)
{
    float *a = buffer(r, NULL, n);
    for (int64_t i = 0; i < n; i++)
        a[i] = (float)(2.0 * rng_unit(&r->rng) - 1.0);
    return a;
}

const int32_t *rig_ids(struct rig *r, int64_t n, int64_t n_ids)
{
    int32_t *a = (int32_t *)(void *)buffer(r, NULL, n);
    for (int64_t i = 0; i < n; i++)
        a[i] = (int32_t)rng_below(&r->rng, (uint64_t)n_ids);
    return a;
}

float *rig_out(struct rig *r, const char *name, int64_t n)
{
    float *a = buffer(r, name, n);
    for (int64_t i = 0; i < n; i++)
        a[i] = NAN;
    return a;
}

float *rig_in_place(struct rig *r, const char *name, const float *a, int64_t n)
{
    float *b = buffer(r, name, n);
    if (n > 0)
        memcpy(b, a, (size_t)n * sizeof *b);
    return b;
}

double nmse(const float *a, const float *b, int64_t n)
{
    double error = 0.0, power = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        power += (double)b[i] * (double)b[i];
    }
    return error == 0.0 ? 0.0 : error / power;
}
