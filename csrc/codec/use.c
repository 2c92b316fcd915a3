/* Steps that several codecs share, and steps that callers of codecs share. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codec/codec.h"
#include "base/isa.h"

/* ---- of the codecs whose pieces are arrays of a dtype ---- */

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

/* ---- of callers with any codec ---- */

void hpc_codec_decode(const hpc_codec *codec, const struct hpc_fold_kernels *kernels, const void *piece, float *out,
                      size_t n, int stream) {
    static const double one = 1;
    codec->fold(kernels)(out, &piece, &one, 1, n, stream);
}

void hpc_codec_config_init(hpc_codec_config *config) {
    *config = (hpc_codec_config){.size = sizeof *config};
}

const char *hpc_codec_check(const hpc_codec *codec, const hpc_codec_config *config) {
    if (config->size != sizeof *config) return "its size is another one: call hpc_codec_config_init first";
    if (config->compress < HPC_COMPRESS_NONE || config->compress > HPC_COMPRESS_ZLIB)
        return "compress must be 0 (none), 1 (lz4), 2 (snappy), 3 (zstd) or 4 (zlib)";
    return codec->check(config);
}

void hpc_codec_drop_wild(float *residual, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(residual[i])) residual[i] = 0;
}

void hpc_codec_names(unsigned numbers, char *names, size_t cap) {
    size_t used = 0;
    names[0] = 0;
    for (int i = 0; i < HPC_CODEC_NUMBERS && used < cap; i++)
        if (numbers >> i & 1 && hpc_codec_of(i) != NULL)
            used += (size_t)snprintf(names + used, cap - used, " %s", hpc_codec_of(i)->name);
}

void hpc_codec_numbers(char *numbers, size_t cap, int pieces) {
    const char *before = "";
    size_t used = 0;
    numbers[0] = 0;
    for (int i = 0; i < HPC_CODEC_NUMBERS && used < cap; i++) {
        if (hpc_codec_of(i) == NULL || (!pieces && !hpc_codec_of(i)->addressable)) continue;
        used += (size_t)snprintf(numbers + used, cap - used, "%s%d (%s)", before, i, hpc_codec_of(i)->name);
        before = ", ";
    }
}
