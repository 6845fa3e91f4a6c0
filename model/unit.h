/* Running one unit of a model on a device: forward keeps what backward needs in `saved`; nothing is fused across unit
 * boundaries, so a span of units gives the same bits however it is cut. Called from the thread that owns the device. */
#ifndef SHOAL_MODEL_UNIT_H
#define SHOAL_MODEL_UNIT_H

#include "kernels/kern.h"
#include "model/model.h"

/* Bytes of device memory that one microbatch keeps in unit u from forward to backward (the unit's input, which the
 * caller keeps, not counted). 0 for the embedding. */
size_t unit_saved_bytes(const struct model *m, uint32_t u);

/* Bytes of device memory that any unit needs while it runs. */
size_t unit_scratch_bytes(const struct model *m);

struct unit_run {
    const struct model *model;
    struct kern *kern;
    void *scratch;          /* unit_scratch_bytes, device */
    float *const *params;   /* per tensor of the unit, in model_unit order, device */
    const int32_t *tokens;  /* (B,T), device: unit 0 only */
    const int32_t *targets; /* (B,T), device: head only */
    const float *in;        /* (B,T,C), device: all but unit 0 */
    void *saved;            /* unit_saved_bytes, device */
};

/* out (B,T,C): all but the head; not the input's memory. Head: *ret_loss is the sum over the microbatch's tokens of the
 * cross-entropy, in double, row order (NULL ok elsewhere). */
int unit_forward(const struct unit_run *run, uint32_t u, float *out, double *ret_loss);

/* Consumes `saved`: another backward needs another forward. dout (B,T,C) is unused by the head, whose gradient starts
 * from the loss times loss_scale (1 / tokens of the step). din (B,T,C), not dout's memory, is overwritten (NULL for
 * unit 0). grads: per tensor of the unit, overwritten with this microbatch's gradient. */
int unit_backward(const struct unit_run *run, uint32_t u, const float *dout, float *din, float *const *grads,
                  float loss_scale);

/* The head's logits (B*T,V) within its saved memory: device, valid from unit_forward to unit_backward. */
const float *unit_logits(const struct model *m, void *saved);

#endif
