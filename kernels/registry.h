/* Which backends exist and opening a device by name. */
#ifndef SHOAL_KERNELS_REGISTRY_H
#define SHOAL_KERNELS_REGISTRY_H

#include "kernels/kern.h"
#include "runtime/base/status.h"

extern const struct kern_backend kern_cpu_backend;

/* The i-th backend, NULL past the last one. */
const struct kern_backend *kern_registry_at(size_t i);

/* Opens device "cpu" (or "cpu:0"; NULL means the best there is) with n_threads pool threads. Unknown names: -E_NODEV
 * with a sentence that lists what there is. Close with kern_close. */
int kern_open(const char *device, int n_threads, struct kern *ret, struct reason *why);
void kern_close(struct kern *k); /* NULL and half-open ok */

/* A hash of kernel outputs on fixed inputs: equal fingerprints form one numerics class. 16 hex digits and a NUL. */
int kern_fingerprint(struct kern *k, char ret[17]);

#endif
