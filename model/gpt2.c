/* GPT-2 as data: which tensors it has, in canonical order, and which unit uses which. Nothing here computes; unit.c
 * runs what this file describes. Invariant: a unit's tensors are listed in the order of the enums of gpt2.h. */
#include "model/gpt2.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "runtime/base/status.h"

uint32_t gpt2_n_units(uint32_t n_layer)
{
    return n_layer + 2;
}

uint32_t gpt2_n_tensors(uint32_t n_layer)
{
    return GPT2_EMBEDDING_TENSORS + n_layer * GPT2_BLOCK_TENSORS + GPT2_HEAD_TENSORS - 1; /* wte is counted once */
}

/* One more use of tensor t, in unit u. */
static void use(struct model *m, uint32_t u, uint32_t t)
{
    struct model_unit *unit = &m->units[u];
    struct model_tensor *tensor = &m->tensors[t];

    assert(tensor->n_uses < MODEL_USES_MAX);
    assert(unit->n_tensors < sizeof(unit->tensor) / sizeof(unit->tensor[0]));
    unit->tensor[unit->n_tensors] = t;
    unit->use[unit->n_tensors] = tensor->n_uses;
    unit->n_tensors++;
    tensor->use_unit[tensor->n_uses++] = u;
}

/* A new tensor (d1 = 0: a vector), used by unit u. layer < 0: outside the blocks. */
static void tensor(struct model *m, uint32_t u, int layer, const char *name, int64_t d0, int64_t d1, float mean,
                   float std)
{
    struct model_tensor *t = &m->tensors[m->n_tensors];

    if (layer < 0)
        snprintf(t->name, sizeof(t->name), "%s", name);
    else
        snprintf(t->name, sizeof(t->name), "h.%d.%s", layer, name);
    t->n_dims = d1 > 0 ? 2 : 1;
    t->dims[0] = d0;
    t->dims[1] = d1 > 0 ? d1 : 0;
    t->n = d1 > 0 ? d0 * d1 : d0;
    t->decay = t->n_dims >= 2;
    t->init_mean = mean;
    t->init_std = std;
    m->n_params += t->n;
    use(m, u, m->n_tensors++);
}

static void block(struct model *m, uint32_t u, int l)
{
    const int64_t C = m->n_embd;
    const float std = 0.02f;
    /* The projections into the residual stream are scaled down by how many there are (GPT-2 paper, section 2.3). */
    const float residual_std = (float)(0.02 / sqrt(2.0 * m->n_layer));

    tensor(m, u, l, "ln_1.weight", C, 0, 1.0f, 0.0f);
    tensor(m, u, l, "ln_1.bias", C, 0, 0.0f, 0.0f);
    tensor(m, u, l, "attn.c_attn.weight", C, 3 * C, 0.0f, std);
    tensor(m, u, l, "attn.c_attn.bias", 3 * C, 0, 0.0f, 0.0f);
    tensor(m, u, l, "attn.c_proj.weight", C, C, 0.0f, residual_std);
    tensor(m, u, l, "attn.c_proj.bias", C, 0, 0.0f, 0.0f);
    tensor(m, u, l, "ln_2.weight", C, 0, 1.0f, 0.0f);
    tensor(m, u, l, "ln_2.bias", C, 0, 0.0f, 0.0f);
    tensor(m, u, l, "mlp.c_fc.weight", C, 4 * C, 0.0f, std);
    tensor(m, u, l, "mlp.c_fc.bias", 4 * C, 0, 0.0f, 0.0f);
    tensor(m, u, l, "mlp.c_proj.weight", 4 * C, C, 0.0f, residual_std);
    tensor(m, u, l, "mlp.c_proj.bias", C, 0, 0.0f, 0.0f);
}

void gpt2_build(struct model *m)
{
    const uint32_t head = m->n_layer + 1;
    const uint32_t n_tensors = m->n_tensors;

    assert(m->n_units == gpt2_n_units(m->n_layer) && n_tensors == gpt2_n_tensors(m->n_layer));
    m->n_tensors = 0;
    m->n_params = 0;
    m->units[0].kind = MODEL_UNIT_EMBEDDING;
    tensor(m, 0, -1, "wte.weight", m->n_vocab, m->n_embd, 0.0f, 0.02f);
    tensor(m, 0, -1, "wpe.weight", m->n_ctx, m->n_embd, 0.0f, 0.02f);
    for (uint32_t l = 0; l < m->n_layer; l++) {
        m->units[l + 1].kind = MODEL_UNIT_BLOCK;
        block(m, l + 1, (int)l);
        assert(m->units[l + 1].n_tensors == GPT2_BLOCK_TENSORS);
    }
    m->units[head].kind = MODEL_UNIT_HEAD;
    tensor(m, head, -1, "ln_f.weight", m->n_embd, 0, 1.0f, 0.0f);
    tensor(m, head, -1, "ln_f.bias", m->n_embd, 0, 0.0f, 0.0f);
    use(m, head, 0); /* the head is tied to the embedding */
    assert(m->units[head].n_tensors == GPT2_HEAD_TENSORS);
    assert(m->n_tensors == n_tensors);
}
