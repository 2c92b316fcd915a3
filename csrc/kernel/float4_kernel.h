/* The kernels of 4-bit floats, written once. The file of an instruction set includes its lanes and this file, and
 * defines:
 *
 *     larger(a, b)             the larger word of each lane; words are below 2^31
 *     put_codes(out, codes)    writes a vector of codes, two in a byte
 *     LEVELS, load_levels      the values of all codes, in registers if they fit
 *     levels_of(levels, in)    the values of the next vector of codes
 *
 * The exponent follows from the bits of u: the magnitudes nearest to one value are a range of 2^23 bit patterns that
 * begins at 3/4 of the value. Only the range of exponent 1 begins at 1/2 of its value, where 0 is as near. */
#include <math.h>
#include <string.h>

#include "kernel/half.h"

#define FLOAT4_INLINE static inline __attribute__((always_inline))

typedef float unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
typedef int32_t numbers __attribute__((vector_size(VECTOR_BYTES)));
enum { LANES = VECTOR_BYTES / sizeof(float), MANTISSA = 23 };
static const uint32_t SIGN = 0x80000000u;

/* Bounds, as bits of magnitudes. */
typedef struct steps {
    /* The bits of 2^-7 of the scale; smaller magnitudes are sent as 0. least + (e << 23) are the bits of the value of
     * exponent e. */
    uint32_t least;
    uint32_t first; /* exponent e begins at first + (e << 23); smaller magnitudes get 1 */
} steps;

static inline steps steps_of(float scale) {
    const double middle = 0.75 * (double)scale; /* exact */
    const float above = (float)middle;
    const uint32_t binades = HPC_FLOAT4_TOP << MANTISSA;
    return (steps){.least = hpc_bits_of_float(scale) - binades,
                   .first = hpc_bits_of_float(above) + ((double)above < middle) - binades};
}

FLOAT4_INLINE uint32_t code_of(uint32_t bits, steps s, float *value) {
    uint32_t size = bits & ~SIGN, exponent = (size - s.first) >> MANTISSA;
    if (size < s.least) {
        *value = 0;
        return 0;
    }
    exponent += exponent == 0;
    *value = hpc_float_of_bits((s.least + (exponent << MANTISSA)) | (bits & SIGN));
    return exponent | (bits >> 28 & 8);
}

FLOAT4_INLINE words codes_of(words bits, steps s, reals *values) {
    const words size = bits & ~SIGN, sent = (words)((numbers)size >= (numbers)(s.least - (words){0}));
    words exponent = (size - s.first) >> MANTISSA;
    exponent -= (words)(exponent == 0); /* adds 1 where exponent is 0 */
    *values = (reals)(((s.least + (exponent << MANTISSA)) | (bits & SIGN)) & sent);
    return (exponent | (bits >> 28 & 8)) & sent;
}

FLOAT4_INLINE uint32_t largest_of(const float *x, float *residual, size_t n) {
    uint32_t most = 0, each[LANES];
    words largest_yet = {0};
    size_t j = 0;
    for (; n - j >= LANES; j += LANES) {
        reals u = *(const unaligned *)(x + j);
        if (residual != NULL) {
            unaligned *rest = (unaligned *)(residual + j);
            u += *rest;
            *rest = u;
        }
        largest_yet = larger(largest_yet, (words)u & ~SIGN);
    }
    memcpy(each, &largest_yet, sizeof each);
    fold_end(0);
    for (size_t i = 0; i < LANES; i++) most = each[i] > most ? each[i] : most;
    for (; j < n; j++) {
        const float u = residual != NULL ? x[j] + residual[j] : x[j];
        const uint32_t size = hpc_bits_of_float(u) & ~SIGN;
        if (residual != NULL) residual[j] = u;
        most = size > most ? size : most;
    }
    return most;
}

static uint32_t largest(const float *x, float *residual, size_t n) {
    return residual != NULL ? largest_of(x, residual, n) : largest_of(x, NULL, n);
}

FLOAT4_INLINE void put_all(const float *u, size_t n, float scale, uint8_t *codes, float *rest) {
    const steps s = steps_of(scale);
    size_t j = 0;
    for (; n - j >= LANES; j += LANES) {
        const reals some = *(const unaligned *)(u + j);
        reals values;
        put_codes(codes + j / 2, codes_of((words)some, s, &values));
        if (rest != NULL) *(unaligned *)(rest + j) = some - values;
    }
    fold_end(0);
    for (; j < n; j++) {
        float value;
        const uint32_t code = code_of(hpc_bits_of_float(u[j]), s, &value);
        if (rest != NULL) rest[j] = u[j] - value;
        codes[j / 2] = (uint8_t)(j % 2 ? codes[j / 2] | code << 4 : code);
    }
}

static void put(const float *u, size_t n, float scale, uint8_t *codes, float *rest) {
    if (rest != NULL)
        put_all(u, n, scale, codes, rest);
    else
        put_all(u, n, scale, codes, NULL);
}

static void add(float *acc, size_t n, const uint8_t *codes, const float levels[HPC_FLOAT4_CODES]) {
    const LEVELS all = load_levels(levels);
    size_t j = 0;
    for (; n - j >= LANES; j += LANES) *(unaligned *)(acc + j) += levels_of(all, codes + j / 2);
    fold_end(0);
    for (; j < n; j++) acc[j] += levels[codes[j / 2] >> j % 2 * 4 & 15];
}
