/* Vectors of AVX-512F, and the operations of kernels on them. */
#ifndef HPC_LANES_AVX512_H
#define HPC_LANES_AVX512_H

#include <immintrin.h>

#define VECTOR_BYTES 64
#include "kernel/lanes.h"

static inline void stream_vector(void *to, const void *from) {
    _mm512_stream_si512(to, _mm512_loadu_si512(from));
}

/* gcc 12 at -O2 leaves vzeroupper out here, and the caller's SSE code then runs at half speed. */
static inline void fold_end(int stream) {
    if (stream) _mm_sfence();
    _mm256_zeroupper();
}

static inline reals root(reals x) {
    return (reals)_mm512_sqrt_ps((__m512)x);
}

/* Returns a b + c, rounded once. */
static inline reals multiply_add(float a, reals b, reals c) {
    return (reals)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)c);
}

static inline reals load_f16(const uint16_t *in) {
    return (reals)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)in));
}

static inline reals load_bf16(const uint16_t *in) {
    return (reals)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)in)), 16);
}

static inline void store_f16(uint16_t *out, reals x) {
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void store_words16(uint16_t *out, words x) {
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16((__m512i)x));
}

#endif
