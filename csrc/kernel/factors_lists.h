/* Products of pairs with one or two sparse vectors: for each row, or column, a list of the entries of all pairs. */

enum { ENTRIES = 1 << 13, LISTS = 1 << 11 };

typedef struct entry {
    float value; /* of u, times the weight; or of v */
    uint16_t pair, list;
} entry;

/* The entries of some rows, or columns, in the order of pairs: list i has entries starts[i] to ends[i]. */
typedef struct entry_lists {
    uint32_t from, n;
    uint32_t starts[LISTS + 1], ends[LISTS];
    entry entries[ENTRIES];
} entry_lists;

/* Makes the lists of at most n rows or columns, from number `from` on, and only as many lists as fit. A piece may
 * differ when it is read again, so each list takes no more entries than were counted. */
static void make_lists(entry_lists *l, const hpc_factor_pair *pairs, size_t n_pairs, int of_rows, uint32_t from,
                       uint32_t n, int dtype, int wide) {
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
                (entry){of_rows ? (float)(pairs[k].weight * (double)value) : value, (uint16_t)k, (uint16_t)at};
        }
    }
    for (uint32_t i = 0; i < l->n; i++)
        while (l->ends[i] < l->starts[i + 1]) l->entries[l->ends[i]++] = (entry){0, 0, (uint16_t)i};
}

/* ---- sparse u ------------------------------------------------------------------------------------------------------
 */

/* NEAR: values of v that the L2 cache can hold; PACKED: the same for a packed v; SPAN: the most columns at once */
enum { NEAR = 1 << 16, PACKED = 1 << 14, SPAN = 1 << 11, FEW = SUM_PAIRS };

/* Sums n vectors, weighted, for each of count elements. n is a constant, so the loop over elements has no inner
 * loop. */
FACTORS_INLINE void sum_few(purpose purpose, int n, float *to, size_t count, const entry *e, const float *const *v,
                            float rate, const float *ahead) {
    const float *x[FEW];
    float value[FEW];
    size_t d = 0;
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) x[i] = v[e[i].pair], value[i] = e[i].value;
    for (; count - d >= LANES; d += LANES) {
        stored *at = (stored *)(to + d);
        reals s = purpose == ADD ? (reals)*at : (reals){0};
        if (ahead != NULL && d % LINE_VALUES == 0) __builtin_prefetch(ahead + d, 1);
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) s = multiply_add(value[i], (reals) * (const stored *)(x[i] + d), s);
        *at = purpose == TAKE ? (reals)*at - rate * s : s;
    }
    for (; d < count; d++) {
        float s = purpose == ADD ? to[d] : 0;
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) s = multiply_add_one(value[i], x[i][d], s);
        to[d] = purpose == TAKE ? to[d] - rate * s : s;
    }
}

/* Does the same for a variable n, at most FEW. */
FACTORS_INLINE void sum_some(purpose purpose, int n, float *to, size_t count, const entry *e, const float *const *v,
                             float rate, const float *ahead) {
#define SUM_OF(some)                                                                                                   \
    case some:                                                                                                         \
        if (some <= FEW) sum_few(purpose, some, to, count, e, v, rate, ahead);                                         \
        break;
    switch (n) {
    case 0:
        if (purpose == SET) memset(to, 0, count * sizeof *to);
        break;
        SUM_OF(1)
        SUM_OF(2)
        SUM_OF(3)
        SUM_OF(4)
        SUM_OF(5)
        SUM_OF(6)
        SUM_OF(7)
        SUM_OF(8)
    default:
        break;
    }
#undef SUM_OF
}

/* Does the same for any number of entries. A sum of more than FEW entries is made in several steps, and used after the
 * last. */
FACTORS_INLINE void sum_list(purpose purpose, float *to, size_t count, const entry *e, const entry *end,
                             const float *const *v, float rate, const float *ahead) {
    float sums[SPAN];
    float *at = to;
    if (end - e <= FEW) {
        sum_some(purpose, (int)(end - e), to, count, e, v, rate, ahead);
        return;
    }
    if (purpose == TAKE) at = sums;
    if (purpose != ADD) {
        sum_few(SET, FEW, at, count, e, v, 0, ahead);
        e += FEW;
    }
    for (; end - e >= FEW; e += FEW) sum_few(ADD, FEW, at, count, e, v, 0, NULL);
    sum_some(ADD, (int)(end - e), at, count, e, v, 0, NULL);
    if (purpose == TAKE) take_values(to, sums, count, rate);
}

/* Returns the next row that has entries, at number i or after it. */
static inline uint32_t next_of(const entry_lists *l, uint32_t i) {
    while (i < l->n && l->starts[i] == l->ends[i]) i++;
    return i;
}

