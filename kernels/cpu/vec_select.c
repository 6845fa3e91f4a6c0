/* Which of the tables of inner loops this machine can run. SHOAL_VEC_X86 is set where the build made the x86 ones. */
#include "kernels/cpu/vec.h"

extern const struct vec vec_baseline;

#ifdef SHOAL_VEC_X86
extern const struct vec vec_avx2, vec_avx512;

const struct vec *vec_at(int i)
{
    const struct vec *usable[3] = {&vec_baseline};
    int n = 1;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        usable[n++] = &vec_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        usable[n++] = &vec_avx512;
    return i >= 0 && i < n ? usable[i] : NULL;
}
#else
const struct vec *vec_at(int i)
{
    return i == 0 ? &vec_baseline : NULL;
}
#endif

const struct vec *vec_best(void)
{
    int n = 1;
    while (vec_at(n))
        n++;
    return vec_at(n - 1);
}
