/* A model on a device, whole or a part of it, with everything one microbatch needs: what tests of running units share.
 */
#ifndef SHOAL_TESTS_UNIT_MODEL_RIG_H
#define SHOAL_TESTS_UNIT_MODEL_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "kernels/registry.h"
#include "model/params.h"
#include "model/unit.h"
#include "runtime/base/mem.h"

struct rig {
    struct model *m;
    struct kern k;
    struct params *p;
    bool *held;
    float **boundary;  /* [u]: the input of unit u; NULL for unit 0 */
    float **dboundary; /* its gradient */
    void **saved;
    void *scratch;
    int32_t *tokens, *targets;
};

static inline void *rig_alloc(struct rig *r, size_t n_bytes)
{
    void *mem = NULL;

    assert_int_equal(r->k.backend->alloc(r->k.ctx, n_bytes, &mem), 0);
    return mem;
}

/* Units [u0, u1) of the job's model on the CPU. */
static inline struct rig *rig_new(const struct job *job, int n_threads, uint32_t u0, uint32_t u1)
{
    struct rig *r = mem_calloc(1, sizeof(*r));
    struct reason why = {0};
    size_t n_boundary, n_tokens;

    assert_non_null(r);
    if (model_new(job, &r->m, &why) < 0 || kern_open("cpu", n_threads, &r->k, &why) < 0)
        fail_msg("%s", why.text);
    assert_true(r->k.backend->host_memory); /* the tests look into it */
    r->held = mem_calloc(r->m->n_units, sizeof(*r->held));
    r->boundary = mem_calloc(r->m->n_units, sizeof(*r->boundary));
    r->dboundary = mem_calloc(r->m->n_units, sizeof(*r->dboundary));
    r->saved = mem_calloc(r->m->n_units, sizeof(*r->saved));
    assert_true(r->held && r->boundary && r->dboundary && r->saved);
    n_boundary = (size_t)model_boundary_elems(r->m) * sizeof(float);
    n_tokens = (size_t)r->m->B * r->m->n_ctx * sizeof(int32_t);
    for (uint32_t u = 0; u < r->m->n_units; u++) {
        r->held[u] = u >= u0 && u < u1;
        r->boundary[u] = u > 0 ? rig_alloc(r, n_boundary) : NULL;
        r->dboundary[u] = u > 0 ? rig_alloc(r, n_boundary) : NULL;
        r->saved[u] = unit_saved_bytes(r->m, u) > 0 ? rig_alloc(r, unit_saved_bytes(r->m, u)) : NULL;
    }
    r->scratch = rig_alloc(r, unit_scratch_bytes(r->m));
    r->tokens = rig_alloc(r, n_tokens);
    r->targets = rig_alloc(r, n_tokens);
    assert_int_equal(params_new(r->m, &r->k, job->reduction, r->held, &r->p), 0);
    return r;
}

static inline void rig_free(struct rig *r)
{
    params_free(r->p);
    for (uint32_t u = 0; u < r->m->n_units; u++) {
        r->k.backend->free(r->k.ctx, r->boundary[u]);
        r->k.backend->free(r->k.ctx, r->dboundary[u]);
        r->k.backend->free(r->k.ctx, r->saved[u]);
    }
    r->k.backend->free(r->k.ctx, r->scratch);
    r->k.backend->free(r->k.ctx, r->tokens);
    r->k.backend->free(r->k.ctx, r->targets);
    kern_close(&r->k);
    model_free(r->m);
    mem_free(r->held);
    mem_free(r->boundary);
    mem_free(r->dboundary);
    mem_free(r->saved);
    mem_free(r);
}

static inline struct unit_run rig_run(struct rig *r, uint32_t u)
{
    return (struct unit_run){
        .model = r->m,
        .kern = &r->k,
        .scratch = r->scratch,
        .params = params_unit(r->p, u),
        .tokens = r->tokens,
        .targets = r->targets,
        .in = r->boundary[u],
        .saved = r->saved[u],
    };
}

/* Forward through the held units; the loss where the head is among them, else 0. */
static inline double rig_forward(struct rig *r)
{
    double loss = 0.0;

    for (uint32_t u = 0; u < r->m->n_units; u++) {
        const struct unit_run run = rig_run(r, u);

        if (r->held[u])
            assert_int_equal(unit_forward(&run, u, u + 1 < r->m->n_units ? r->boundary[u + 1] : NULL, &loss), 0);
    }
    return loss;
}

/* Backward through the held units, adding to their sums. */
static inline void rig_backward(struct rig *r, float loss_scale)
{
    for (uint32_t u = r->m->n_units; u-- > 0;) {
        const struct unit_run run = rig_run(r, u);
        bool flagged = false;

        if (!r->held[u])
            continue;
        assert_int_equal(unit_backward(&run, u, u + 1 < r->m->n_units ? r->dboundary[u + 1] : NULL, r->dboundary[u],
                                       params_unit_grads(r->p, u), loss_scale),
                         0);
        assert_int_equal(params_accumulate(r->p, u, &flagged), 0);
        assert_false(flagged);
    }
}

#endif
