/* The instruction sets that this CPU supports. */
#include "base/isa.h"
#include "base/status.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>

enum { HAS_AVX2 = 1, HAS_AVX512 = 2, ASKED = 4, AVX_STATE = 0x06, AVX512_STATE = 0xe0 };

static int ask_cpu(void) {
    unsigned a, b, c, d, first, low, high;
    int has = ASKED;
    if (!__get_cpuid(1, &a, &b, &first, &d) || (first & bit_OSXSAVE) == 0) return has;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* which registers the kernel saves */
    if ((low & AVX_STATE) != AVX_STATE || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return has;
    if ((b & bit_AVX2) != 0 && (first & bit_FMA) != 0 && (first & bit_F16C) != 0) has |= HAS_AVX2;
    if ((b & bit_AVX512F) != 0 && (low & AVX512_STATE) == AVX512_STATE) has |= HAS_AVX512;
    return has;
}

/* Asks CPUID, because clang 14's __builtin_cpu_supports does not know "f16c", and zig cc's finds nothing. The answer is
 * kept, because in a virtual machine each CPUID exits to the hypervisor. */
static int cpu_has(int set) {
    static _Atomic int known;
    int has = atomic_load_explicit(&known, memory_order_relaxed);
    if (has == 0) {
        has = ask_cpu();
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return (has & set) != 0;
}
#endif

int hpc_isa_available(int isa) {
    switch (isa) {
    case HPC_ISA_BEST:
    case HPC_ISA_GENERIC:
        return 1;
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return cpu_has(HAS_AVX2);
    case HPC_ISA_AVX512:
        return cpu_has(HAS_AVX512);
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

/* Chooses the instruction set at the first fold. Relaxed order suffices: every thread makes the same choice, and the
 * tables are constant. */
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
