/* The products of pairs of which one vector is sparse, or both: lists of what a row, or a column, takes of all pairs. */

/* The place of entry i: read once, as its memory may change. */
static inline uint32_t index_at(const hpc_factor *f, size_t i, int wide) {
    if (f->indices == NULL) return (uint32_t)i;
    return wide ? ((const volatile uint32_t *)f->indices)[i] : ((const volatile uint16_t *)f->indices)[i];
}

/* The first entry at from or behind it. */
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

enum { ENTRIES = 1 << 13, LISTS = 1 << 10 };

typedef struct entry {
    float value; /* of u, weighted, or of v */
    uint32_t pair;
} entry;

/* The entries of some rows, or columns, in the order of pairs: those of number i from starts[i] to ends[i]. */
typedef struct lists {
    uint32_t from, n;
    uint32_t starts[LISTS + 1], ends[LISTS];
    entry entries[ENTRIES];
} lists;

/* Makes the lists of so many from number from on as there is room for, at most n. What a piece says when it is read
 * again may be something else: the room of a list bounds it. */
static void make_lists(lists *l, const hpc_factor_pair *pairs, size_t n_pairs, int of_rows, uint32_t from, uint32_t n,
                       int dtype, int wide) {
    l->from = from;
    l->n = n < LISTS ? n : LISTS;
    memset(l->starts, 0, (l->n + 1) * sizeof *l->starts);
    for (size_t k = 0; k < n_pairs; k++) {
        const hpc_factor *f = of_rows ? &pairs[k].u : &pairs[k].v;
        for (size_t i = first_from(f, from, wide); i < f->n; i++) {
            const uint32_t at = index_at(f, i, wide) - from;
            if (at >= l->n) break;
            l->starts[at + 1]++;
        }
    }
    for (uint32_t i = 0; i < l->n; i++) {
        l->starts[i + 1] += l->starts[i];
        if (l->starts[i + 1] <= ENTRIES) continue;
        if (i == 0) l->starts[1] = ENTRIES;
        l->n = i == 0 ? 1 : i;
    }
    memcpy(l->ends, l->starts, l->n * sizeof *l->ends);
    for (size_t k = 0; k < n_pairs; k++) {
        const hpc_factor *f = of_rows ? &pairs[k].u : &pairs[k].v;
        for (size_t i = first_from(f, from, wide); i < f->n; i++) {
            const uint32_t at = index_at(f, i, wide) - from;
            if (at >= l->n) break;
            if (l->ends[at] == l->starts[at + 1]) continue;
            const float value = value_at(f->values, i, dtype);
            l->entries[l->ends[at]++] =
                (entry){of_rows ? (float)(pairs[k].weight * (double)value) : value, (uint32_t)k};
        }
    }
}

/* ---- sparse u ------------------------------------------------------------------------------------------------------ */

enum { NEAR = 1 << 16, PACKED = 1 << 14 }; /* values of v that a second cache may hold; of those that are packed */

/* n vectors of a row, from element d on. */
FACTORS_INLINE void sum_along(purpose purpose, int n, float *to, const entry *e, const entry *end,
                              const float *const *v, size_t d, float rate) {
    reals s[8];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) s[i] = purpose == TAKE ? (reals){0} : (reals) * (const vector *)(to + d + i * LANES);
    for (; e < end; e++) {
        const float *x = v[e->pair] + d;
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) s[i] += e->value * (reals) * (const vector *)(x + i * LANES);
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        vector *at = (vector *)(to + d + i * LANES);
        *at = purpose == TAKE ? (reals)*at - rate * s[i] : s[i];
    }
}

FACTORS_INLINE void add_row(purpose purpose, float *to, size_t n, const entry *e, const entry *end,
                            const float *const *v, float rate) {
    size_t d = 0;
    for (; n - d >= 8 * LANES; d += 8 * LANES) sum_along(purpose, 8, to, e, end, v, d, rate);
    for (; n - d >= LANES; d += LANES) sum_along(purpose, 1, to, e, end, v, d, rate);
    for (; d < n; d++) {
        float s = purpose == TAKE ? 0 : to[d];
        for (const entry *at = e; at < end; at++) s += at->value * v[at->pair][d];
        to[d] = purpose == TAKE ? to[d] - rate * s : s;
    }
}

/* The next row that has entries, from number i on. */
static inline uint32_t next_of(const lists *l, uint32_t i) {
    while (i < l->n && l->starts[i] == l->ends[i]) i++;
    return i;
}

