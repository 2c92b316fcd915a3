#include "kernel/float4.h"
#include "base/isa.h"

void hpc_float4_levels(float levels[HPC_FLOAT4_CODES], float scale, float weight) {
    static const float steps[] = {0, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1};
    for (int e = 0; e <= HPC_FLOAT4_TOP; e++) {
        levels[e] = e == 0 ? 0 : weight * (scale * steps[e]); /* 0, whatever the scale is */
        levels[HPC_FLOAT4_CODES / 2 + e] = -levels[e];
    }
}

const struct hpc_float4_kernels *hpc_float4_kernels_of(int isa) {
    switch (hpc_isa_resolve(isa)) {
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return &hpc_float4_avx2;
    case HPC_ISA_AVX512:
        return &hpc_float4_avx512;
#endif
    default:
        return &hpc_float4_generic;
    }
}
