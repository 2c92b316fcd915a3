#include "codec/codec.h"

static const hpc_codec *const codecs[] = {
    // clang-format off
    &hpc_codec_f32,
    &hpc_codec_f16,
    &hpc_codec_bf16,
    &hpc_codec_threshold,
    &hpc_codec_topk,
    &hpc_codec_onebit,
    &hpc_codec_own,
    &hpc_codec_factors,
    &hpc_codec_float4,
    // clang-format on
};

const hpc_codec *hpc_codec_of(int number) {
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
        if (codecs[i]->number == number) return codecs[i];
    return NULL;
}