FACTORS_INLINE void add_by_rows_of(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n,
                                   float rate) {
    lists l;
    const float *v[HPC_FACTOR_PAIRS];
    float packed[PACKED];
    const int in_place = p->values == HPC_F32;
    const size_t wide = (in_place ? NEAR : PACKED) / n / 32 * 32;
    for (uint32_t row = 0; row < p->rows; row += l.n) {
        make_lists(&l, pairs, n, 1, p->row + row, p->rows - row, p->values, p->wide_rows);
        for (size_t column = 0, columns; column < p->columns; column += columns) {
            columns = p->columns - column < wide ? p->columns - column : wide;
            for (size_t k = 0; k < n; k++) {
                v[k] = in_place ? (const float *)pairs[k].v.values + p->column + column : packed + k * wide;
                if (!in_place) widen(packed + k * wide, pairs[k].v.values, p->column + column, columns, p->values);
            }
            for (uint32_t i = next_of(&l, 0), next; i < l.n; i = next) {
                float *to = p->to + (row + i) * p->stride + column;
                next = next_of(&l, i + 1);
                if (next < l.n)
                    for (size_t d = 0; d < columns; d += LINE_VALUES)
                        __builtin_prefetch(p->to + (row + next) * p->stride + column + d, 1);
                add_row(purpose, to, columns, l.entries + l.starts[i], l.entries + l.ends[i], v, rate);
            }
        }
    }
}

static void add_by_rows(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n, float rate) {
    if (purpose == TAKE)
        add_by_rows_of(TAKE, p, pairs, n, rate);
    else
        add_by_rows_of(ADD, p, pairs, n, rate);
}

/* ---- sparse v ------------------------------------------------------------------------------------------------------ */

/* Sums of a group of columns are made column by column, as vectors of rows, and turned. */
enum { GROUP = 16, TALL = 64 };

#if defined(__AVX2__)

/* The 8 x 8 elements at from, turned. */
static inline void turn8(const float *from, size_t stride, float *to, size_t to_stride) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from + (size_t)i * stride);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + (size_t)i * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (size_t)(i + 4) * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

#else

static inline void turn8(const float *from, size_t stride, float *to, size_t to_stride) {
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 0; j < 8; j++) to[j * to_stride + i] = from[i * stride + j];
}

#endif

/* Weighted rows of each u: TALL of each pair, 0 behind the last row. */
static void pack_columns(float *to, const hpc_factor_pair *pairs, size_t n, size_t from, size_t rows, size_t tall,
                         int dtype) {
    for (size_t k = 0; k < n; k++, to += tall) {
        const double weight = pairs[k].weight;
        widen(to, pairs[k].u.values, from, rows, dtype);
        if (weight != 1)
            for (size_t i = 0; i < rows; i++) to[i] = (float)(weight * (double)to[i]);
        memset(to + rows, 0, (tall - rows) * sizeof *to);
    }
}

/* The sums of one column: tall of them, a multiple of 32. */
FACTORS_INLINE void sum_down(float *sums, const entry *e, const entry *end, const float *u, size_t tall) {
    enum { SOME = 32 / LANES }; /* vectors */
    for (size_t i = 0; i < tall; i += SOME * LANES) {
        reals s[SOME];
#pragma GCC unroll 8
        for (int j = 0; j < (int)SOME; j++) s[j] = (reals) * (const vector *)(sums + i + (size_t)j * LANES);
        for (const entry *at = e; at < end; at++) {
            const float *x = u + at->pair * tall + i;
#pragma GCC unroll 8
            for (int j = 0; j < (int)SOME; j++) s[j] += at->value * (reals) * (const vector *)(x + j * LANES);
        }
#pragma GCC unroll 8
        for (int j = 0; j < (int)SOME; j++) *(vector *)(sums + i + (size_t)j * LANES) = s[j];
    }
}

/* A group of columns of some rows: to its sums, column by column, and back. */
FACTORS_INLINE void take_group(float *sums, const float *from, size_t stride, size_t rows, size_t columns, size_t tall) {
    for (size_t i = 0; i < rows; i += 8)
        for (size_t d = 0; d < columns; d += 8) {
            if (rows - i >= 8 && columns - d >= 8) {
                turn8(from + i * stride + d, stride, sums + d * tall + i, tall);
                continue;
            }
            for (size_t a = i; a < rows && a < i + 8; a++)
                for (size_t b = d; b < columns && b < d + 8; b++) sums[b * tall + a] = from[a * stride + b];
        }
}

