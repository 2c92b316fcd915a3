/* Compiled with -mavx2 -mf16c -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/float4.h"
#include "kernel/lanes_avx2.h"

#include <string.h>

#define LEVELS __m256

static inline words larger(words a, words b) {
    return (words)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

/* A shift by 28 bits puts the second code of each 64 bits behind the first one. */
static inline void put_codes(uint8_t *out, words codes) {
    const __m256i first = _mm256_setr_epi8(0, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 8, -1, -1,
                                           -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i pairs = _mm256_or_si256((__m256i)codes, _mm256_srli_epi64((__m256i)codes, 28));
    pairs = _mm256_shuffle_epi8(pairs, first);
    const __m128i both = _mm_unpacklo_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const int32_t four = _mm_cvtsi128_si32(both);
    memcpy(out, &four, sizeof four);
}

/* Loads the levels without a sign. */
static inline LEVELS load_levels(const float *levels) {
    return _mm256_loadu_ps(levels);
}

/* The permutation uses only the lowest three bits of an index, so the sign is added after it. */
static inline reals levels_of(LEVELS levels, const uint8_t *in) {
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    int32_t eight;
    memcpy(&eight, in, sizeof eight);
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(eight), shifts);
    const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)), _mm256_set1_ps(-0.0f));
    return (reals)_mm256_xor_ps(_mm256_permutevar8x32_ps(levels, codes), sign);
}

#include "kernel/float4_kernel.h"

const struct hpc_float4_kernels hpc_float4_avx2 = {largest, put, add};
