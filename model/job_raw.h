/* A job file as text: every value as it was written, before any is understood. job_yaml.c fills it, job.c reads it.
 * Private to the two. */
#ifndef SHOAL_MODEL_JOB_RAW_H
#define SHOAL_MODEL_JOB_RAW_H

#include <stddef.h>

#include "runtime/base/status.h"

/* A member is NULL where the file does not have the key. Member names are the file's keys. */
struct job_raw {
    char *name, *seed, *reduction, *peers;
    struct job_raw_model {
        char *arch, *layers, *heads, *embd, *context, *vocab;
    } model;
    struct job_raw_data {
        char **paths;
        unsigned n_paths;
        char *validation;
    } data;
    struct job_raw_train {
        char *steps, *microbatches, *sequences, *lr, *lr_min, *warmup, *weight_decay, *beta1, *beta2, *eps, *clip;
    } train;
    struct job_raw_eval {
        char *every, *microbatches;
    } eval;
    struct job_raw_checkpoint {
        char *every, *keep;
    } checkpoint;
};

/* Reads the structure: nesting, key names, which values are lists. -E_CONFIG names key and line; -E_NOMEM. Release with
 * job_yaml_free. */
int job_yaml_read(const char *text, size_t len, struct job_raw **ret, struct reason *why);
struct job_raw *job_yaml_free(struct job_raw *raw); /* NULL ok; returns NULL */

/* The line (from 1) of a key, of its n-th occurrence from 0 within its section; section NULL: a key of the top level.
 * 0: not found. */
unsigned job_yaml_line(const char *text, size_t len, const char *section, const char *key, unsigned n);

#endif
