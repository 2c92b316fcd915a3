/* The sums of products, written once for all instruction sets. The file of an instruction set includes its lanes, and
 * defines TILE_ROWS and TILE_VECTORS (the rows and vectors of a tile of sums that its registers hold) and SUM_PAIRS
 * (how many pairs a sum along a row takes at once, at most 8). Then it includes this file.
 *
 * Pairs are taken in their order, in runs of one kind:
 *
 *   dense u and v     tiles, from packed panels of v and packed blocks of u
 *   sparse u          a list of entries for each row (factors_lists.h); sums are vectors along the row
 *   sparse v          a list for each column; sums are vectors of rows, and are transposed
 *   both sparse       a list for each row; products are added to their places one by one
 *
 * A product and its sum are rounded once, together. */
#include "kernel/half.h"

#include <string.h>

#define FACTORS_INLINE static inline __attribute__((always_inline))

typedef float stored __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));

enum { LANES = VECTOR_BYTES / sizeof(float), ROWS = TILE_ROWS, VECTORS = TILE_VECTORS, WIDE = VECTORS * LANES };
enum { LINE = 64, LINE_VALUES = LINE / sizeof(float) };
/* A vector counts as sparse if fewer than one in SPARSE of its elements has a value. Both vectors of a pair count as
 * sparse only if fewer than one in SPARSER has a value. Other vectors are multiplied faster as dense ones, zeroes
 * included. */
enum { SPARSE = 4, SPARSER = 12 };

/* How the weighted sum is used: added to the values at its place, subtracted from them, or written over them. */
typedef enum purpose { ADD, TAKE, SET } purpose;

static inline float value_at(const void *values, size_t i, int dtype) {
    if (dtype == HPC_F32) {
        float x;
        memcpy(&x, (const char *)values + i * sizeof x, sizeof x);
        return x;
    }
    uint16_t half;
    memcpy(&half, (const char *)values + i * sizeof half, sizeof half);
    return dtype == HPC_F16 ? hpc_from_f16(half) : hpc_from_bf16(half);
}

/* Converts n values to float32, beginning with value number `from`. */
FACTORS_INLINE void widen(float *to, const void *values, size_t from, size_t n, int dtype) {
    const uint16_t *halves = (const uint16_t *)values + from;
    size_t i = 0;
    if (dtype == HPC_F32) { /* by vectors, because the runs are short */
        const float *x = (const float *)values + from;
        for (; n - i >= LANES; i += LANES) *(stored *)(to + i) = *(const stored *)(x + i);
        for (; i < n; i++) to[i] = x[i];
        return;
    }
    for (; n - i >= LANES; i += LANES)
        *(stored *)(to + i) = dtype == HPC_F16 ? load_f16(halves + i) : load_bf16(halves + i);
    for (; i < n; i++) to[i] = value_at(values, from + i, dtype);
}

/* Multiplies n values by a weight, in float64. */
FACTORS_INLINE void weigh(float *to, size_t n, double weight) {
    typedef double doubles __attribute__((vector_size(2 * VECTOR_BYTES)));
    size_t i = 0;
    if (weight == 1) return;
    for (; n - i >= LANES; i += LANES) {
        const doubles x = __builtin_convertvector((reals) * (const stored *)(to + i), doubles);
        *(stored *)(to + i) = __builtin_convertvector(weight * x, reals);
    }
    for (; i < n; i++) to[i] = (float)(weight * (double)to[i]);
}

/* Returns the index of entry i. It is read only once, because the memory may change. */
static inline uint32_t index_at(const hpc_factor *f, size_t i, int wide) {
    if (f->indices == NULL) return (uint32_t)i;
    return wide ? ((const volatile uint32_t *)f->indices)[i] : ((const volatile uint16_t *)f->indices)[i];
}

