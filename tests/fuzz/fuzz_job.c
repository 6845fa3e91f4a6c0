/* Fuzzes job_parse. A refusal must come with a sentence; what is accepted must keep the limits that others rely on. */
#include <stdlib.h>
#include <string.h>

#include "model/job.h"
#include "model/model.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct job job;
    struct model *m = NULL;
    struct reason why = {0};

    if (job_parse((const char *)data, size, "/base", &job, &why) < 0) {
        if (why.text[0] == '\0')
            abort();
        return 0;
    }
    if (job.data.n_paths == 0 || job.train.lr_min > job.train.lr || job.train.warmup_steps > job.train.steps ||
        model_new(&job, &m, &why) < 0 || (uint64_t)model_boundary_elems(m) * sizeof(float) > BODY_BYTES_MAX)
        abort();
    model_free(m);
    job_done(&job);
    return 0;
}
