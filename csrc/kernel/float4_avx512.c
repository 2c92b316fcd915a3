/* Compiled with -mavx512f -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/float4.h"
#include "kernel/lanes_avx512.h"

#include <string.h>

#define LEVELS __m512

static inline words larger(words a, words b) {
    return (words)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

/* A shift by 28 bits puts the second code of each 64 bits behind the first one. */
static inline void put_codes(uint8_t *out, words codes) {
    const __m512i pairs = _mm512_or_si512((__m512i)codes, _mm512_srli_epi64((__m512i)codes, 28));
    _mm_storel_epi64((__m128i *)(void *)out, _mm512_cvtepi64_epi8(pairs));
}

static inline LEVELS load_levels(const float *levels) {
    return _mm512_loadu_ps(levels);
}

/* The permutation uses only the lowest four bits of an index. */
static inline reals levels_of(LEVELS levels, const uint8_t *in) {
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    int32_t eight[2];
    memcpy(eight, in, sizeof eight);
    const __m512i codes = _mm512_mask_set1_epi32(_mm512_set1_epi32(eight[0]), 0xff00, eight[1]);
    return (reals)_mm512_permutexvar_ps(_mm512_srlv_epi32(codes, shifts), levels);
}

#include "kernel/float4_kernel.h"

const struct hpc_float4_kernels hpc_float4_avx512 = {largest, put, add};
