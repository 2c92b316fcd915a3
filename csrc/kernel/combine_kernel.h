/* The combinations, written once. The file of an instruction set includes its lanes and this file, and makes its table
 * of COMBINE_TABLE.
 *
 * combine() reads all inputs side by side and writes each element once, in vectors of any type (bytes). Each type
 * brings its loads, joins and stores. A part of a vector goes through a buffer, so all elements see the same
 * operations. The compiler decides which one of two NaNs becomes their sum or product, so these are stored as one fixed
 * NaN. */
#include "base/isa.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef uint8_t bytes __attribute__((vector_size(VECTOR_BYTES)));
typedef double long_reals __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t long_words __attribute__((vector_size(VECTOR_BYTES)));

typedef bytes load_fn(const void *from);
typedef bytes join_fn(bytes a, bytes b);
typedef void store_fn(void *to, bytes x, int n_ranks); /* divides a sum by n_ranks, unless it is 1 */

/* ---- the loop ---- */

enum { WIDE = 4 };

/* Joins a block of WIDE vectors with the block at from. A vector takes step bytes in memory. */
INLINE void join_block(bytes *x, const char *from, size_t step, load_fn *load, join_fn *join) {
#pragma GCC unroll 4
    for (int v = 0; v < WIDE; v++) x[v] = join(x[v], load(from + v * step));
}

/* Combines blocks from byte j on, and returns the first byte that is left. few: n_in if it is 2 to 4, or 0 for any
 * n_in. As a constant it gives each input separate load instructions, which suits prefetchers (fold_kernel.h). */
INLINE size_t blocks(char *out, const void *const *in, int few, int n_in, size_t j, size_t nbytes, int n_ranks,
                     size_t step, load_fn *load, join_fn *join, store_fn *store) {
    const char *first = in[0], *second = few >= 2 ? in[1] : NULL, *third = few >= 3 ? in[2] : NULL;
    const char *fourth = few >= 4 ? in[3] : NULL;
    for (; nbytes - j >= WIDE * step; j += WIDE * step) {
        bytes x[WIDE];
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; v++) x[v] = load(first + j + v * step);
        if (few >= 2) join_block(x, second + j, step, load, join);
        if (few >= 3) join_block(x, third + j, step, load, join);
        if (few >= 4) join_block(x, fourth + j, step, load, join);
        if (few == 0)
            for (int i = 1; i < n_in; i++) join_block(x, (const char *)in[i] + j, step, load, join);
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; v++) store(out + j + v * step, x[v], n_ranks);
    }
    return j;
}

/* often: a combination that must run at the speed of memory. */
INLINE void combine(void *to, const void *const *in, int n_in, size_t count, int n_ranks, size_t item, size_t step,
                    int often, load_fn *load, join_fn *join, store_fn *store) {
    enum { CACHE_LINE = 64 };
    char *out = to;
    size_t nbytes = count * item, j = 0, end = 0;
    if (often) { /* blocks should not straddle cache lines: in the caches they would take nearly twice as long */
        end = (CACHE_LINE - (uintptr_t)out % CACHE_LINE) % CACHE_LINE;
        if (end % item != 0) end = 0;
        if (end > nbytes) end = nbytes;
    }
    for (;;) { /* elements before the blocks, then those behind them */
        for (; j < end; j += step) {
            size_t left = end - j < step ? end - j : step;
            char part[VECTOR_BYTES] = {0};
            memcpy(part, (const char *)in[0] + j, left);
            bytes x = load(part);
            for (int i = 1; i < n_in; i++) {
                memcpy(part, (const char *)in[i] + j, left);
                x = join(x, load(part));
            }
            store(part, x, n_ranks);
            memcpy(out + j, part, left);
        }
        if (end == nbytes) break;
        j = end;
        end = nbytes;
        if (often && n_in == 2)
            j = blocks(out, in, 2, 2, j, nbytes, n_ranks, step, load, join, store);
        else if (often && n_in == 3)
            j = blocks(out, in, 3, 3, j, nbytes, n_ranks, step, load, join, store);
        else if (often && n_in == 4)
            j = blocks(out, in, 4, 4, j, nbytes, n_ranks, step, load, join, store);
        else
            j = blocks(out, in, 0, n_in, j, nbytes, n_ranks, step, load, join, store);
    }
    fold_end(0);
}

/* ---- loads and stores ---- */

typedef bytes bytes_anywhere __attribute__((aligned(1), may_alias));

INLINE bytes pick(bytes mask, bytes a, bytes b) {
    return (a & mask) | (b & ~mask);
}

INLINE bytes nan_bits(void) {
    return (bytes)((words){0} + 0x7fc00000);
}

INLINE reals one_nan(reals x) {
    return (reals)pick((bytes)(x == x), (bytes)x, nan_bits());
}

INLINE reals mean(bytes sum, int n_ranks) {
    return n_ranks == 1 ? (reals)sum : (reals)sum / (float)n_ranks;
}

INLINE bytes load_any(const void *from) {
    return *(const bytes_anywhere *)from;
}

