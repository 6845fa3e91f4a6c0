/* Every layer kernel of the CPU backend against the plain loops of the reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/kernels/rig.h"

/* Both round to fp32 once at the end, the fast kernels also on the way: errors of some 1e-7 a value are 1e-13 squared,
 * a thousand times less than the bound. */
#define NMSE_MAX 1e-11

static void every_layer_agrees_with_the_reference(void **state)
{
    (void)state;
    struct rig fast = rig_cpu(2, 0), truth = rig_reference();
    for (int i = 0; i < n_kernel_cases; i++) {
        const struct kernel_case *c = &kernel_cases[i];
        c->run(&fast, c->dims);
        c->run(&truth, c->dims);
        for (int b = 0; b < fast.n_buffers; b++) {
            const struct rig_buffer *got = &fast.buffers[b], *want = &truth.buffers[b];
            if (!got->name)
                continue;
            const double e = nmse(got->data, want->data, got->n);
            if (!(e <= NMSE_MAX))
                fail_msg("%s (case %d): %s differs, NMSE %g", c->name, i, got->name, e);
        }
        rig_reset(&fast);
        rig_reset(&truth);
    }
    rig_done(&fast);
    rig_done(&truth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_agrees_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