/* Returns the number of the first entry whose index is `from` or more. */
static inline size_t first_from(const hpc_factor *f, uint32_t from, int wide) {
    size_t low = 0, high = f->n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (index_at(f, mid, wide) < from)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Writes n elements, from element `from` on, as float32, with zeroes between the values of a sparse vector. */
FACTORS_INLINE void values_of(float *to, const hpc_factor *f, size_t from, size_t n, int dtype, int wide) {
    if (f->indices == NULL) {
        widen(to, f->values, from, n, dtype);
        return;
    }
    memset(to, 0, n * sizeof *to);
    for (size_t i = first_from(f, (uint32_t)from, wide); i < f->n; i++) {
        const size_t at = index_at(f, i, wide) - (uint32_t)from;
        if (at >= n) break;
        to[at] = value_at(f->values, i, dtype);
    }
}

static inline float multiply_add_one(float a, float b, float c) {
    return multiply_add(a, (reals){b}, (reals){c})[0];
}

/* Subtracts rate times n sums from n values. */
FACTORS_INLINE void take_values(float *to, const float *sums, size_t n, float rate) {
    size_t d = 0;
    for (; n - d >= LANES; d += LANES)
        *(stored *)(to + d) = (reals) * (const stored *)(to + d) - rate * (reals) * (const stored *)(sums + d);
    for (; d < n; d++) to[d] -= rate * sums[d];
}

/* ---- dense u and v ------------------------------------------------------------------------------------------------
 */

/* PANEL: packed values of v in a panel; BLOCK: packed values of u in a block of rows. Both stay in the L2 cache. */
enum { SOON = 6, PANEL = 1 << 14, BLOCK = 24 << 10, DEEP = HPC_FACTOR_DENSE_PAIRS };

/* Returns the distance between two tiles of a panel: one vector more than a tile has, because at a distance of a power
 * of two all tiles would fall into the same cache sets. */
static inline size_t tile_values(size_t depth) {
    return (depth + 1) * WIDE;
}

/* Prefetches n values that will be packed soon. */
static inline void fetch(const hpc_factor *f, size_t from, size_t n, int dtype) {
    const size_t item = dtype == HPC_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *at = (const char *)f->values + from * item;
    if (f->indices != NULL) return;
    for (size_t byte = 0; byte < n * item; byte += LINE) __builtin_prefetch(at + byte);
}

/* Writes n columns of a sparse v, from column `from` on, tile after tile. Entry i is the first one in these columns.
 * Returns the number of the first entry after them. */
FACTORS_INLINE uint32_t scatter_v(float *to, const hpc_factor *v, uint32_t i, size_t depth, size_t from, size_t n,
                                  int dtype, int wide) {
    for (size_t t = 0; t < (n + WIDE - 1) / WIDE; t++) memset(to + t * tile_values(depth), 0, WIDE * sizeof *to);
    for (; i < v->n; i++) {
        const size_t at = index_at(v, i, wide) - (uint32_t)from;
        if (at >= n) break;
        to[at / WIDE * tile_values(depth) + at % WIDE] = value_at(v->values, i, dtype);
    }
    return i;
}

/* Packs n columns of each v, from column `from` on: tile after tile, and in a tile pair after pair, with zeroes after
 * the last column. entries[i] is the number of the first entry of a sparse v in these columns; it becomes the number of
 * the first entry after them. */
FACTORS_INLINE void pack_v(float *to, const hpc_factor_pair *pairs, size_t depth, size_t from, size_t n, int dtype,
                           int wide, uint32_t *entries) {
    const size_t whole = n / WIDE, left = n % WIDE;
    for (size_t k = 0; k < depth; k++) {
        float *at = to + k * WIDE;
        if (pairs[k].v.indices != NULL) {
            entries[k] = scatter_v(at, &pairs[k].v, entries[k], depth, from, n, dtype, wide);
            continue;
        }
        if (k + SOON < depth) fetch(&pairs[k + SOON].v, from, n, dtype);
        for (size_t t = 0; t < whole; t++, at += tile_values(depth))
            widen(at, pairs[k].v.values, from + t * WIDE, WIDE, dtype);
        if (left == 0) continue;
        widen(at, pairs[k].v.values, from + whole * WIDE, left, dtype);
        memset(at + left, 0, (WIDE - left) * sizeof *at);
    }
}

/* Packs n rows of each weighted u, from row `from` on, in the same order. */
FACTORS_INLINE void pack_u(float *to, const hpc_factor_pair *pairs, size_t depth, size_t from, size_t n, int dtype,
                           int wide) {
    enum { SOME = 64 * ROWS };
    float x[SOME + ROWS];
    for (size_t row = 0, some; row < n; row += some, to += some * depth) {
        some = n - row < SOME ? n - row : SOME;
        memset(x + some, 0, ROWS * sizeof *x);
        for (size_t k = 0; k < depth; k++) {
            if (k + SOON < depth) fetch(&pairs[k + SOON].u, from + row, some, dtype);
            values_of(x, &pairs[k].u, from + row, some, dtype, wide);
            weigh(x, some, pairs[k].weight);
            for (size_t i = 0; i < some; i += ROWS) memcpy(to + i * depth + k * ROWS, x + i, ROWS * sizeof *x);
        }
    }
}

/* Adds a tile's sums to the values at to[], or subtracts them. ahead: memory of a later tile, which is prefetched. */
FACTORS_INLINE void tile_of(purpose purpose, const float *u, const float *v, size_t depth, float *to, size_t stride,
                            float rate, const float *ahead) {
    reals s[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++)
            s[i][j] = purpose == TAKE ? (reals){0} : (reals) * (const stored *)(to + (size_t)i * stride + j * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) __builtin_prefetch(ahead + (size_t)i * stride, 1);
    for (size_t k = 0; k < depth; k++, u += ROWS, v += WIDE) {
        reals x[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) x[j] = (reals) * (const stored *)(v + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) s[i][j] = multiply_add(u[i], x[j], s[i][j]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) {
            stored *at = (stored *)(to + (size_t)i * stride + j * LANES);
            *at = purpose == TAKE ? (reals)*at - rate * s[i][j] : s[i][j];
        }
}

/* Computes a tile that reaches past the end of the part, in a copy that has room for a whole tile. */
static __attribute__((noinline)) void tile_at_end(purpose purpose, const float *u, const float *v, size_t depth,
                                                  float *to, size_t stride, float rate, size_t rows, size_t columns) {
    float whole[ROWS * WIDE] = {0};
    for (size_t i = 0; i < rows; i++) memcpy(whole + i * WIDE, to + i * stride, columns * sizeof *to);
    if (purpose == TAKE)
        tile_of(TAKE, u, v, depth, whole, WIDE, rate, whole);
    else
        tile_of(ADD, u, v, depth, whole, WIDE, rate, whole);
    for (size_t i = 0; i < rows; i++) memcpy(to + i * stride, whole + i * WIDE, columns * sizeof *to);
}

/* Multiplies a packed panel by a packed block. Prefetches some tiles ahead; at the end of a row of tiles, in the next
 * row. */
FACTORS_INLINE void panel_of(purpose purpose, const hpc_factor_part *p, size_t row, size_t rows, size_t column,
                             size_t columns, const float *u, const float *v, size_t depth, float rate) {
    const size_t stride = p->stride, ahead = 4 * WIDE;
    for (size_t i = 0; i < rows; i += ROWS, u += ROWS * depth) {
        float *to = p->to + (row + i) * stride + column;
        const float *panel = v;
        for (size_t d = 0; d < columns; d += WIDE, panel += tile_values(depth)) {
            if (rows - i < ROWS || columns - d < WIDE) {
                tile_at_end(purpose, u, panel, depth, to + d, stride, rate, rows - i < ROWS ? rows - i : ROWS,
                            columns - d < WIDE ? columns - d : WIDE);
                continue;
            }
            const float *next = d + ahead < columns ? to + d + ahead : to + ROWS * stride + (d + ahead - columns);
            tile_of(purpose, u, panel, depth, to + d, stride, rate, next);
        }
    }
}

FACTORS_INLINE void add_dense_of(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t depth,
                                 float rate, int dtype) {
    float u[BLOCK], v[PANEL];
    uint32_t entries[DEEP];
    const size_t wide = PANEL / tile_values(depth) * WIDE, tall = BLOCK / depth / ROWS * ROWS;
    for (size_t row = 0, rows; row < p->rows; row += rows) {
        rows = p->rows - row < tall ? p->rows - row : tall;
        pack_u(u, pairs, depth, p->row + row, rows, dtype, p->wide_rows);
        for (size_t k = 0; k < depth; k++)
            entries[k] = pairs[k].v.indices == NULL ? 0 : (uint32_t)first_from(&pairs[k].v, p->column, p->wide_columns);
        for (size_t column = 0, columns; column < p->columns; column += columns) {
            columns = p->columns - column < wide ? p->columns - column : wide;
            pack_v(v, pairs, depth, p->column + column, columns, dtype, p->wide_columns, entries);
            panel_of(purpose, p, row, rows, column, columns, u, v, depth, rate);
        }
    }
}

static void add_dense(const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n) {
    for (size_t k = 0, some; k < n; k += some) {
        some = n - k < DEEP ? n - k : DEEP;
        add_dense_of(ADD, p, pairs + k, some, 0, p->values);
    }
}

static void take_dense(const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n, float rate) {
    add_dense_of(TAKE, p, pairs, n, rate, p->values);
}

#include "kernel/factors_lists.h"

/* ---- runs of one kind ----------------------------------------------------------------------------------------------
 */

/* The number of values that some vectors have, and the number of their elements. */
typedef struct filling {
    uint64_t values, elements;
} filling;

static inline void fill(filling *of, const hpc_factor *f) {
    of->values += f->n;
    of->elements += f->indices != NULL ? f->length : f->n;
}

/* Returns which vectors of the pairs count as sparse if they have indices: bit 1 for all u, bit 2 for all v. The choice
 * is the same for all pairs; a choice for each pair would make short runs of pairs near the threshold. */
static int sparse_of(const hpc_factor_pair *pairs, size_t n) {
    filling u = {0, 0}, v = {0, 0};
    for (size_t k = 0; k < n; k++) fill(&u, &pairs[k].u), fill(&v, &pairs[k].v);
    const int both = u.values * SPARSER < u.elements && v.values * SPARSER < v.elements;
    const int of_u = u.values * SPARSE < u.elements, of_v = v.values * SPARSE < v.elements;
    if (both || !of_u || !of_v) return of_u + 2 * of_v;
    return (double)u.values * (double)v.elements < (double)v.values * (double)u.elements ? 1 : 2;
}

static inline int kind_of(const hpc_factor_pair *pair, int sparse) {
    return sparse & ((pair->u.indices != NULL) + 2 * (pair->v.indices != NULL));
}

static void add(const hpc_factor_part *part, const hpc_factor_pair *pairs, size_t n) {
    const int sparse = sparse_of(pairs, n);
    for (size_t k = 0, end; k < n && part->rows > 0 && part->columns > 0; k = end) {
        const int kind = kind_of(&pairs[k], sparse);
        for (end = k + 1; end < n && kind_of(&pairs[end], sparse) == kind;) end++;
        if (kind == 0)
            add_dense(part, pairs + k, end - k);
        else if (kind == 1)
            add_by_rows(ADD, part, pairs + k, end - k, 0);
        else if (kind == 2)
            add_by_columns(ADD, part, pairs + k, end - k, 0);
        else
            add_points(ADD, part, pairs + k, end - k, 0);
    }
    fold_end(0);
}

static int can_take(const hpc_factor_pair *pairs, size_t n) {
    const int sparse = sparse_of(pairs, n), kind = n > 0 ? kind_of(&pairs[0], sparse) : 0;
    for (size_t k = 1; k < n; k++)
        if (kind_of(&pairs[k], sparse) != kind) return 0;
    return kind != 0 || n <= HPC_FACTOR_DENSE_PAIRS;
}

static void take(const hpc_factor_part *part, const hpc_factor_pair *pairs, size_t n, float rate) {
    const int kind = n > 0 ? kind_of(&pairs[0], sparse_of(pairs, n)) : 0;
    if (n == 0 || part->rows == 0 || part->columns == 0) return;
    if (kind == 0)
        take_dense(part, pairs, n, rate);
    else if (kind == 1)
        add_by_rows(TAKE, part, pairs, n, rate);
    else if (kind == 2)
        add_by_columns(TAKE, part, pairs, n, rate);
    else
        add_points(TAKE, part, pairs, n, rate);
    fold_end(0);
}

static void take_sum(const hpc_factor_part *part, const float *sum, size_t stride, float rate) {
    for (size_t j = 0; j < part->rows; j++)
        take_values(part->to + j * part->stride, sum + j * stride, part->columns, rate);
    fold_end(0);
}

enum { DOT_SUMS = 16 };

/* ---- the rest ------------------------------------------------------------------------------------------------------
 */

static size_t count(const float *values, size_t n) {
    typedef int32_t ints __attribute__((vector_size(VECTOR_BYTES)));
    enum { MOST = 1 << 24 }; /* a lane's count could overflow after this */
    size_t some = 0, i = 0;
    while (n - i >= LANES) {
        ints zeros = {0};
        const size_t end = n - i < MOST ? n : i + MOST, begin = i;
        for (; end - i >= LANES; i += LANES) zeros += (reals) * (const stored *)(values + i) == 0;
        some += i - begin;
        for (int lane = 0; lane < (int)LANES; lane++) some -= (size_t)-zeros[lane];
    }
    for (; i < n; i++) some += values[i] != 0;
    fold_end(0);
    return some;
}

/* Sums products of dense float32 vectors in float64, with half as many lanes. */
static size_t dot_floats(double *sums, const float *a, const float *b, size_t n) {
    typedef float floats __attribute__((vector_size(VECTOR_BYTES / 2), aligned(sizeof(float)), may_alias));
    typedef double doubles __attribute__((vector_size(VECTOR_BYTES)));
    enum { SOME = VECTOR_BYTES / sizeof(double), PARTS = DOT_SUMS / SOME };
    doubles s[PARTS] = {{0}};
    size_t i = 0;
    for (; n - i >= DOT_SUMS; i += DOT_SUMS)
#pragma GCC unroll 8
        for (size_t j = 0; j < PARTS; j++)
            s[j] += __builtin_convertvector(*(const floats *)(a + i + j * SOME), doubles) *
                    __builtin_convertvector(*(const floats *)(b + i + j * SOME), doubles);
    for (size_t j = 0; j < PARTS; j++)
        for (size_t lane = 0; lane < SOME; lane++) sums[j * SOME + lane] = s[j][lane];
    return i;
}

static double dot(const hpc_factor *a, const hpc_factor *b, size_t n, int values, int wide) {
    double sums[DOT_SUMS] = {0};
    if (a->indices == NULL && b->indices == NULL) {
        float x[DOT_SUMS], y[DOT_SUMS];
        size_t i = values == HPC_F32 ? dot_floats(sums, a->values, b->values, n) : 0;
        for (; n - i >= DOT_SUMS; i += DOT_SUMS) {
            widen(x, a->values, i, DOT_SUMS, values);
            widen(y, b->values, i, DOT_SUMS, values);
            for (int lane = 0; lane < DOT_SUMS; lane++) sums[lane] += (double)x[lane] * (double)y[lane];
        }
        for (; i < n; i++)
            sums[i % DOT_SUMS] += (double)value_at(a->values, i, values) * (double)value_at(b->values, i, values);
    } else if ((uint64_t)a->n * SPARSER >= n && (uint64_t)b->n * SPARSER >= n) {
        enum { SOME = 1 << 11 };
        float x[SOME], y[SOME];
        for (size_t from = 0, some; from < n; from += some) {
            double part[DOT_SUMS] = {0};
            some = n - from < SOME ? n - from : SOME;
            values_of(x, a, from, some, values, wide);
            values_of(y, b, from, some, values, wide);
            size_t i = dot_floats(part, x, y, some);
            for (; i < some; i++) part[i % DOT_SUMS] += (double)x[i] * (double)y[i];
            for (int lane = 0; lane < DOT_SUMS; lane++) sums[lane] += part[lane];
        }
    } else {
        for (size_t i = 0, j = 0; i < a->n && j < b->n;) {
            const uint32_t x = index_at(a, i, wide), y = index_at(b, j, wide);
            if (x == y) sums[0] += (double)value_at(a->values, i, values) * (double)value_at(b->values, j, values);
            i += x <= y;
            j += y <= x;
        }
    }
    fold_end(0);
    for (int half = DOT_SUMS / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) sums[lane] += sums[lane + half];
    return sums[0];
}
