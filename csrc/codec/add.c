#include "codec/codec.h"

enum { BLOCK = 1024 };

int hpc_codec_add(float *acc, int64_t n, const void *in, double weight, int dtype) {
    static const double ones[2] = {1, 1};
    const struct hpc_fold_kernels *kernels = hpc_fold_kernels_of(HPC_ISA_BEST);
    size_t item = hpc_dtype_bytes(dtype);
    float block[BLOCK];
    for (size_t at = 0; at < (size_t)n; at += BLOCK) {
        size_t count = (size_t)n - at < BLOCK ? (size_t)n - at : BLOCK;
        const void *from = (const char *)in + at * item, *both[2] = {acc + at, block};
        hpc_fold_of(kernels, dtype)(block, &from, &weight, 1, count, 0);
        kernels->f32(acc + at, both, ones, 2, count, 0);
    }
    return 0;
}
