/* A rig runs one kernel case on one open device: it hands out inputs, the same for every rig, and keeps the outputs so
 * that two runs can be compared. Cases (cases.c) are the list of every layer kernel over regular and awkward shapes. */
#ifndef SHOAL_TESTS_KERNELS_RIG_H
#define SHOAL_TESTS_KERNELS_RIG_H

#include "kernels/registry.h"
#include "runtime/base/rng.h"

enum { RIG_BUFFERS_MAX = 16, CASE_DIMS_MAX = 5 };

struct rig_buffer {
    const char *name; /* NULL: an input */
    void *mem;        /* what to free */
    float *data;
    int64_t n;
};

struct rig {
    struct kern k;
    int64_t offset; /* floats by which every pointer is off the 64-byte boundary */
    struct rng rng;
    struct rig_buffer buffers[RIG_BUFFERS_MAX];
    int n_buffers;
};

/* Aborts the test when the device cannot be opened. */
struct rig rig_cpu(int n_threads, int64_t offset);
struct rig rig_reference(void);
void rig_done(struct rig *r);
void rig_reset(struct rig *r); /* frees the buffers and starts the inputs anew */

const float *rig_in(struct rig *r, int64_t n);                                   /* uniform in [-1, 1) */
const int32_t *rig_ids(struct rig *r, int64_t n, int64_t n_ids);                 /* uniform in [0, n_ids) */
float *rig_out(struct rig *r, const char *name, int64_t n);                      /* full of NaN */
float *rig_in_place(struct rig *r, const char *name, const float *a, int64_t n); /* an output that starts as a copy */

struct kernel_case {
    const char *name;
    void (*run)(struct rig *r, const int64_t *d);
    int64_t dims[CASE_DIMS_MAX];
};
extern const struct kernel_case kernel_cases[];
extern const int n_kernel_cases;

/* Sum of (a - b)^2 over sum of b^2; NaN when either holds a NaN. */
double nmse(const float *a, const float *b, int64_t n);

#endif