INLINE void store_any(void *to, bytes x, int n_ranks) {
    (void)n_ranks;
    *(bytes_anywhere *)to = x;
}

INLINE void store_sum_f32(void *to, bytes x, int n_ranks) {
    store_any(to, (bytes)one_nan(mean(x, n_ranks)), 1);
}

INLINE void store_sum_f64(void *to, bytes sum, int n_ranks) {
    long_reals x = n_ranks == 1 ? (long_reals)sum : (long_reals)sum / (double)n_ranks;
    store_any(to, pick((bytes)(x == x), (bytes)x, (bytes)((long_words){0} + 0x7ff8000000000000)), 1);
}

INLINE bytes load_any_f16(const void *from) {
    return (bytes)load_f16(from);
}

INLINE void store_any_f16(void *to, bytes x, int n_ranks) {
    (void)n_ranks;
    store_f16(to, (reals)x);
}

INLINE void store_sum_f16(void *to, bytes x, int n_ranks) {
    store_f16(to, one_nan(mean(x, n_ranks)));
}

INLINE bytes load_any_bf16(const void *from) {
    return (bytes)load_bf16(from);
}

INLINE void store_any_bf16(void *to, bytes x, int n_ranks) {
    (void)n_ranks;
    store_words16(to, round_bf16((reals)x));
}

/* round_bf16 with one NaN. */
INLINE void store_sum_bf16(void *to, bytes sum, int n_ranks) {
    reals x = mean(sum, n_ranks);
    words bits = (words)x;
    store_words16(to, (words)pick((bytes)(x == x), (bytes)(bits + 0x7fff + (bits >> 16 & 1)), nan_bits()) >> 16);
}

/* ---- joins ---- */

/* add, mul, min and max of a type. Of two numbers that compare equal, such as 0 and -0, min and max give the later one;
 * of NaNs the first. */
