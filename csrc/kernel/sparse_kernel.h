/* The sparse kernels, written once. The file of an instruction set includes its lanes and this file. If it can pack the
 * kept lanes of a vector, it defines PACKS, KEPT (the type of a comparison) and:
 *
 *     beyond(u, delta), is_positive(u), is_finite(u)   comparisons, the first one true for NaN
 *     mask_of(kept)                                    bit i for lane i
 *     kept_of(mask)                                    the reverse
 *     choose(kept, a, b)                               a where kept, b elsewhere
 *     within(u, most)                                  u, limited to the range from -most to most
 *     pack(kept, mask, u)                              the kept lanes first; the others have any value
 *     put_small(out, gaps, wide)                       writes the codes of a vector of gaps if none needs a skip, and
 *                                                      returns whether it did
 *     through_f16(u)                                   to float16 and back
 *
 * Other files work on scalars, as all do for the last elements. Both ways do the same operations on every element. */
#include "kernel/half.h"

#include <math.h>
#include <string.h>

#define SPARSE_INLINE static inline __attribute__((always_inline))

enum { GROUP = 64, WIDE = 8 * GROUP, SUMS = 16 };

static const float MOST_F16 = 65504, MOST_BF16 = 0x1.fep127f;

/* Returns delta, or, if that is larger, the magnitude up to which numbers are rounded to 0. */
static inline float least_delta(float delta, int values) {
    float least = values == HPC_F16 ? 0x1p-25f : values == HPC_BF16 ? 0x1p-134f : 0;
    return delta < least ? least : delta;
}

static inline float saturated(float u, float most) {
    float size = fabsf(u);
    return size > most && size < INFINITY ? copysignf(most, u) : u;
}

/* Returns the float32 that the receiver gets for u. */
SPARSE_INLINE float sent_for(float u, int values) {
    if (values == HPC_F16) return hpc_from_f16(hpc_to_f16(saturated(u, MOST_F16)));
    if (values == HPC_BF16) return hpc_from_bf16(hpc_to_bf16(saturated(u, MOST_BF16)));
    return u;
}

SPARSE_INLINE void put_value(void *out, size_t k, float sent, int values) {
    if (values == HPC_F16)
        ((uint16_t *)out)[k] = hpc_to_f16(sent);
    else if (values == HPC_BF16)
        ((uint16_t *)out)[k] = hpc_to_bf16(sent);
    else
        ((float *)out)[k] = sent;
}

/* Filters from element j on; j must be a multiple of 8, and k is the number of elements kept before. The value of an
 * element that is not kept is written too, and the next value overwrites it. */
SPARSE_INLINE size_t filter_scalars(const float *x, float *residual, size_t j, size_t n, float delta, void *out,
                                    size_t k, uint8_t *bits, int values) {
    for (; j < n; j += 8) {
        unsigned byte = 0;
        for (size_t i = j; i < n && i < j + 8; i++) {
            float u = x[i] + residual[i], sent = sent_for(u, values);
            float rest = fabsf(u) < INFINITY ? u - sent : 0;
            unsigned kept = !(fabsf(u) <= delta);
            put_value(out, k, sent, values);
            k += kept;
            residual[i] = kept ? rest : u;
            byte |= kept << (i - j);
        }
        bits[j / 8] = (uint8_t)byte;
    }
    return k;
}

#ifdef PACKS

typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
enum { LANES = VECTOR_BYTES / sizeof(float) };

static inline reals all_of(float x) {
    return x - (reals){0};
}

static inline reals saturated_vector(reals u, float most) {
    return choose(is_finite(u), within(u, all_of(most)), u);
}

SPARSE_INLINE reals sent_for_vector(reals u, int values) {
    if (values == HPC_F16) return through_f16(saturated_vector(u, MOST_F16));
    if (values == HPC_BF16) return (reals)(round_bf16(saturated_vector(u, MOST_BF16)) << 16);
    return u;
}

