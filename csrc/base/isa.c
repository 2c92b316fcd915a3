/* The instruction sets that this CPU supports, and the sizes of the data types that their kernels work on. */
#include "base/isa.h"
#include "base/status.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Asks CPUID because clang 14's __builtin_cpu_supports does not know "f16c". The answer is kept: in a virtual machine,
 * each CPUID exits to the hypervisor. */
static int has_f16c(void) {
    enum { UNKNOWN, NO, YES };
    static _Atomic int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == UNKNOWN) {
        unsigned a, b, c = 0, d;
        answer = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0 ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
}
#endif

int hpc_isa_available(int isa) {
    switch (isa) {
    case HPC_ISA_BEST:
    case HPC_ISA_GENERIC:
        return 1;
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case HPC_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") != 0;
#endif
    default:
        return 0;
    }
}

int hpc_isa_check(int isa, const char *op) {
    if (isa < HPC_ISA_BEST || isa > HPC_ISA_AVX512)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: isa is %d, not one of 0 (best) to %d", op, isa, HPC_ISA_AVX512);
    if (!hpc_isa_available(isa))
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: this CPU lacks %s; use isa 0 (best)", op,
                        isa == HPC_ISA_AVX512 ? "AVX-512F" : "AVX2, F16C or FMA");
    return HPC_OK;
}

/* The choice is made at the first fold. Relaxed order suffices: every thread would make the same choice, and the tables
 * are constant. */
static int best_isa(void) {
    static _Atomic int chosen;
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa != HPC_ISA_BEST) return isa;
    isa = HPC_ISA_AVX512;
    while (!hpc_isa_available(isa)) isa--;
    atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    return isa;
}

int hpc_isa_resolve(int isa) {
    return isa == HPC_ISA_BEST ? best_isa() : isa;
}

size_t hpc_dtype_bytes(int dtype) {
    switch (dtype) {
    case HPC_F32:
        return 4;
    case HPC_F64:
        return 8;
    case HPC_F16:
    case HPC_BF16:
        return 2;
    default:
        return 0;
    }
}
