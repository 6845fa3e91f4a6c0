/* The fake device's insides, shared by device.c (memory, units) and device_state.c (reduces, updates, snapshots). */
#ifndef SHOAL_SIM_DEVICE_IMPL_H
#define SHOAL_SIM_DEVICE_IMPL_H

#include "sim/device.h"

#define DEVICE_SLOTS_MAX     4096
#define DEVICE_SNAPSHOTS_MAX 4

struct device_tensor {
    float *part[PARAMS_PARTS];    /* NULL = not held */
    int64_t *sum[MODEL_USES_MAX]; /* NULL = that use's unit is not held */
    bool joins;                   /* is being fetched and caught up: of no use yet */
    uint64_t version;             /* joins: that it is at, from the first replay on */
    bool version_known;
};

struct device_slot {
    bool used;
    uint32_t microbatch, u0, u1;
    uint64_t *in; /* what came into each unit; [n_units]: what the head's gradient starts from */
};

struct device_snapshot {
    bool used;
    uint64_t version, taken;
    float **parts; /* [n_tensors * PARAMS_PARTS], NULL = not held */
};

struct device {
    const struct model *model;
    struct device_fault fault;
    double speed;
    struct plan plan;
    struct plan_groups groups;
    uint32_t self;
    bool *held;
    struct device_tensor *tensors;
    float **group_sums; /* finished sums, per group that this peer is a member of and not joining */
    struct device_slot *slots;
    uint32_t n_slots;
    uint64_t version;
    bool version_known; /* after a fetch the device learns its version with the first update */
    bool unit_state_valid;
    uint64_t unit_state[UNITS_MAX];
    struct device_snapshot snapshots[DEVICE_SNAPSHOTS_MAX];
    uint64_t n_taken, n_lies;
    char complaint[256];
};

void device_complain(struct device *d, const struct task *t, const char *what);
uint64_t device_mix(uint64_t a, uint64_t b);
uint64_t device_mix_bytes(uint64_t seed, const void *data, size_t n);

/* A value in [0, 1) from the upper 24 bits: exact. */
static inline float device_float(uint64_t h)
{
    return (float)(h >> 40) * 0x1p-24f;
}

/* device_state.c */
void device_run_state(struct device *d, struct task *t);
void device_snapshots_free(struct device *d);

#endif