SPARSE_INLINE void put_vector(void *out, size_t k, reals sent, int values) {
    if (values == HPC_F16)
        store_f16((uint16_t *)out + k, sent);
    else if (values == HPC_BF16)
        store_words16((uint16_t *)out + k, (words)sent >> 16);
    else
        *(vector *)((float *)out + k) = sent;
}

#endif

/* The store of a vector's packed values writes all lanes of the vector. At most as many values are kept as there are
 * elements before the vector, so the store ends within the room for n values. */
SPARSE_INLINE int64_t filter_values(const float *x, float *residual, int64_t count, float delta, void *out,
                                    uint8_t *bits, int values) {
    size_t n = count > 0 ? (size_t)count : 0, j = 0, k = 0;
    delta = least_delta(delta, values);
#ifdef PACKS
    const reals limit = all_of(delta), none = all_of(0);
    for (; n - j >= GROUP; j += GROUP) {
        uint64_t word = 0;
#pragma GCC unroll 8
        for (size_t v = 0; v < GROUP / LANES; v++) {
            vector *rest = (vector *)(residual + j + v * LANES);
            reals u = *(const vector *)(x + j + v * LANES) + *rest, sent = sent_for_vector(u, values);
            KEPT kept = beyond(u, limit);
            reals error = values == HPC_F32 ? none : choose(is_finite(u), u - sent, none);
            *rest = choose(kept, error, u);
            unsigned mask = mask_of(kept);
            put_vector(out, k, pack(kept, mask, sent), values);
            k += (unsigned)__builtin_popcount(mask);
            word |= (uint64_t)mask << v * LANES;
        }
        memcpy(bits + j / 8, &word, sizeof word);
    }
#endif
    k = filter_scalars(x, residual, j, n, delta, out, k, bits, values);
    fold_end(0);
    return (int64_t)k;
}

static int64_t filter_f32(const float *x, float *residual, int64_t n, float delta, void *values, uint8_t *bits) {
    return filter_values(x, residual, n, delta, values, bits, HPC_F32);
}

static int64_t filter_f16(const float *x, float *residual, int64_t n, float delta, void *values, uint8_t *bits) {
    return filter_values(x, residual, n, delta, values, bits, HPC_F16);
}

static int64_t filter_bf16(const float *x, float *residual, int64_t n, float delta, void *values, uint8_t *bits) {
    return filter_values(x, residual, n, delta, values, bits, HPC_BF16);
}

/* ---- gaps ----------------------------------------------------------------------------------------------------------
 */

/* Returns the 64 bits from bit j on; bits after the last byte are 0. */
static inline uint64_t bits_at(const uint8_t *bits, size_t j, size_t n) {
    uint64_t word = 0;
    if (n - j >= GROUP)
        memcpy(&word, bits + j / 8, sizeof word);
    else
        memcpy(&word, bits + j / 8, (n - j + 7) / 8);
    return word;
}

SPARSE_INLINE void put_code(void *out, size_t at, uint64_t code, int wide) {
    if (wide)
        ((uint16_t *)out)[at] = (uint16_t)code;
    else
        ((uint8_t *)out)[at] = (uint8_t)code;
}

/* Writes the codes of one gap from place at on. Returns the place after them, or HPC_GAPS_DO_NOT_FIT. */
SPARSE_INLINE size_t put_gap(void *out, size_t at, size_t cap, uint64_t gap, int wide) {
    const uint64_t skip = wide ? HPC_GAP_SKIP16 : HPC_GAP_SKIP8;
    for (; at < cap && gap >= skip; gap -= skip) put_code(out, at++, skip, wide);
    if (at >= cap) return HPC_GAPS_DO_NOT_FIT;
    put_code(out, at++, gap, wide);
    return at;
}

#ifdef PACKS

/* Writes the codes of positions[1..count]; positions[0] is the position before them. A vector of small gaps is written
 * at once. */
