/* Compiled with -mavx512f -ffp-contract=off; runs only where the CPU has it. Lanes are packed in a register and written
 * by a plain store: a compressing store is microcode on some CPUs (Zen 4), and many times slower. */
#include "kernel/lanes_avx512.h"
#include "kernel/sparse.h"

#define PACKS
#define FAST_POSITIONS
#define FAST_CODES8
#define KEPT __mmask16

static inline KEPT beyond(reals u, reals delta) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps((__m512)u), (__m512)delta, _CMP_NLE_UQ);
}

static inline KEPT is_positive(reals u) {
    return _mm512_cmp_ps_mask((__m512)u, _mm512_setzero_ps(), _CMP_GE_OQ);
}

static inline KEPT is_finite(reals u) {
    __m512 infinity = _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000));
    return _mm512_cmp_ps_mask(_mm512_abs_ps((__m512)u), infinity, _CMP_LT_OQ);
}

static inline unsigned mask_of(KEPT kept) {
    return kept;
}

static inline KEPT kept_of(unsigned mask) {
    return (KEPT)mask;
}

static inline reals choose(KEPT kept, reals a, reals b) {
    return (reals)_mm512_mask_mov_ps((__m512)b, kept, (__m512)a);
}

static inline reals within(reals u, reals most) {
    return (reals)_mm512_max_ps(_mm512_min_ps((__m512)u, (__m512)most), (__m512)-most);
}

static inline int put_small(void *out, words gaps, int wide) {
    __m512i skip = _mm512_set1_epi32(wide ? HPC_GAP_SKIP16 : HPC_GAP_SKIP8);
    if (_mm512_cmpge_epu32_mask((__m512i)gaps, skip) != 0) return 0;
    if (wide)
        _mm256_storeu_si256(out, _mm512_cvtepi32_epi16((__m512i)gaps));
    else
        _mm_storeu_si128(out, _mm512_cvtepi32_epi8((__m512i)gaps));
    return 1;
}

static inline reals pack(KEPT kept, unsigned mask, reals u) {
    (void)mask;
    return (reals)_mm512_maskz_compress_ps(kept, (__m512)u);
}

static inline reals through_f16(reals u) {
    return (reals)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)u, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "kernel/sparse_kernel.h"

/* Returns prefix sums: lane i is the sum of lanes 0 to i. */
static inline __m512i sums_to(__m512i x) {
    const __m512i none = _mm512_setzero_si512();
    x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, none, 15));
    x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, none, 14));
    x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, none, 12));
    return _mm512_add_epi32(x, _mm512_alignr_epi32(x, none, 8));
}

/* Decodes sixteen codes at once. Each code adds its value to the position, and one more unless the code only skips. */
SPARSE_INLINE size_t positions_of(const void *codes, size_t n, uint32_t *positions, uint32_t *next, int wide) {
    const __m512i one = _mm512_set1_epi32(1), last = _mm512_set1_epi32(15);
    const __m512i skip = _mm512_set1_epi32(wide ? HPC_GAP_SKIP16 : HPC_GAP_SKIP8);
    __m512i base = _mm512_set1_epi32((int)*next - 1);
    size_t i = 0, k = 0;
    for (; n - i >= LANES; i += LANES) {
        __m512i code = wide ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)((const uint16_t *)codes + i)))
                            : _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)((const uint8_t *)codes + i)));
        __mmask16 kept = _mm512_cmpneq_epu32_mask(code, skip);
        __m512i moves = sums_to(_mm512_mask_add_epi32(code, kept, code, one));
        __m512i at = _mm512_add_epi32(base, moves);
        _mm512_storeu_si512(positions + k, _mm512_maskz_compress_epi32(kept, at));
        k += (unsigned)__builtin_popcount(kept);
        base = _mm512_add_epi32(base, _mm512_permutexvar_epi32(last, moves));
    }
    *next = (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(base)) + 1;
    k += positions_by_code((const char *)codes + (wide ? 2 * i : i), n - i, positions + k, next, wide);
    fold_end(0);
    return k;
}

static size_t positions8(const void *codes, size_t n, uint32_t *positions, uint32_t *next) {
    return positions_of(codes, n, positions, next, 0);
}

static size_t positions16(const void *codes, size_t n, uint32_t *positions, uint32_t *next) {
    return positions_of(codes, n, positions, next, 1);
}

/* Loads a vector's values with a mask, so that no value after the last is read. */
static void add_bits(float *acc, size_t n, const uint8_t *bits, const float *values) {
    size_t j = 0, k = 0;
    for (; n - j >= LANES; j += LANES) {
        unsigned mask = bits[j / 8] | (unsigned)bits[j / 8 + 1] << 8, count = (unsigned)__builtin_popcount(mask);
        __m512 some = _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), values + k), sum = _mm512_loadu_ps(acc + j);
        some = _mm512_maskz_expand_ps((__mmask16)mask, some);
        _mm512_storeu_ps(acc + j, _mm512_mask_add_ps(sum, (__mmask16)mask, sum, some));
        k += count;
    }
    add_bits_from(acc, j, n, bits, values + k);
    fold_end(0);
}

const struct hpc_sparse_kernels hpc_sparse_avx512 = {
    filter_f32, filter_f16, filter_bf16, gaps8,    gaps16, positions8, positions16,
    codes8,     codes16,    count_bits,  add_bits, signs,  take_signs, add_signs,
};
