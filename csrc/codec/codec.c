#include "codec/codec.h"

#include <stdio.h>

static const hpc_codec *const codecs[] = {&hpc_codec_f32, &hpc_codec_f16, &hpc_codec_bf16};
enum { CODECS = sizeof codecs / sizeof *codecs };

const hpc_codec *hpc_codec_of(int number) {
    for (int i = 0; i < CODECS; i++)
        if (codecs[i]->number == number) return codecs[i];
    return NULL;
}

void hpc_codec_decode(const hpc_codec *codec, const struct hpc_fold_kernels *kernels, const void *piece, float *out,
                      size_t n, int stream) {
    static const double one = 1;
    codec->fold(kernels)(out, &piece, &one, 1, n, stream);
}

void hpc_codec_names(unsigned numbers, char *names, size_t cap) {
    size_t used = 0;
    names[0] = 0;
    for (int i = 0; i < CODECS && used < cap; i++)
        if (numbers >> codecs[i]->number & 1)
            used += (size_t)snprintf(names + used, cap - used, " %s", codecs[i]->name);
}