SPARSE_INLINE size_t put_gaps(const uint32_t *positions, size_t count, void *out, size_t at, size_t cap, int wide) {
    typedef int32_t numbers __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
    for (size_t i = 0; i < count;) {
        if (count - i >= LANES && cap - at >= LANES) {
            words gaps = (words)(*(const numbers *)(positions + i + 1) - *(const numbers *)(positions + i) - 1);
            if (put_small((char *)out + (wide ? 2 * at : at), gaps, wide)) {
                at += LANES;
                i += LANES;
                continue;
            }
        }
        for (size_t end = count - i < LANES ? count : i + LANES; i < end; i++) {
            at = put_gap(out, at, cap, positions[i + 1] - positions[i] - 1, wide);
            if (at == HPC_GAPS_DO_NOT_FIT) return at;
        }
    }
    return at;
}

#else

SPARSE_INLINE size_t put_gaps(const uint32_t *positions, size_t count, void *out, size_t at, size_t cap, int wide) {
    for (size_t i = 0; i < count && at != HPC_GAPS_DO_NOT_FIT; i++)
        at = put_gap(out, at, cap, positions[i + 1] - positions[i] - 1, wide);
    return at;
}

#endif

/* Writes the positions of the next few bits of a word, even if it has fewer. Returns the word without these bits. */
SPARSE_INLINE uint64_t put_positions(uint32_t *positions, uint64_t word, uint32_t from, int few) {
#pragma GCC unroll 16
    for (int i = 0; i < few; i++) {
        positions[i] = from + (uint32_t)__builtin_ctzll(word | (uint64_t)1 << 63);
        word &= word - 1;
    }
    return word;
}

/* Returns whether the bits of WIDE elements are all 0. */
static inline int is_empty(const uint8_t *bits) {
    uint64_t words[WIDE / 64], any = 0;
    memcpy(words, bits, sizeof words);
    for (size_t i = 0; i < WIDE / 64; i++) any |= words[i];
    return any == 0;
}

/* Takes the set bits of a word in steps of SOME and MORE, even if the word has fewer: a branch for each bit would be
 * mispredicted once a word. */
SPARSE_INLINE size_t gaps_of(const uint8_t *bits, size_t n, void *out, size_t cap, int wide) {
    enum { SOME = 2, MORE = 8, WAITING = 512 };
    uint32_t positions[1 + WAITING + GROUP + MORE];
    size_t at = 0, count = 0;
    positions[0] = UINT32_MAX; /* the position before 0, modulo 2^32 */
    for (size_t j = 0; j < n; j += GROUP) {
        if (j % WIDE == 0) {
            while (n - j >= WIDE && is_empty(bits + j / 8)) j += WIDE;
            if (j == n) break;
        }
        uint64_t word = bits_at(bits, j, n);
        size_t some = (size_t)__builtin_popcountll(word);
        uint32_t *next = positions + 1 + count, from = (uint32_t)j;
        word = put_positions(next, word, from, SOME);
        if (some > SOME) word = put_positions(next + SOME, word, from, MORE - SOME);
        for (size_t i = MORE; i < some; i += SOME) word = put_positions(next + i, word, from, SOME);
        count += some;
        if (count < WAITING) continue;
        at = put_gaps(positions, count, out, at, cap, wide);
        if (at == HPC_GAPS_DO_NOT_FIT) break;
        positions[0] = positions[count];
        count = 0;
    }
    if (at != HPC_GAPS_DO_NOT_FIT) at = put_gaps(positions, count, out, at, cap, wide);
    fold_end(0);
    return at;
}

static size_t gaps8(const uint8_t *bits, size_t n, void *out, size_t cap) {
    return gaps_of(bits, n, out, cap, 0);
}

static size_t gaps16(const uint8_t *bits, size_t n, void *out, size_t cap) {
    return gaps_of(bits, n, out, cap, 1);
}

