/* See saver.h. */
#include "scheduler/saver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"

enum { SAVER_IDLE, SAVER_WRITING, SAVER_WRITTEN };

struct saver {
    struct saver_config config;
    float *(*parts)[PARAMS_PARTS]; /* [n_tensors] */
    struct coord_save what;
    pthread_t thread;
    _Atomic int state;
    int status; /* of the write; written by the thread before state becomes SAVER_WRITTEN */
    char text[1024];
};

int saver_new(const struct saver_config *config, struct saver **ret)
{
    struct saver *s = mem_calloc(1, sizeof *s);

    if (!s)
        return -E_NOMEM;
    s->config = *config;
    s->parts = mem_calloc(config->model->n_tensors, sizeof *s->parts);
    if (!s->parts) {
        mem_free(s);
        return -E_NOMEM;
    }
    *ret = s;
    return 0;
}

struct saver *saver_free(struct saver *s)
{
    if (!s)
        return NULL;
    if (atomic_load(&s->state) != SAVER_IDLE)
        pthread_join(s->thread, NULL);
    for (uint32_t t = 0; t < s->config.model->n_tensors; t++)
        for (uint32_t p = 0; p < PARAMS_PARTS; p++)
            mem_free(s->parts[t][p]);
    mem_free(s->parts);
    return mem_free(s);
}

int saver_store(struct saver *s, const struct task *t)
{
    const struct model *m = s->config.model;

    if (t->tensor >= m->n_tensors || t->part >= PARAMS_PARTS || !t->in || t->in->size != t->n * sizeof(float) ||
        t->n > (uint64_t)m->tensors[t->tensor].n || t->offset > (uint64_t)m->tensors[t->tensor].n - t->n)
        return -E_PROTO;
    float **part = &s->parts[t->tensor][t->part];

    if (!*part && !(*part = mem_calloc((size_t)m->tensors[t->tensor].n, sizeof(float))))
        return -E_NOMEM;
    memcpy(*part + t->offset, t->in->data, t->in->size);
    return 0;
}

static void *write_thread(void *arg)
{
    struct saver *s = arg;
    const struct saver_config *c = &s->config;
    struct reason why = {0};
    char *path = NULL;
    struct checkpoint_state state = {.version = s->what.version,
                                     .updates = s->what.updates,
                                     .loss = s->what.loss,
                                     .seed = c->job->seed,
                                     .data_fingerprint = c->data_fingerprint};

    memcpy(state.hash, s->what.hash, sizeof state.hash);
    s->status = checkpoint_write(c->dir, c->model, c->job, c->job_text, &state, (float *const(*)[PARAMS_PARTS])s->parts,
                                 c->job->checkpoint.keep ? c->job->checkpoint.keep : 1, &path, &why);
    snprintf(s->text, sizeof s->text, "%s", s->status == 0 ? path : reason_text(&why, s->status));
    mem_free(path);
    atomic_store(&s->state, SAVER_WRITTEN);
    c->wake(c->wake_arg);
    return NULL;
}

int saver_start(struct saver *s, const struct coord_save *what)
{
    s->what = *what;
    atomic_store(&s->state, SAVER_WRITING);
    if (pthread_create(&s->thread, NULL, write_thread, s) != 0) {
        atomic_store(&s->state, SAVER_IDLE);
        return -E_AGAIN;
    }
    return 0;
}

bool saver_done(struct saver *s, int *ret_status, const char **ret_text)
{
    if (atomic_load(&s->state) != SAVER_WRITTEN)
        return false;
    pthread_join(s->thread, NULL);
    atomic_store(&s->state, SAVER_IDLE);
    *ret_status = s->status;
    *ret_text = s->text;
    return true;
}