FACTORS_INLINE void add_by_rows_of(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n,
                                   float rate) {
    entry_lists l;
    const float *v[HPC_FACTOR_PAIRS];
    float packed[PACKED];
    int in_place = p->values == HPC_F32;
    for (size_t k = 0; k < n; k++) in_place &= pairs[k].v.indices == NULL;
    const size_t fit = (in_place ? NEAR : PACKED) / n / 32 * 32, wide = fit < SPAN ? fit : SPAN;
    for (uint32_t row = 0; row < p->rows; row += l.n) {
        make_lists(&l, pairs, n, 1, p->row + row, p->rows - row, p->values, p->wide_rows);
        for (size_t column = 0, columns; column < p->columns; column += columns) {
            columns = p->columns - column < wide ? p->columns - column : wide;
            for (size_t k = 0; k < n; k++) {
                v[k] = in_place ? (const float *)pairs[k].v.values + p->column + column : packed + k * wide;
                if (!in_place)
                    values_of(packed + k * wide, &pairs[k].v, p->column + column, columns, p->values, p->wide_columns);
            }
            for (uint32_t i = next_of(&l, 0), next; i < l.n; i = next) {
                float *to = p->to + (row + i) * p->stride + column;
                next = next_of(&l, i + 1);
                const float *ahead = p->to + (row + next) * p->stride + column;
                sum_list(purpose, to, columns, l.entries + l.starts[i], l.entries + l.ends[i], v, rate, ahead);
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

/* ---- sparse v ------------------------------------------------------------------------------------------------------
 */

/* These sums are made column by column, as vectors of rows, and then transposed. TALLEST: the most rows at once;
 * WEIGHED: the most values that all u have in these rows, which must fit into the L1 cache; SUMS: the most sums of
 * these rows */
enum { GROUP = 16, TALLEST = 64, WEIGHED = 1 << 13, SUMS = 1 << 11 };

/* Reorders the entries of `together` lists at a time: the first entry of each list, then the second of each, and so on.
 * So a sum is stored before its next product is added. Numbers of pairs and of lists become offsets, multiples of the
 * argument tall. */
FACTORS_INLINE void interleave(entry *to, const entry_lists *l, uint32_t together, size_t tall) {
    for (uint32_t from = 0; from < l->n; from += together) {
        const uint32_t end = l->n - from < together ? l->n : from + together;
        uint32_t left[SUMS / (TALLEST / 4)], n = 0;
        for (uint32_t i = from; i < end; i++)
            if (l->starts[i] < l->starts[i + 1]) left[n++] = i;
        for (uint32_t turn = 0, still; n > 0; turn++, n = still) {
            still = 0;
            for (uint32_t i = 0; i < n; i++) {
                const entry *e = &l->entries[l->starts[left[i]] + turn];
                *to++ = (entry){e->value, (uint16_t)(e->pair * tall), (uint16_t)((e->list - from) * tall)};
                if (l->starts[left[i]] + turn + 1 < l->starts[left[i] + 1]) left[still++] = left[i];
            }
        }
    }
}

#if defined(__AVX2__)

/* Transposes the 8 x 8 elements at from. */
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

/* Writes the rows of each u times its weight, `tall` values for each pair, with zeroes after the last row. */
FACTORS_INLINE void weigh_rows(float *to, const hpc_factor_pair *pairs, size_t n, size_t from, size_t rows, size_t tall,
                               int dtype, int wide) {
    for (size_t k = 0; k < n; k++, to += tall) {
        const double weight = pairs[k].weight;
        if (pairs[k].u.indices == NULL && pairs[k].u.n - from > 2 * tall)
            __builtin_prefetch((const char *)pairs[k].u.values + (from + tall) * (dtype == HPC_F32 ? 4 : 2), 0, 2);
        if (rows == tall) { /* a constant */
            values_of(to, &pairs[k].u, from, tall, dtype, wide);
            weigh(to, tall, weight);
        } else {
            values_of(to, &pairs[k].u, from, rows, dtype, wide);
            weigh(to, rows, weight);
            memset(to + rows, 0, (tall - rows) * sizeof *to);
        }
    }
}

/* Adds the products of all entries to sums, `tall` of them for each column. The sums are kept in memory, not in
 * registers, because a column has few entries. */
FACTORS_INLINE void sum_columns(float *sums, const entry *e, const entry *end, const float *u, size_t tall) {
    for (; e < end; e++) {
        float *to = sums + e->list;
        const float *x = u + e->pair;
        const float value = e->value;
#pragma GCC unroll 16
        for (size_t i = 0; i < tall; i += LANES)
            *(stored *)(to + i) =
                multiply_add(value, (reals) * (const stored *)(x + i), (reals) * (const stored *)(to + i));
    }
}

/* Transposes rows in memory to sums by columns; give_columns does the reverse. */
FACTORS_INLINE void take_columns(float *sums, const float *from, size_t stride, size_t rows, size_t columns,
                                 size_t tall) {
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

FACTORS_INLINE void give_columns(purpose purpose, const float *sums, float *to, size_t stride, size_t rows,
                                 size_t columns, size_t tall, float rate) {
    float turned[8 * GROUP];
    for (size_t i = 0; i < rows; i += 8)
        for (size_t from = 0; from < columns; from += GROUP) {
            for (size_t d = 0; d < GROUP; d += 8) turn8(sums + (from + d) * tall + i, tall, turned + d, GROUP);
            for (size_t a = 0; a < 8 && i + a < rows; a++) {
                float *row = to + (i + a) * stride + from;
                const float *its = turned + a * GROUP;
                if (columns - from < GROUP) {
                    for (size_t d = 0; d < columns - from; d++)
                        row[d] = purpose == TAKE ? row[d] - rate * its[d] : its[d];
                    continue;
                }
#pragma GCC unroll 4
                for (size_t d = 0; d < GROUP; d += LANES) {
                    const reals s = (reals) * (const stored *)(its + d);
                    stored *at = (stored *)(row + d);
                    *at = purpose == TAKE ? (reals)*at - rate * s : s;
                }
            }
        }
}

/* Adds the products of some rows and columns. */
FACTORS_INLINE void add_columns(purpose purpose, float *to, size_t stride, size_t rows, size_t columns, const entry *e,
                                const entry *end, const float *u, size_t tall, float rate) {
    float sums[SUMS];
    const size_t some = (size_t)(end - e) / rows;
    if (purpose == TAKE || columns % GROUP != 0 || rows < tall)
        memset(sums, 0, (columns + GROUP - 1) / GROUP * GROUP * tall * sizeof *sums);
    if (purpose == ADD) take_columns(sums, to, stride, rows, columns, tall);
    for (size_t i = 0; i < rows; i++, e += some) { /* prefetches while it sums */
        for (size_t d = 0; d < columns; d += LINE_VALUES) __builtin_prefetch(to + i * stride + d, 1);
        sum_columns(sums, e, i + 1 < rows ? e + some : end, u, tall);
    }
    give_columns(purpose, sums, to, stride, rows, columns, tall, rate);
}

FACTORS_INLINE void add_by_columns_of(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n,
                                      float rate, size_t tall) {
    entry_lists l;
    entry entries[ENTRIES];
    float u[WEIGHED];
    const uint32_t together = (uint32_t)(SUMS / tall);
    for (uint32_t column = 0; column < p->columns; column += l.n) {
        make_lists(&l, pairs, n, 0, p->column + column, p->columns - column, p->values, p->wide_columns);
        if (l.starts[l.n] == 0) continue;
        interleave(entries, &l, together, tall);
        for (size_t row = 0, rows; row < p->rows; row += rows) {
            rows = p->rows - row < tall ? p->rows - row : tall;
            weigh_rows(u, pairs, n, p->row + row, rows, tall, p->values, p->wide_rows);
            for (uint32_t d = 0; d < l.n; d += together) {
                const uint32_t end = l.n - d < together ? l.n : d + together;
                if (l.starts[d] == l.starts[end]) continue;
                add_columns(purpose, p->to + row * p->stride + column + d, p->stride, rows, end - d,
                            entries + l.starts[d], entries + l.starts[end], u, tall, rate);
            }
        }
    }
}

FACTORS_INLINE void add_by_columns_tall(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs,
                                        size_t n, float rate) {
    if (n <= WEIGHED / 2 / TALLEST)
        add_by_columns_of(purpose, p, pairs, n, rate, TALLEST);
    else if (n <= WEIGHED / TALLEST)
        add_by_columns_of(purpose, p, pairs, n, rate, TALLEST / 2);
    else
        add_by_columns_of(purpose, p, pairs, n, rate, TALLEST / 4);
}

static void add_by_columns(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n,
                           float rate) {
    if (purpose == TAKE)
        add_by_columns_tall(TAKE, p, pairs, n, rate);
    else
        add_by_columns_tall(ADD, p, pairs, n, rate);
}

/* ---- both sparse ---------------------------------------------------------------------------------------------------
 */

/* each_point adds wu times the entries of v in n columns, from column `from` on, to sums. take_points subtracts rate
 * times these sums from the values at to[], and sets the sums to 0. */
FACTORS_INLINE void each_point(const hpc_factor *v, uint32_t from, uint32_t n, float wu, float *sums, int dtype,
                               int wide) {
    for (size_t i = from > 0 ? first_from(v, from, wide) : 0; i < v->n; i++) {
        const uint32_t d = index_at(v, i, wide) - from;
        if (d >= n) return;
        sums[d] = multiply_add_one(wu, value_at(v->values, i, dtype), sums[d]);
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

/* If several v have an entry in a column, the first subtracts the column's sum and sets it to 0 for the others. */
static void add_points(purpose purpose, const hpc_factor_part *p, const hpc_factor_pair *pairs, size_t n, float rate) {
    entry_lists l;
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
