/* For every CPU: vectors of 16 bytes, which the compiler maps to the registers of the baseline, and the operations of
 * kernels on them. */
#ifndef HPC_LANES_GENERIC_H
#define HPC_LANES_GENERIC_H

#include <string.h>

#define VECTOR_BYTES 16
#include "kernel/lanes.h"

#if defined(__SSE2__)

#include <emmintrin.h>

static inline void stream_vector(void *to, const void *from) {
    _mm_stream_si128(to, _mm_loadu_si128(from));
}

static inline void fold_end(int stream) {
    if (stream) _mm_sfence();
}

static inline reals root(reals x) {
    return (reals)_mm_sqrt_ps((__m128)x);
}

#else

static inline void stream_vector(void *to, const void *from) {
    memcpy(to, from, VECTOR_BYTES);
}

static inline void fold_end(int stream) {
    (void)stream;
}

/* Each call becomes one instruction, because rule_generic.c is compiled with -fno-math-errno. */
static inline reals root(reals x) {
    for (unsigned lane = 0; lane < VECTOR_BYTES / sizeof(float); lane++) x[lane] = __builtin_sqrtf(x[lane]);
    return x;
}

#endif

typedef int32_t ints __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2), aligned(1), may_alias));

static inline void store_words16(uint16_t *out, words x) {
    *(halves *)out = __builtin_convertvector(x, halves);
}

/* Returns a b + c, rounded once. */
#if defined(__FP_FAST_FMAF)

static inline reals multiply_add(float a, reals b, reals c) {
    reals sum;
    for (int i = 0; i < VECTOR_BYTES / (int)sizeof(float); i++) sum[i] = __builtin_fmaf(a, b[i], c[i]);
    return sum;
}

#else

typedef double wide_reals __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t wide_ints __attribute__((vector_size(VECTOR_BYTES)));

/* In float64 the product is exact. The sum is rounded to odd: if it is inexact its last bit becomes 1, so it rounds to
 * the same float32 as the exact sum (Boldo and Melquiond, 2008). Masks are combined by bits, because SSE2 cannot
 * compare int64. */
static inline wide_reals add_to_odd(wide_reals product, wide_reals other) {
    const wide_reals sum = product + other, part = sum - product;
    const wide_reals error = (product - (sum - part)) + (other - part);
    const wide_ints bits = (wide_ints)sum, even = (bits & 1) - 1, off = (error < 0) | (error > 0);
    const wide_ints away = ~((error > 0) ^ (sum > 0)), step = (away & 2) - 1;
    return (wide_reals)(bits + (step & even & off));
}

#if defined(__SSE2__)

static inline reals multiply_add(float a, reals b, reals c) {
    const wide_reals wide = {(double)a, (double)a};
    const __m128 b2 = _mm_movehl_ps((__m128)b, (__m128)b), c2 = _mm_movehl_ps((__m128)c, (__m128)c);
    const wide_reals low = add_to_odd(wide * (wide_reals)_mm_cvtps_pd((__m128)b), (wide_reals)_mm_cvtps_pd((__m128)c));
    const wide_reals high = add_to_odd(wide * (wide_reals)_mm_cvtps_pd(b2), (wide_reals)_mm_cvtps_pd(c2));
    return (reals)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)low), _mm_cvtpd_ps((__m128d)high));
}

#else

static inline reals multiply_add(float a, reals b, reals c) {
    typedef float pair __attribute__((vector_size(VECTOR_BYTES / 2)));
    pair x[2], y[2];
    memcpy(x, &b, sizeof x);
    memcpy(y, &c, sizeof y);
    for (int i = 0; i < 2; i++) {
        const wide_reals product = (double)a * __builtin_convertvector(x[i], wide_reals);
        x[i] = __builtin_convertvector(add_to_odd(product, __builtin_convertvector(y[i], wide_reals)), pair);
    }
    memcpy(&c, x, sizeof c);
    return c;
}

#endif
#endif

/* hpc_from_f16 and hpc_to_f16 without branches: every case is computed, and masks select one. Comparisons are signed,
 * because SSE2 has no others. */
static inline reals load_f16(const uint16_t *in) {
    words half = __builtin_convertvector(*(const halves *)in, words);
    ints magnitude = (ints)(half & 0x7fff);
    words subnormal = (words)(magnitude < 0x0400), special = (words)(magnitude > 0x7bff);
    words small = (words)(__builtin_convertvector(magnitude, reals) * 0x1p-24f);
    words large = ((words)magnitude << 13) + (112u << 23) + (special & (112u << 23));
    return (reals)((half & 0x8000) << 16 | (small & subnormal) | (large & ~subnormal));
}

static inline reals load_bf16(const uint16_t *in) {
    return (reals)(__builtin_convertvector(*(const halves *)in, words) << 16);
}

static inline void store_f16(uint16_t *out, reals x) {
    words bits = (words)x;
    ints magnitude = (ints)(bits & 0x7fffffff);
    words nan = (words)(magnitude > 0x7f800000), tiny = (words)(magnitude < 113 << 23);
    words huge = (words)(magnitude >= 143 << 23);
    words small = (words)((reals)magnitude + 0.5f) - (126u << 23);
    words large = ((words)magnitude - (112u << 23) + 0x0fff + ((words)magnitude >> 13 & 1)) >> 13;
    words payload = ((words)magnitude >> 13 & 0x03ff) | 0x7e00;
    words result = (small & tiny) | (large & ~(tiny | huge)) | (huge & 0x7c00) | (payload & nan);
    store_words16(out, (bits >> 16 & 0x8000) | result);
}

#endif