SPARSE_INLINE size_t positions_by_code(const void *codes, size_t n, uint32_t *positions, uint32_t *next, int wide) {
    const uint32_t skip = wide ? HPC_GAP_SKIP16 : HPC_GAP_SKIP8;
    uint32_t at = *next;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t code = wide ? ((const uint16_t *)codes)[i] : ((const uint8_t *)codes)[i], kept = code != skip;
        positions[k] = at + code;
        k += kept;
        at += code + kept;
    }
    *next = at;
    return k;
}

#ifndef FAST_POSITIONS

static size_t positions8(const void *codes, size_t n, uint32_t *positions, uint32_t *next) {
    return positions_by_code(codes, n, positions, next, 0);
}

static size_t positions16(const void *codes, size_t n, uint32_t *positions, uint32_t *next) {
    return positions_by_code(codes, n, positions, next, 1);
}

#endif

SPARSE_INLINE size_t count_codes(const void *codes, size_t n, uint64_t *span, int wide) {
    enum { BLOCK = 1 << 15 }; /* sums of 32 bits suffice for a block */
    const uint32_t skip = wide ? HPC_GAP_SKIP16 : HPC_GAP_SKIP8;
    size_t kept = 0;
    *span = 0;
    for (size_t from = 0; from < n; from += BLOCK) {
        size_t to = n - from < BLOCK ? n : from + BLOCK;
        uint32_t sum = 0, some = 0;
        for (size_t i = from; i < to; i++) {
            uint32_t code = wide ? ((const uint16_t *)codes)[i] : ((const uint8_t *)codes)[i];
            sum += code;
            some += code != skip;
        }
        *span += (uint64_t)sum + some;
        kept += some;
    }
    return kept;
}

#ifdef FAST_CODES8

/* AVX2 sums bytes eight at a time. */
static size_t codes8(const void *codes, size_t n, uint64_t *span) {
    const __m256i skip = _mm256_set1_epi8((char)HPC_GAP_SKIP8), none = _mm256_setzero_si256();
    __m256i sums = none, skips = none;
    uint64_t sum[4], skipped[4], tail;
    size_t i = 0;
    for (; n - i >= 32; i += 32) {
        __m256i code = _mm256_loadu_si256((const __m256i *)((const uint8_t *)codes + i));
        __m256i is_skip = _mm256_sub_epi8(none, _mm256_cmpeq_epi8(code, skip));
        sums = _mm256_add_epi64(sums, _mm256_sad_epu8(code, none));
        skips = _mm256_add_epi64(skips, _mm256_sad_epu8(is_skip, none));
    }
    _mm256_storeu_si256((__m256i *)sum, sums);
    _mm256_storeu_si256((__m256i *)skipped, skips);
    fold_end(0);
    size_t kept = i + count_codes((const uint8_t *)codes + i, n - i, &tail, 0);
    kept -= skipped[0] + skipped[1] + skipped[2] + skipped[3];
    *span = sum[0] + sum[1] + sum[2] + sum[3] + tail + (i - skipped[0] - skipped[1] - skipped[2] - skipped[3]);
    return kept;
}

#else

static size_t codes8(const void *codes, size_t n, uint64_t *span) {
    size_t kept = count_codes(codes, n, span, 0);
    fold_end(0);
    return kept;
}

#endif

static size_t codes16(const void *codes, size_t n, uint64_t *span) {
    size_t kept = count_codes(codes, n, span, 1);
    fold_end(0);
    return kept;
}

/* ---- bits ----------------------------------------------------------------------------------------------------------
 */

static size_t count_bits(const uint8_t *bits, size_t n) {
    size_t nbytes = (n + 7) / 8, count = 0, j = 0;
    for (; nbytes - j >= sizeof(uint64_t); j += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bits + j, sizeof word);
        count += (size_t)__builtin_popcountll(word);
    }
    for (; j < nbytes; j++) count += (size_t)__builtin_popcount(bits[j]);
    return count;
}

static void add_bits_from(float *acc, size_t j, size_t n, const uint8_t *bits, const float *values) {
    for (; j < n; j += 64)
        for (uint64_t word = bits_at(bits, j, n); word != 0; word &= word - 1)
            acc[j + (size_t)__builtin_ctzll(word)] += *values++;
}

