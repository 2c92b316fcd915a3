/* Vectors of AVX2 and F16C, and the operations of kernels on them. */
#ifndef HPC_LANES_AVX2_H
#define HPC_LANES_AVX2_H

#include <immintrin.h>

#define VECTOR_BYTES 32
#include "kernel/lanes.h"

static inline void stream_vector(void *to, const void *from) {
    _mm256_stream_si256(to, _mm256_loadu_si256(from));
}

/* gcc 12 at -O2 leaves vzeroupper out here, and the caller's SSE code then runs at half speed. */
static inline void fold_end(int stream) {
    if (stream) _mm_sfence();
    _mm256_zeroupper();
}

static inline reals root(reals x) {
    return (reals)_mm256_sqrt_ps((__m256)x);
}

#if defined(__FMA__)
/* Returns a b + c, rounded once. */
static inline reals multiply_add(float a, reals b, reals c) {
    return (reals)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
}
#endif

static inline reals load_f16(const uint16_t *in) {
    return (reals)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)in));
}

static inline reals load_bf16(const uint16_t *in) {
    return (reals)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)in)), 16);
}

static inline void store_f16(uint16_t *out, reals x) {
    _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void store_words16(uint16_t *out, words x) {
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)x, (__m256i)x), 0xd8);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(packed));
}

#endif
