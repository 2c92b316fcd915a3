/* Compiled with -mavx2 -mf16c -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/lanes_avx2.h"
#include "kernel/pack_table.h"
#include "kernel/sparse.h"

#define PACKS
#define FAST_CODES8
#define KEPT __m256

static inline KEPT beyond(reals u, reals delta) {
    return _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), (__m256)u), (__m256)delta, _CMP_NLE_UQ);
}

static inline KEPT is_positive(reals u) {
    return _mm256_cmp_ps((__m256)u, _mm256_setzero_ps(), _CMP_GE_OQ);
}

static inline KEPT is_finite(reals u) {
    __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    return _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), (__m256)u), infinity, _CMP_LT_OQ);
}

static inline unsigned mask_of(KEPT kept) {
    return (unsigned)_mm256_movemask_ps(kept);
}

static inline KEPT kept_of(unsigned mask) {
    __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)mask), bit), bit));
}

static inline reals choose(KEPT kept, reals a, reals b) {
    return (reals)_mm256_blendv_ps((__m256)b, (__m256)a, kept);
}

static inline reals within(reals u, reals most) {
    return (reals)_mm256_max_ps(_mm256_min_ps((__m256)u, (__m256)most), (__m256)-most);
}

static inline int put_small(void *out, words gaps, int wide) {
    __m256i skip = _mm256_set1_epi32(wide ? HPC_GAP_SKIP16 : HPC_GAP_SKIP8);
    __m256i large = _mm256_cmpeq_epi32(_mm256_max_epu32((__m256i)gaps, skip), (__m256i)gaps);
    if (!_mm256_testz_si256(large, large)) return 0;
    __m128i halves =
        _mm_packus_epi32(_mm256_castsi256_si128((__m256i)gaps), _mm256_extracti128_si256((__m256i)gaps, 1));
    if (wide)
        _mm_storeu_si128(out, halves);
    else
        _mm_storel_epi64(out, _mm_packus_epi16(halves, halves));
    return 1;
}

static inline reals pack(KEPT kept, unsigned mask, reals u) {
    __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&pack_table[mask]));
    (void)kept;
    return (reals)_mm256_permutevar8x32_ps((__m256)u, lanes);
}

static inline reals through_f16(reals u) {
    return (reals)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)u, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "kernel/sparse_kernel.h"

static void add_bits(float *acc, size_t n, const uint8_t *bits, const float *values) {
    add_bits_from(acc, 0, n, bits, values);
}

const struct hpc_sparse_kernels hpc_sparse_avx2 = {
    filter_f32, filter_f16, filter_bf16, gaps8,    gaps16, positions8, positions16,
    codes8,     codes16,    count_bits,  add_bits, signs,  take_signs, add_signs,
};