static size_t signs(const float *x, float *residual, size_t n, uint8_t *bits, double sums[2]) {
    double plus[SUMS] = {0}, minus[SUMS] = {0};
    size_t j = 0, count = 0;
#ifdef PACKS
    typedef double doubles __attribute__((vector_size(VECTOR_BYTES)));
    typedef float few __attribute__((vector_size(VECTOR_BYTES / 2)));
    enum { HALF = LANES / 2, VECTORS = SUMS / HALF };
    doubles positive[VECTORS] = {{0}}, negative[VECTORS] = {{0}};
    const reals none = all_of(0);
    for (; n - j >= SUMS; j += SUMS) {
        unsigned word = 0;
#pragma GCC unroll 4
        for (size_t v = 0; v < SUMS / LANES; v++) {
            vector *rest = (vector *)(residual + j + v * LANES);
            reals u = *(const vector *)(x + j + v * LANES) + *rest;
            KEPT up = is_positive(u);
            *rest = u;
            word |= mask_of(up) << v * LANES;
            few a[2], b[2];
            reals above = choose(up, u, none), below = choose(up, none, u);
            memcpy(a, &above, sizeof above);
            memcpy(b, &below, sizeof below);
            for (size_t h = 0; h < 2; h++) {
                positive[2 * v + h] += __builtin_convertvector(a[h], doubles);
                negative[2 * v + h] += __builtin_convertvector(b[h], doubles);
            }
        }
        bits[j / 8] = (uint8_t)word;
        bits[j / 8 + 1] = (uint8_t)(word >> 8);
        count += (unsigned)__builtin_popcount(word);
    }
    memcpy(plus, positive, sizeof plus);
    memcpy(minus, negative, sizeof minus);
#endif
    fold_end(0);
    for (; j < n; j += 8) {
        unsigned byte = 0;
        for (size_t i = j; i < n && i < j + 8; i++) {
            float u = residual[i] = x[i] + residual[i];
            unsigned up = u >= 0;
            plus[i % SUMS] += (double)(up ? u : 0);
            minus[i % SUMS] += (double)(up ? 0 : u);
            byte |= up << (i - j);
        }
        bits[j / 8] = (uint8_t)byte;
        count += (unsigned)__builtin_popcount(byte);
    }
    for (int width = SUMS / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) {
            plus[i] += plus[i + width];
            minus[i] += minus[i + width];
        }
    sums[0] = plus[0];
    sums[1] = minus[0];
    return count;
}

static void take_signs(float *residual, size_t n, const uint8_t *bits, float plus, float minus) {
    size_t j = 0;
#ifdef PACKS
    const reals up = all_of(plus), down = all_of(minus), none = all_of(0);
    for (; n - j >= LANES; j += LANES) {
        unsigned mask = bits[j / 8];
        if (LANES > 8) mask |= (unsigned)bits[j / 8 + 1] << 8;
        vector *at = (vector *)(residual + j);
        reals rest = *at - choose(kept_of(mask), up, down);
        *at = choose(is_finite(rest), rest, none);
    }
#endif
    for (; j < n; j++) {
        float rest = residual[j] - (bits[j / 8] >> j % 8 & 1 ? plus : minus);
        residual[j] = fabsf(rest) < INFINITY ? rest : 0;
    }
    fold_end(0);
}

static void add_signs(float *acc, size_t n, const uint8_t *bits, float plus, float minus) {
    size_t j = 0;
#ifdef PACKS
    const reals up = all_of(plus), down = all_of(minus);
    for (; n - j >= LANES; j += LANES) {
        unsigned mask = bits[j / 8];
        if (LANES > 8) mask |= (unsigned)bits[j / 8 + 1] << 8;
        *(vector *)(acc + j) += choose(kept_of(mask), up, down);
    }
#endif
    for (; j < n; j++) acc[j] += bits[j / 8] >> j % 8 & 1 ? plus : minus;
    fold_end(0);
}
