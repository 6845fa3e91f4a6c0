/* AdamW with warm-up and cosine decay. What depends on the step is computed once, by the coordinator, and travels in
 * the commit. */
#ifndef SHOAL_MODEL_OPTIMIZER_H
#define SHOAL_MODEL_OPTIMIZER_H

#include "kernels/kern.h"
#include "model/job.h"

/* Learning rate of the step that makes version `version` + 1 (version counts committed steps from 0): linear warm-up
 * from lr/warmup to lr, then cosine to lr_min at job.train.steps (Loshchilov & Hutter, arXiv 1608.03983, eq. 5). */
double optimizer_lr(const struct job *job, uint64_t version);

/* The numbers of one update. updates: how many updates were applied before this one (skipped steps do not count). norm:
 * global gradient norm before clipping. weight_decay is the job's; callers zero it for tensors that do not decay. */
struct kern_adamw optimizer_step(const struct job *job, uint64_t version, uint64_t updates, double norm);

#endif
