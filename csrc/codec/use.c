/* Steps of others with any codec. */
#include <math.h>
#include <stdio.h>

#include "codec/codec.h"

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
