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

size_t hpc_sparse_count(const uint8_t *bits, size_t n) {
    size_t nbytes = (n + 7) / 8, count = 0, j = 0;
    for (; nbytes - j >= sizeof(uint64_t); j += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bits + j, sizeof word);
        count += (size_t)__builtin_popcountll(word);
    }
    for (; j < nbytes; j++) count += (size_t)__builtin_popcount(bits[j]);
    return count;
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
