/* The CPU backend's promise: the same bits for any number of threads, any alignment and any instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels/rig.h"

#include <string.h>

static void assert_same_bits(struct rig *a, struct rig *b, const char *what)
{
    for (int i = 0; i < n_kernel_cases; i++) {
        const struct kernel_case *c = &kernel_cases[i];
        c->run(a, c->dims);
        c->run(b, c->dims);
        for (int j = 0; j < a->n_buffers; j++) {
            const struct rig_buffer *x = &a->buffers[j], *y = &b->buffers[j];
            if (x->n > 0 && memcmp(x->data, y->data, (size_t)x->n * sizeof(float)) != 0)
                fail_msg("%s (case %d): %s changes with %s", c->name, i, x->name ? x->name : "an input", what);
        }
        rig_reset(a);
        rig_reset(b);
    }
}

static void bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    const int counts[] = {2, 3, 7, 16};
    struct rig one = rig_cpu(1, 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct rig many = rig_cpu(counts[i], 0);
        assert_same_bits(&one, &many, "the number of threads");
        rig_done(&many);
    }
    rig_done(&one);
}

static void bits_do_not_depend_on_alignment(void **state)
{
    (void)state;
    const int64_t offsets[] = {1, 6, 15};
    struct rig aligned = rig_cpu(1, 0);
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        struct rig askew = rig_cpu(1, offsets[i]);
        assert_same_bits(&aligned, &askew, "alignment");
        rig_done(&askew);
    }
    rig_done(&aligned);
}

static void bits_do_not_depend_on_the_instruction_set(void **state)
{
    (void)state;
    struct rig plain = rig_cpu(1, 0);
    plain.k.ctx->vec = vec_at(0);
    for (int i = 1; vec_at(i); i++) {
        struct rig wide = rig_cpu(1, 0);
        wide.k.ctx->vec = vec_at(i);
        assert_same_bits(&plain, &wide, vec_at(i)->name);
        rig_done(&wide);
    }
    rig_done(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(bits_do_not_depend_on_alignment),
        cmocka_unit_test(bits_do_not_depend_on_the_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
