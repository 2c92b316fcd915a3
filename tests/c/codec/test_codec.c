/* Codecs by their contract: what encode writes decode_add adds, whatever the length, and what is not a piece of so many
 * elements is refused. Values are whole numbers that all three formats hold exactly. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "codec/codec.h"
#include "base/isa.h"

enum { MOST = 5000 };
static const int numbers[] = {HPC_F32, HPC_F16, HPC_BF16};

static float value(int64_t i) {
    return (float)(i % 129 - 64);
}

static void round_trip(const hpc_codec *c, int64_t n) {
    float *x = malloc(MOST * sizeof *x), *acc = malloc((MOST + 1) * sizeof *acc);
    size_t most = c->max_bytes(NULL, (uint64_t)n);
    char *piece = malloc(most + 1);
    CHECK(x && acc && piece);
    for (int64_t i = 0; i < n; i++) x[i] = value(i), acc[i] = 1000;
    acc[n] = -7;
    piece[most] = 42;
    int64_t nbytes = c->encode(NULL, &(hpc_codec_source){x, 0}, n, NULL, piece, (int64_t)most, NULL);
    CHECK(nbytes >= 0 && (size_t)nbytes <= most && piece[most] == 42);
    CHECK_EQ(c->decode_add(NULL, acc, n, piece, nbytes, 0.5), 0);
    for (int64_t i = 0; i < n; i++) CHECK(acc[i] == 1000 + value(i) / 2);
    CHECK(acc[n] == -7); /* nothing behind it is touched */
    if (n > 0) CHECK(c->encode(NULL, &(hpc_codec_source){x, 0}, n, NULL, piece, (int64_t)most - 1, NULL) < 0);
    CHECK(c->decode_add(NULL, acc, n, piece, nbytes + 1, 1) != 0);
    CHECK(c->decode_add(NULL, acc, n + 1, piece, nbytes, 1) != 0);
    CHECK(c->decode_add(NULL, acc, -1, piece, nbytes, 1) != 0);
    for (int64_t i = 0; i < n; i++) CHECK(acc[i] == 1000 + value(i) / 2);
    free(x);
    free(acc);
    free(piece);
}

/* The two parts of a piece that is cut where it may be have the same sum as the whole. */
static void cut(const hpc_codec *c) {
    float x[64], whole[64] = {0}, parts[64] = {0};
    char piece[64 * sizeof(float)];
    for (int i = 0; i < 64; i++) x[i] = value(i);
    int64_t nbytes = c->encode(NULL, &(hpc_codec_source){x, 0}, 64, NULL, piece, sizeof piece, NULL);
    size_t at = hpc_codec_span(c, 24);
    CHECK(c->addressable);
    CHECK_EQ(c->decode_add(NULL, whole, 64, piece, nbytes, 1), 0);
    CHECK_EQ(c->decode_add(NULL, parts, 24, piece, (int64_t)at, 1), 0);
    CHECK_EQ(c->decode_add(NULL, parts + 24, 40, piece + at, nbytes - (int64_t)at, 1), 0);
    CHECK(memcmp(whole, parts, sizeof whole) == 0 && whole[63] == value(63));
}

/* A part of a piece gives the values that adding it to zeros gives, and touches nothing behind them. */
static void decode(const hpc_codec *c) {
    float x[100], sum[100] = {0}, out[101];
    char piece[100 * sizeof(float)];
    for (int i = 0; i < 100; i++) x[i] = value(i) * 1.001f;
    int64_t nbytes = c->encode(NULL, &(hpc_codec_source){x, 0}, 100, NULL, piece, sizeof piece, NULL);
    CHECK_EQ(c->decode_add(NULL, sum, 100, piece, nbytes, 1), 0);
    for (int stream = 0; stream < 2; stream++)
        for (size_t from = 0; from < 100; from += 16) {
            for (int i = 0; i < 101; i++) out[i] = 7;
            hpc_codec_decode(c, hpc_fold_kernels_of(HPC_ISA_BEST), piece + hpc_codec_span(c, from), out, 100 - from,
                             stream);
            CHECK(memcmp(out, sum + from, (100 - from) * sizeof *out) == 0 && out[100 - from] == 7);
        }
}

int main(void) {
    static const int64_t lengths[] = {0, 1, 15, 16, 17, 1023, 1024, 1025, MOST};
    char names[64];
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        const hpc_codec *c = hpc_codec_of(numbers[k]);
        CHECK(c != NULL && c->number == numbers[k] && c->item == hpc_dtype_bytes(numbers[k]));
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) round_trip(c, lengths[i]);
        cut(c);
        decode(c);
    }
    CHECK(hpc_codec_of(HPC_F64) == NULL && hpc_codec_of(-1) == NULL && hpc_codec_of(99) == NULL);
    hpc_codec_names(1u << HPC_F32 | 1u << HPC_BF16, names, sizeof names);
    CHECK(strcmp(names, " float32 bfloat16") == 0);
    hpc_codec_names(~0u, names, 12); /* too short: cut, and ended */
    CHECK(strlen(names) < 12);
    return 0;
}