FACTORS_INLINE void give_group(purpose purpose, const float *sums, float *to, size_t stride, size_t rows,
                               size_t columns, size_t tall, float rate) {
    float turned[8 * GROUP];
    for (size_t i = 0; i < rows; i += 8) {
        for (size_t d = 0; d < GROUP; d += 8) turn8(sums + d * tall + i, tall, turned + d, GROUP);
        for (size_t a = 0; a < 8 && i + a < rows; a++) {
            float *row = to + (i + a) * stride;
            const float *its = turned + a * GROUP;
            if (columns < GROUP) {
                for (size_t d = 0; d < columns; d++) row[d] = purpose == TAKE ? row[d] - rate * its[d] : its[d];
                continue;
            }
#pragma GCC unroll 4
            for (size_t d = 0; d < GROUP; d += LANES)
                *(vector *)(row + d) = purpose == TAKE ? (reals) * (const vector *)(row + d) - rate * (reals) *
                                                                                             (const vector *)(its + d)
                                                       : (reals) * (const vector *)(its + d);
        }
    }
}

FACTORS_INLINE void add_by_columns_of(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs,
                                      size_t n, float rate) {
    lists l;
    float u[PACKED], sums[GROUP * TALL];
    const size_t tall = PACKED / n < TALL ? PACKED / n / 32 * 32 : TALL;
    for (uint32_t column = 0; column < p->columns; column += l.n) {
        make_lists(&l, pairs, n, 0, p->column + column, p->columns - column, p->values, p->wide_columns);
        if (l.n > GROUP && l.n < p->columns - column) l.n = l.n / GROUP * GROUP;
        for (size_t row = 0, rows; row < p->rows; row += rows) {
            rows = p->rows - row < tall ? p->rows - row : tall;
            pack_columns(u, pairs, n, p->row + row, rows, tall, p->values);
            for (uint32_t d = next_of(&l, 0) / GROUP * GROUP; d < l.n; d = next_of(&l, d + GROUP) / GROUP * GROUP) {
                const size_t columns = l.n - d < GROUP ? l.n - d : GROUP;
                float *to = p->to + row * p->stride + column + d;
                if (purpose == TAKE)
                    memset(sums, 0, GROUP * tall * sizeof *sums);
                else
                    take_group(sums, to, p->stride, rows, columns, tall);
                for (size_t i = 0; i < columns; i++)
                    sum_down(sums + i * tall, l.entries + l.starts[d + i], l.entries + l.ends[d + i], u, tall);
                for (size_t i = 0; i < rows; i++) __builtin_prefetch(to + i * p->stride + GROUP, 1);
                give_group(purpose, sums, to, p->stride, rows, columns, tall, rate);
            }
        }
    }
}

static void add_by_columns(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n,
                           float rate) {
    if (purpose == TAKE)
        add_by_columns_of(TAKE, p, pairs, n, rate);
    else
        add_by_columns_of(ADD, p, pairs, n, rate);
}

/* ---- both sparse --------------------------------------------------------------------------------------------------- */

enum { SPAN = 1 << 12 }; /* columns of a row of sums */

/* Adds wu times the entries of v in columns from to from + n to sums; or (take) takes rate times the sums there from
 * to, and sets them to 0. */
FACTORS_INLINE void each_point(const hpc_factor *v, uint32_t from, uint32_t n, float wu, float *sums, int dtype,
                               int wide) {
    for (size_t i = from > 0 ? first_from(v, from, wide) : 0; i < v->n; i++) {
        const uint32_t d = index_at(v, i, wide) - from;
        if (d >= n) return;
        sums[d] += wu * value_at(v->values, i, dtype);
    }
}

FACTORS_INLINE void take_points(const hpc_factor *v, uint32_t from, uint32_t n, float rate, float *sums, float *to,
                                int wide) {
    for (size_t i = from > 0 ? first_from(v, from, wide) : 0; i < v->n; i++) {
        const uint32_t d = index_at(v, i, wide) - from;
        if (d >= n) return;
        to[d] -= rate * sums[d];
        sums[d] = 0;
    }
}

/* Of columns that several v have, the second one to take finds a sum of 0. */
static void add_points(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n, float rate) {
    lists l;
    float sums[SPAN] = {0};
    for (uint32_t row = 0; row < p->rows; row += l.n) {
        make_lists(&l, pairs, n, 1, p->row + row, p->rows - row, p->values, p->wide_rows);
        for (uint32_t i = next_of(&l, 0); i < l.n; i = next_of(&l, i + 1))
            for (uint32_t column = 0, columns; column < p->columns; column += columns) {
                const entry *begin = l.entries + l.starts[i], *end = l.entries + l.ends[i];
                float *to = p->to + (row + i) * p->stride + column;
                columns = p->columns - column < SPAN ? p->columns - column : SPAN;
                for (const entry *e = begin; e < end; e++)
                    each_point(&pairs[e->pair].v, p->column + column, columns, e->value, purpose == TAKE ? sums : to,
                               p->values, p->wide_columns);
                for (const entry *e = begin; e < end && purpose == TAKE; e++)
                    take_points(&pairs[e->pair].v, p->column + column, columns, rate, sums, to, p->wide_columns);
            }
    }
}
