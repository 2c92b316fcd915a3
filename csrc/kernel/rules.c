#include "kernel/rule.h"
#include "base/isa.h"

const hpc_builtin_rule *const *hpc_rules_of(int isa) {
    switch (hpc_isa_resolve(isa)) {
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return hpc_rules_avx2;
    case HPC_ISA_AVX512:
        return hpc_rules_avx512;
#endif
    default:
        return hpc_rules_generic;
    }
}
