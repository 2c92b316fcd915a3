/* The tables of the codecs' kernels, chosen by instruction set, and steps that all instruction sets share. */
#include "base/isa.h"
#include "kernel/factors.h"
#include "kernel/float4.h"
#include "kernel/half.h"
#include "kernel/sparse.h"

/* ---- factors ---- */

const struct hpc_factor_kernels *hpc_factor_kernels_of(int isa) {
    static const struct hpc_factor_kernels *const tables[] =
        HPC_BY_ISA(&hpc_factors_generic, &hpc_factors_avx2, &hpc_factors_avx512);
    return tables[hpc_isa_resolve(isa)];
}

/* ---- 4-bit floats ---- */

void hpc_float4_levels(float levels[HPC_FLOAT4_CODES], float scale, float weight) {
    static const float steps[] = {0, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1};
    for (int e = 0; e <= HPC_FLOAT4_TOP; e++) {
        levels[e] = e == 0 ? 0 : weight * (scale * steps[e]); /* 0 even if the scale is not finite */
        levels[HPC_FLOAT4_CODES / 2 + e] = -levels[e];
    }
}

const struct hpc_float4_kernels *hpc_float4_kernels_of(int isa) {
    static const struct hpc_float4_kernels *const tables[] =
        HPC_BY_ISA(&hpc_float4_generic, &hpc_float4_avx2, &hpc_float4_avx512);
    return tables[hpc_isa_resolve(isa)];
}

/* ---- sparse codecs ---- */

const struct hpc_sparse_kernels *hpc_sparse_kernels_of(int isa) {
    static const struct hpc_sparse_kernels *const tables[] =
        HPC_BY_ISA(&hpc_sparse_generic, &hpc_sparse_avx2, &hpc_sparse_avx512);
    return tables[hpc_isa_resolve(isa)];
}

void hpc_sparse_spread(void *out, size_t n, const uint8_t *bits, const void *values, int dtype) {
    size_t item = hpc_dtype_bytes(dtype), k = 0;
    memset(out, 0, n * item);
    for (size_t i = 0; i < n; i++) {
        if (!(bits[i / 8] >> i % 8 & 1)) continue;
        memcpy((char *)out + i * item, (const char *)values + k++ * item, item);
    }
}

void hpc_sparse_return(float *residual, size_t n, const uint8_t *bits, const void *values, int dtype) {
    for (size_t i = 0, k = 0; i < n; i++) {
        if (!(bits[i / 8] >> i % 8 & 1)) continue;
        float value = dtype == HPC_F32   ? ((const float *)values)[k]
                      : dtype == HPC_F16 ? hpc_from_f16(((const uint16_t *)values)[k])
                                         : hpc_from_bf16(((const uint16_t *)values)[k]);
        residual[i] += value;
        k++;
    }
}
