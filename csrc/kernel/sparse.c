#include "kernel/sparse.h"
#include "base/isa.h"
#include "kernel/half.h"

const struct hpc_sparse_kernels *hpc_sparse_kernels_of(int isa) {
    switch (hpc_isa_resolve(isa)) {
#if defined(__x86_64__)
    case HPC_ISA_AVX2:
        return &hpc_sparse_avx2;
    case HPC_ISA_AVX512:
        return &hpc_sparse_avx512;
#endif
    default:
        return &hpc_sparse_generic;
    }
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
