/* The learning rate and the numbers of one AdamW update. Everything transcendental (cos, pow) is here, in double,
 * rounded once to float; devices only multiply, add, divide and take roots. Pure functions. */
#include "model/optimizer.h"

#include <assert.h>
#include <math.h>

double optimizer_lr(const struct job *job, uint64_t version)
{
    const double pi = 3.14159265358979323846;
    const uint64_t warmup = job->train.warmup_steps, steps = job->train.steps, k = version + 1;
    double progress;

    if (k <= warmup)
        return job->train.lr * (double)k / (double)warmup;
    if (k >= steps)
        return job->train.lr_min;
    progress = (double)(k - warmup) / (double)(steps - warmup);
    return job->train.lr_min + 0.5 * (job->train.lr - job->train.lr_min) * (1.0 + cos(pi * progress));
}

struct kern_adamw optimizer_step(const struct job *job, uint64_t version, uint64_t updates, double norm)
{
    const double t = (double)updates + 1.0;
    const double beta1 = job->train.beta1, beta2 = job->train.beta2, clip = job->train.clip;

    assert(updates <= version);
    return (struct kern_adamw){
        .grad_scale = clip > 0.0 && norm > clip ? (float)(clip / norm) : 1.0f,
        .lr = (float)optimizer_lr(job, version),
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .one_minus_beta1 = (float)(1.0 - beta1),
        .one_minus_beta2 = (float)(1.0 - beta2),
        .inv_bias1 = (float)(1.0 / (1.0 - pow(beta1, t))),
        .inv_bias2 = (float)(1.0 / (1.0 - pow(beta2, t))),
        .eps = (float)job->train.eps,
        .weight_decay = (float)job->train.weight_decay,
    };
}