#define JOINS(NAME, TYPE)                                                                                              \
    typedef TYPE vector_##NAME __attribute__((vector_size(VECTOR_BYTES)));                                             \
    INLINE bytes add_##NAME(bytes a, bytes b) {                                                                        \
        return (bytes)((vector_##NAME)a + (vector_##NAME)b);                                                           \
    }                                                                                                                  \
    INLINE bytes mul_##NAME(bytes a, bytes b) {                                                                        \
        return (bytes)((vector_##NAME)a * (vector_##NAME)b);                                                           \
    }                                                                                                                  \
    INLINE bytes least_##NAME(bytes a, bytes b) {                                                                      \
        vector_##NAME x = (vector_##NAME)a;                                                                            \
        return pick((bytes)(x < (vector_##NAME)b) | (bytes)(x != x), a, b);                                            \
    }                                                                                                                  \
    INLINE bytes most_##NAME(bytes a, bytes b) {                                                                       \
        vector_##NAME x = (vector_##NAME)a;                                                                            \
        return pick((bytes)(x > (vector_##NAME)b) | (bytes)(x != x), a, b);                                            \
    }

INLINE bytes and_any(bytes a, bytes b) {
    return a & b;
}

INLINE bytes or_any(bytes a, bytes b) {
    return a | b;
}

INLINE bytes xor_any(bytes a, bytes b) {
    return a ^ b;
}

/* ---- functions by type ---- */

#define KERNEL(NAME, ITEM, STEP, OFTEN, LOAD, JOIN, STORE)                                                             \
    static void NAME(void *out, const void *const *in, int n_in, size_t count, int n_ranks) {                          \
        combine(out, in, n_in, count, n_ranks, ITEM, STEP, OFTEN, LOAD, JOIN, STORE);                                  \
    }

/* NAME is BASE on elements of MANY times the size; N_RANKS is the divisor that BASE gets. */
#define SAME(NAME, BASE, MANY, N_RANKS)                                                                                \
    static void NAME(void *out, const void *const *in, int n_in, size_t count, int n_ranks) {                          \
        (void)n_ranks;                                                                                                 \
        BASE(out, in, n_in, (MANY)*count, N_RANKS);                                                                    \
    }

/* avg_NAME takes n_ranks of 1 for a sum. STEP: bytes of a vector of LANES in memory; LANES: the type of its joins. */
#define REALS(NAME, ITEM, STEP, LANES, LOAD)                                                                           \
    KERNEL(avg_##NAME, ITEM, STEP, 1, LOAD, add_##LANES, store_sum_##NAME)                                             \
    SAME(sum_##NAME, avg_##NAME, 1, 1)                                                                                 \
    KERNEL(times_##NAME, ITEM, STEP, 0, LOAD, mul_##LANES, store_sum_##NAME)                                           \
    SAME(prod_##NAME, times_##NAME, 1, 1)

#define RANGE(NAME, ITEM, STEP, LANES, LOAD, STORE)                                                                    \
    KERNEL(min_##NAME, ITEM, STEP, 0, LOAD, least_##LANES, STORE)                                                      \
    KERNEL(max_##NAME, ITEM, STEP, 0, LOAD, most_##LANES, STORE)

/* Signed integers are summed and multiplied as unsigned ones, which wrap around. */
#define INTEGERS(BITS)                                                                                                 \
    JOINS(i##BITS, int##BITS##_t)                                                                                      \
    JOINS(u##BITS, uint##BITS##_t)                                                                                     \
    KERNEL(sum_u##BITS, (BITS) / 8, VECTOR_BYTES, 0, load_any, add_u##BITS, store_any)                                 \
    KERNEL(prod_u##BITS, (BITS) / 8, VECTOR_BYTES, 0, load_any, mul_u##BITS, store_any)                                \
    RANGE(i##BITS, (BITS) / 8, VECTOR_BYTES, i##BITS, load_any, store_any)                                             \
    RANGE(u##BITS, (BITS) / 8, VECTOR_BYTES, u##BITS, load_any, store_any)                                             \
    SAME(band_##BITS, band_bytes, (BITS) / 8, 1)                                                                       \
    SAME(bor_##BITS, bor_bytes, (BITS) / 8, 1)                                                                         \
    SAME(bxor_##BITS, bxor_bytes, (BITS) / 8, 1)

/* Pairs of TYPE: sums by part, products by the definition. */
#define COMPLEX(NAME, TYPE, PART)                                                                                      \
    SAME(sum_##NAME, avg_##PART, 2, 1)                                                                                 \
    SAME(avg_##NAME, avg_##PART, 2, n_ranks)                                                                           \
    static void prod_##NAME(void *out, const void *const *in, int n_in, size_t count, int n_ranks) {                   \
        (void)n_ranks;                                                                                                 \
        for (size_t j = 0; j < count; j++) {                                                                           \
            TYPE a[2], b[2];                                                                                           \
            memcpy(a, (const char *)in[0] + j * sizeof a, sizeof a);                                                   \
            for (int i = 1; i < n_in; i++) {                                                                           \
                memcpy(b, (const char *)in[i] + j * sizeof b, sizeof b);                                               \
                TYPE real = a[0] * b[0] - a[1] * b[1];                                                                 \
                a[1] = a[0] * b[1] + a[1] * b[0];                                                                      \
                a[0] = real;                                                                                           \
            }                                                                                                          \
            for (int k = 0; k < 2; k++) a[k] = a[k] == a[k] ? a[k] : (TYPE)__builtin_nan("");                          \
            memcpy((char *)out + j * sizeof a, a, sizeof a);                                                           \
        }                                                                                                              \
    }

JOINS(f32, float)
JOINS(f64, double)
REALS(f32, 4, VECTOR_BYTES, f32, load_any)
REALS(f64, 8, VECTOR_BYTES, f64, load_any)
REALS(f16, 2, VECTOR_BYTES / 2, f32, load_any_f16)
REALS(bf16, 2, VECTOR_BYTES / 2, f32, load_any_bf16)
RANGE(f32, 4, VECTOR_BYTES, f32, load_any, store_any)
RANGE(f64, 8, VECTOR_BYTES, f64, load_any, store_any)
RANGE(f16, 2, VECTOR_BYTES / 2, f32, load_any_f16, store_any_f16)
RANGE(bf16, 2, VECTOR_BYTES / 2, f32, load_any_bf16, store_any_bf16)
COMPLEX(c64, float, f32)
COMPLEX(c128, double, f64)
KERNEL(band_bytes, 1, VECTOR_BYTES, 0, load_any, and_any, store_any)
KERNEL(bor_bytes, 1, VECTOR_BYTES, 0, load_any, or_any, store_any)
KERNEL(bxor_bytes, 1, VECTOR_BYTES, 0, load_any, xor_any, store_any)
INTEGERS(8)
INTEGERS(16)
INTEGERS(32)
INTEGERS(64)

/* ---- the table ---- */

#define ROW_REAL(NAME)                                                                                                 \
    { sum_##NAME, avg_##NAME, min_##NAME, max_##NAME, prod_##NAME }
#define ROW_INTEGER(SIGN, BITS)                                                                                        \
    { sum_u##BITS, NULL, min_##SIGN##BITS, max_##SIGN##BITS, prod_u##BITS, band_##BITS, bor_##BITS, bxor_##BITS }
#define ROW_BOOL                                                                                                       \
    { bor_bytes, NULL, band_bytes, bor_bytes, band_bytes, band_bytes, bor_bytes, bxor_bytes }
#define ROW_COMPLEX(NAME)                                                                                              \
    { sum_##NAME, avg_##NAME, NULL, NULL, prod_##NAME }

/* In the order of hpc_dtype, then of hpc_element. */
#define COMBINE_TABLE                                                                                                  \
    {                                                                                                                  \
        {                                                                                                              \
            ROW_REAL(f32), ROW_REAL(f64), ROW_REAL(f16), ROW_REAL(bf16), ROW_INTEGER(i, 8), ROW_INTEGER(u, 8),         \
                ROW_INTEGER(i, 16), ROW_INTEGER(u, 16), ROW_INTEGER(i, 32), ROW_INTEGER(u, 32), ROW_INTEGER(i, 64),    \
                ROW_INTEGER(u, 64), ROW_BOOL, ROW_COMPLEX(c64), ROW_COMPLEX(c128)                                      \
        }                                                                                                              \
    }
