#include "codec/codec.h"

enum { ITEM = 2 };

static size_t max_bytes(const hpc_codec_config *config, uint64_t n) {
    (void)config;
    return (size_t)n * ITEM;
}

static size_t length(const hpc_codec_config *config, const void *piece, uint64_t n) {
    (void)piece;
    return max_bytes(config, n);
}

static int64_t encode(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept) {
    (void)encoding, (void)state, (void)kept;
    return hpc_codec_encode_array(hpc_source_values(source), n, out, cap, HPC_F16);
}

static int decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                      double weight) {
    (void)config;
    return hpc_codec_add_array(acc, n, in, nbytes, weight, HPC_F16);
}

static hpc_fold_fn *fold(const struct hpc_fold_kernels *kernels) {
    return kernels->f16;
}

const hpc_codec hpc_codec_f16 = {
    .name = "float16",
    .number = HPC_F16,
    .addressable = 1,
    .item = ITEM,
    .max_bytes = max_bytes,
    .length = length,
    .encode = encode,
    .decode_add = decode_add,
    .fold = fold,
};
