/* Steps that the codecs whose pieces are arrays of a dtype share. */
#include <string.h>

#include "codec/codec.h"
#include "base/isa.h"

enum { BLOCK = 1024 };

int64_t hpc_codec_encode_array(const float *x, int64_t n, void *out, int64_t cap, int dtype) {
    int64_t item = (int64_t)hpc_dtype_bytes(dtype);
    if (n < 0 || cap / item < n) return -1;
    if (dtype == HPC_F32)
        memcpy(out, x, (size_t)(n * item));
    else
        hpc_fold_kernels_of(HPC_ISA_BEST)->encode(out, x, (size_t)n, dtype);
    return n * item;
}

int hpc_codec_add_array(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int dtype) {
    static const double ones[2] = {1, 1};
    const struct hpc_fold_kernels *kernels = hpc_fold_kernels_of(HPC_ISA_BEST);
    size_t item = hpc_dtype_bytes(dtype);
    float block[BLOCK];
    if (n < 0 || nbytes != n * (int64_t)item) return -1;
    for (size_t at = 0; at < (size_t)n; at += BLOCK) {
        size_t count = (size_t)n - at < BLOCK ? (size_t)n - at : BLOCK;
        const void *from = (const char *)in + at * item, *both[2] = {acc + at, block};
        hpc_fold_of(kernels, dtype)(block, &from, &weight, 1, count, 0);
        kernels->f32(acc + at, both, ones, 2, count, 0);
    }
    return 0;
}
