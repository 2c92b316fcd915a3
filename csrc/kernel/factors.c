#include "kernel/factors.h"
#include "base/isa.h"

const struct hpc_factor_kernels *hpc_factor_kernels_of(int isa) {
    switch (hpc_isa_resolve(isa)) {
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return &hpc_factors_avx2;
    case HPC_ISA_AVX512:
        return &hpc_factors_avx512;
#endif
    default:
        return &hpc_factors_generic;
    }
}
