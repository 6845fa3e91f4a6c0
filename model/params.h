/* What a holder keeps: parameters, AdamW moments and gradient sums of the tensors of the units it holds, in device
 * memory. One thread at a time (the one that owns the device).
 *
 * Sums are kept per (tensor, use): 64-bit fixed point in exact reduction, fp32 in fast. */
#ifndef SHOAL_MODEL_PARAMS_H
#define SHOAL_MODEL_PARAMS_H

#include "kernels/kern.h"
#include "model/model.h"

enum params_part { PARAMS_VALUE, PARAMS_MOMENT1, PARAMS_MOMENT2, PARAMS_PARTS };

struct params;

/* Allocates for the units with held[u] true. Values are undefined until params_init or params_part writes. Moments and
 * sums are zero. -E_NOMEM. */
int params_new(const struct model *m, struct kern *k, enum job_reduction reduction, const bool *held,
               struct params **ret);
/* Holds the units with held[u] true from now on: what was held before and is held still stays as it is, what is new is
 * as params_new makes it, the rest is freed. Sums are zero. -E_NOMEM: what was held before may be gone. */
int params_change(struct params *p, const bool *held);
struct params *params_free(struct params *p); /* NULL ok; returns NULL */

/* Bytes that params_new would allocate. */
size_t params_bytes(const struct model *m, enum job_reduction reduction, const bool *held);

/* Version 0: every held tensor from (seed, tensor name, element); moments zero. */
int params_init(struct params *p, uint64_t seed);

bool params_holds(const struct params *p, uint32_t tensor);
float *params_part(struct params *p, uint32_t tensor, enum params_part part); /* device; NULL if not held */

float *const *params_unit(struct params *p, uint32_t u); /* values, in model_unit order; NULL if u is not held */
float *const *params_unit_grads(struct params *p,
                                uint32_t u); /* scratch for one unit's microbatch gradient, shared by all units */

/* Adds the scratch gradient of unit u to its sums. *ret_flagged (may be NULL) is set true if an element overflowed or
 * was not finite (exact; design 6), and otherwise left as it is. */
int params_accumulate(struct params *p, uint32_t u, bool *ret_flagged);

/* What an element of one microbatch's gradient may be in exact reduction: the largest float below 2^11 / (M * uses), so
 * that M additions of each use, and the sum of the uses, stay within 64 bits. */
float params_exact_bound(const struct model *m, uint32_t tensor);

/* The local sum of (tensor, use): int64_t (exact) or float (fast), tensor.n elements, device; NULL if that use's unit
 * is not held. */
void *params_sum(struct params *p, uint32_t tensor, uint32_t use);
int params_sums_clear(struct params *p);

#endif
