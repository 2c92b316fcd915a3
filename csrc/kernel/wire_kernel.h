/* The kernels of arrays, written once: the folds of all types, encoding, copying, and the search for NaN and Inf. The
 * file of an instruction set includes its lanes and this file. */
#include "kernel/half.h"
#include "base/isa.h"

/* Returns x, with every NaN replaced by one fixed NaN. */
static inline reals one_nan(reals x) {
    words number = (words)(x == x);
    return (reals)(((words)x & number) | (~number & 0x7fc00000));
}

static void encode(void *to, const float *in, size_t count, int dtype) {
    typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
    enum { LANES = VECTOR_BYTES / sizeof(float) };
    uint16_t *out = to;
    size_t j = 0;
    if (dtype == HPC_F16) {
        for (; count - j >= LANES; j += LANES) store_f16(out + j, (reals) * (const vector *)(in + j));
        for (; j < count; j++) out[j] = hpc_to_f16(in[j]);
    } else {
        for (; count - j >= LANES; j += LANES) store_words16(out + j, round_bf16((reals) * (const vector *)(in + j)));
        for (; j < count; j++) out[j] = hpc_to_bf16(in[j]);
    }
    fold_end(0);
}

static void copy(void *to, const void *from, size_t nbytes, int stream) {
    enum { CACHE_LINE = 64, BLOCK = 4 * VECTOR_BYTES };
    if (!stream) {
        memcpy(to, from, nbytes);
        return;
    }
    char *out = to;
    const char *in = from;
    size_t j = (CACHE_LINE - (uintptr_t)out % CACHE_LINE) % CACHE_LINE;
    if (j > nbytes) j = nbytes;
    memcpy(out, in, j);
    for (; nbytes - j >= BLOCK; j += BLOCK) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) stream_vector(out + j + v * VECTOR_BYTES, in + j + v * VECTOR_BYTES);
    }
    memcpy(out + j, in + j, nbytes - j);
    fold_end(1);
}

/* The exponent's bits are all 1 exactly if adding the exponent's lowest bit carries into the sign bit. No carry leaves
 * an element, so 64-bit words serve for every type. */
static int all_finite(const void *from, size_t count, int dtype) {
    static const uint64_t exponent[] = {[HPC_F32] = 0x7f8000007f800000u,
                                        [HPC_F64] = 0x7ff0000000000000u,
                                        [HPC_F16] = 0x7c007c007c007c00u,
                                        [HPC_BF16] = 0x7f807f807f807f80u};
    static const uint64_t lowest[] = {[HPC_F32] = 0x0080000000800000u,
                                      [HPC_F64] = 0x0010000000000000u,
                                      [HPC_F16] = 0x0400040004000400u,
                                      [HPC_BF16] = 0x0080008000800080u};
    static const uint64_t carry[] = {[HPC_F32] = 0x8000000080000000u,
                                     [HPC_F64] = 0x8000000000000000u,
                                     [HPC_F16] = 0x8000800080008000u,
                                     [HPC_BF16] = 0x8000800080008000u};
    typedef uint64_t vector __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));
    typedef uint64_t longs __attribute__((vector_size(VECTOR_BYTES)));
    enum { LANES = VECTOR_BYTES / sizeof(uint64_t), LOOK = 4096 };
    const char *in = from;
    uint64_t e = exponent[dtype], l = lowest[dtype], found = 0;
    size_t j = 0, nbytes = count * hpc_dtype_bytes(dtype);
    while (nbytes - j >= VECTOR_BYTES && found == 0) {
        size_t end = nbytes - j < LOOK ? nbytes : j + LOOK;
        longs some = {0}, more = {0};
        for (; end - j >= 2 * VECTOR_BYTES; j += 2 * VECTOR_BYTES) {
            some |= (*(const vector *)(in + j) & e) + l;
            more |= (*(const vector *)(in + j + VECTOR_BYTES) & e) + l;
        }
        for (; end - j >= VECTOR_BYTES; j += VECTOR_BYTES) some |= (*(const vector *)(in + j) & e) + l;
        some |= more;
        for (int lane = 0; lane < LANES; lane++) found |= some[lane] & carry[dtype];
    }
    while (j < nbytes && found == 0) {
        uint64_t word = 0;
        size_t left = nbytes - j < sizeof word ? nbytes - j : sizeof word;
        memcpy(&word, in + j, left);
        found |= ((word & e) + l) & carry[dtype];
        j += left;
    }
    fold_end(0);
    return found == 0;
}

/* See hpc_fold_kernels.squares. The square of a float32 is exact in float64. */
static double squares(const float *in, size_t count) {
    enum { SUMS = 16, LANES = VECTOR_BYTES / sizeof(double), VECTORS = SUMS / LANES };
    typedef double doubles __attribute__((vector_size(VECTOR_BYTES)));
    typedef float few __attribute__((vector_size(VECTOR_BYTES / 2), aligned(4), may_alias));
    doubles part[VECTORS] = {{0}};
    double sum[SUMS];
    size_t j = 0;
    for (; count - j >= SUMS; j += SUMS) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            doubles x = __builtin_convertvector(*(const few *)(in + j + v * LANES), doubles);
            part[v] += x * x;
        }
    }
    memcpy(sum, part, sizeof sum);
    fold_end(0);
    for (; j < count; j++) sum[j % SUMS] += (double)in[j] * (double)in[j];
    for (int width = SUMS / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) sum[i] += sum[i + width];
    return sum[0];
}

/* ---- the folds, by type of the inputs ---- */

#define REAL float
#define FOLD_SCALARS fold_scalars_f32
#define FOLD_BLOCKS fold_blocks_f32
#define FOLD fold_f32
#include "kernel/fold_kernel.h"

#define REAL double
#define FOLD_SCALARS fold_scalars_f64
#define FOLD_BLOCKS fold_blocks_f64
#define FOLD fold_f64
#include "kernel/fold_kernel.h"

#define REAL float
#define ITEM uint16_t
#define WIDEN hpc_from_f16
#define LOAD load_f16
#define FOLD_SCALARS fold_scalars_f16
#define FOLD_BLOCKS fold_blocks_f16
#define FOLD fold_f16
#include "kernel/fold_kernel.h"

#define REAL float
#define ITEM uint16_t
#define WIDEN hpc_from_bf16
#define LOAD load_bf16
#define FOLD_SCALARS fold_scalars_bf16
#define FOLD_BLOCKS fold_blocks_bf16
#define FOLD fold_bf16
#include "kernel/fold_kernel.h"
