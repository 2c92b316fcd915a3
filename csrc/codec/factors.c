/* A matrix as pairs of vectors, whose products u v^T add up to it (SFB, section 2). A piece of n elements, some rows of
 * the matrix, has these rows of each u and all of each v; or it has the sum itself, if the sum takes fewer bytes. There
 * is no residual. */
#include "codec/factors.h"

#include <math.h>
#include <string.h>

#include "codec/factors_read.h"

static size_t max_bytes(const hpc_codec_config *config, uint64_t n) {
    const hpc_factor_sizes sizes = hpc_factors_sizes(config, n);
    return hpc_factors_most(&sizes);
}

static size_t length(const hpc_codec_config *config, const void *piece, uint64_t n) {
    return hpc_piece_length(piece, max_bytes(config, n));
}

/* ---- encode ---- */

/* A piece that is being written from an update. */
typedef struct outlet {
    const struct hpc_factor_kernels *kernels;
    const struct hpc_fold_kernels *fold;
    hpc_factor_sizes sizes;
    hpc_factors from;
    uint64_t first, count; /* the first row of the piece; the number of pairs */
    char *at, *end;
} outlet;

static const float *u_of(const outlet *o, uint64_t k) {
    return o->from.u + k * o->from.rows + o->first;
}

static const float *v_of(const outlet *o, uint64_t k) {
    return o->from.v + k * o->from.columns;
}

static void write_values(const outlet *o, void *to, const float *from, size_t n) {
    if (o->sizes.values == HPC_F32)
        memcpy(to, from, n * sizeof *from);
    else
        o->fold->encode(to, from, n, o->sizes.values);
}

/* Returns the entries of a vector in a sparse piece, or HPC_FACTOR_DENSE. */
static uint32_t entries_of(const outlet *o, const float *vector, uint64_t length, size_t index) {
    const size_t item = o->sizes.item, entries = o->kernels->count(vector, length);
    const uint64_t dense = hpc_factors_vector(length, HPC_FACTOR_DENSE, item, index);
    return hpc_factors_vector(length, entries, item, index) < dense ? (uint32_t)entries : HPC_FACTOR_DENSE;
}

static uint64_t sparse_bytes(const outlet *o) {
    const hpc_factor_sizes *s = &o->sizes;
    uint64_t nbytes = o->count * 2 * sizeof(uint32_t);
    for (uint64_t k = 0; k < o->count; k++) {
        nbytes +=
            hpc_factors_vector(s->columns, entries_of(o, v_of(o, k), s->columns, s->v_index), s->item, s->v_index);
        nbytes += hpc_factors_vector(s->rows, entries_of(o, u_of(o, k), s->rows, s->u_index), s->item, s->u_index);
    }
    return nbytes;
}

static void write_sum(const outlet *o) {
    const hpc_factor_sizes *s = &o->sizes;
    enum { BLOCK = 1 << 14 };
    float block[BLOCK];
    const uint64_t wide = s->columns < BLOCK ? s->columns : BLOCK, tall = BLOCK / wide;
    for (uint64_t row = 0; row < s->rows; row += tall)
        for (uint64_t column = 0; column < s->columns; column += wide) {
            const uint64_t rows = s->rows - row < tall ? s->rows - row : tall;
            const uint64_t columns = s->columns - column < wide ? s->columns - column : wide;
            const hpc_factor_part part = {
                block, columns, (uint32_t)row, (uint32_t)rows, (uint32_t)column, (uint32_t)columns, HPC_F32, 0, 0};
            memset(block, 0, rows * columns * sizeof *block);
            for (uint64_t k = 0; k < o->count;) {
                hpc_factor_pair pairs[HPC_FACTOR_PAIRS];
                size_t some = 0;
                for (; k < o->count && some < HPC_FACTOR_PAIRS; k++, some++)
                    pairs[some] = (hpc_factor_pair){{u_of(o, k), NULL, (uint32_t)s->rows, (uint32_t)s->rows},
                                                    {v_of(o, k), NULL, (uint32_t)s->columns, (uint32_t)s->columns},
                                                    1};
                o->kernels->add(&part, pairs, some);
            }
            for (uint64_t j = 0; j < rows; j++)
                write_values(o, o->at + ((row + j) * s->columns + column) * s->item, block + j * columns, columns);
        }
}

/* Writes a vector of a sparse piece. Returns nonzero if the vector has become longer since its bytes were counted. */
static int write_vector(outlet *o, char *table, const float *vector, uint64_t length, size_t index) {
    const uint32_t entries = entries_of(o, vector, length, index);
    const uint64_t nbytes = hpc_factors_vector(length, entries, o->sizes.item, index);
    if (nbytes > (uint64_t)(o->end - o->at)) return HPC_PIECE_FAILED;
    memcpy(table, &entries, sizeof entries);
    if (nbytes > 0) memset(o->at + nbytes - 4, 0, 4); /* the end may be padding */
    if (entries == HPC_FACTOR_DENSE) {
        write_values(o, o->at, vector, length);
        o->at += nbytes;
        return 0;
    }
    char *indices = o->at, *values = indices + ((uint64_t)entries * index + 3) / 4 * 4;
    if (values > indices) memset(values - 4, 0, 4);
    uint32_t n = 0;
    for (uint64_t i = 0; i < length && n < entries; i++) {
        if (vector[i] == 0) continue;
        const uint16_t narrow = (uint16_t)i;
        const uint32_t wide = (uint32_t)i;
        memcpy(indices + n * index, index == 2 ? (const void *)&narrow : &wide, index);
        write_values(o, values + n * o->sizes.item, vector + i, 1);
        n++;
    }
    o->at += nbytes;
    return n == entries ? 0 : HPC_PIECE_FAILED;
}

static int write_sparse(outlet *o) {
    const hpc_factor_sizes *s = &o->sizes;
    char *table = o->at;
    int status = 0;
    o->at += o->count * 2 * sizeof(uint32_t);
    for (uint64_t k = 0; k < o->count && status == 0; k++, table += sizeof(uint32_t))
        status = write_vector(o, table, v_of(o, k), s->columns, s->v_index);
    for (uint64_t k = 0; k < o->count && status == 0; k++, table += sizeof(uint32_t))
        status = write_vector(o, table, u_of(o, k), s->rows, s->u_index);
    return status;
}

static void write_dense(const outlet *o) {
    const hpc_factor_sizes *s = &o->sizes;
    char *to = o->at;
    write_values(o, to, o->from.v, o->count * s->columns);
    to += o->count * s->columns * s->item;
    for (uint64_t k = 0; k < o->count; k++, to += s->rows * s->item) write_values(o, to, u_of(o, k), s->rows);
}

int64_t hpc_factors_encode(const hpc_codec_config *config, const hpc_codec_source *source, int64_t n, void *out,
                           int64_t cap, int64_t *kept, int isa) {
    if (n < 0 || n > HPC_PIECE_ELEMENTS || n % (int64_t)config->columns != 0 || source->from % config->columns != 0)
        return HPC_PIECE_BAD_ARGS;
    if (cap < 0 || (size_t)cap < max_bytes(config, (uint64_t)n)) return HPC_PIECE_NO_ROOM;
    outlet o = {.kernels = hpc_factor_kernels_of(isa),
                .fold = hpc_fold_kernels_of(isa),
                .sizes = hpc_factors_sizes(config, (uint64_t)n),
                .from = hpc_factors_at(config, (void *)(uintptr_t)source->data),
                .first = source->from / config->columns,
                .at = (char *)out + sizeof(hpc_piece_head)};
    const hpc_factor_sizes *s = &o.sizes;
    const int count = *o.from.count;
    if (count < 0 || count > config->pairs || o.first + s->rows > config->rows) return HPC_PIECE_BAD_ARGS;
    o.count = (uint64_t)count;
    *kept = n;
    const uint64_t all = (uint64_t)n * s->item, dense = o.count * (s->rows + s->columns) * s->item;
    const uint64_t sparse = sparse_bytes(&o);
    if (all < dense && all < sparse) {
        write_sum(&o);
        return hpc_piece_finish(out, HPC_PIECE_DENSE, s->values, n, n, (size_t)all);
    }
    if (dense <= sparse) {
        write_dense(&o);
        return hpc_piece_finish(out, HPC_PIECE_FACTORS, s->values, n, count, (size_t)dense);
    }
    o.end = o.at + sparse;
    const int status = write_sparse(&o);
    if (status != 0) return status;
    return hpc_piece_finish(out, HPC_PIECE_SPARSE, s->values, n, count,
                            (size_t)(o.at - (char *)out) - sizeof(hpc_piece_head));
}

static int64_t encode(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept) {
    (void)state;
    return hpc_factors_encode(encoding->config, source, n, out, cap, kept, HPC_ISA_BEST);
}

static void encode_nothing(const hpc_codec_config *config, int64_t n, void *out) {
    hpc_piece_finish(out, HPC_PIECE_FACTORS, config->values, n, 0, 0);
}

/* ---- add ---- */

/* Returns 0, or the status of the first input that is no piece; *wrong gets that input's number. */
static int check_all(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                     int *wrong) {
    for (int i = 0; i < n_inputs; i++) {
        const int status = hpc_factors_check(config, n, inputs[i].piece, inputs[i].nbytes);
        if (status == 0) continue;
        *wrong = i;
        return status;
    }
    return 0;
}

/* Adds a part of an array, row by row. */
static void add_array(const hpc_factor_part *part, const hpc_factor_sizes *s, const hpc_factors_array *array) {
    for (uint32_t j = 0; j < part->rows; j++)
        hpc_codec_add_array(part->to + j * part->stride, part->columns,
                            array->values + ((uint64_t)(part->row + j) * s->columns + part->column) * s->item,
                            (int64_t)(part->columns * s->item), array->weight, s->values);
}

/* Adds all pieces to a part. */
static void add_part(const hpc_factor_part *part, hpc_factors_walk walk, const struct hpc_factor_kernels *kernels) {
    for (;;) {
        hpc_factor_pair pairs[HPC_FACTOR_PAIRS];
        hpc_factors_array array;
        const size_t some = hpc_factors_next(&walk, pairs, &array);
        if (some > 0)
            kernels->add(part, pairs, some);
        else if (array.values != NULL)
            add_array(part, &walk.sizes, &array);
        else
            return;
    }
}

static hpc_factor_part part_of(const hpc_factor_sizes *s, float *to, uint64_t row, uint64_t rows, uint64_t column,
                               uint64_t columns, uint64_t stride) {
    return (hpc_factor_part){.to = to,
                             .stride = stride,
                             .row = (uint32_t)row,
                             .rows = (uint32_t)rows,
                             .column = (uint32_t)column,
                             .columns = (uint32_t)columns,
                             .values = s->values,
                             .wide_rows = s->u_index == 4,
                             .wide_columns = s->v_index == 4};
}

void hpc_factors_add_range(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                           uint64_t from, uint64_t count, float *sum, int isa) {
    const struct hpc_factor_kernels *kernels = hpc_factor_kernels_of(isa);
    hpc_factors_walk walk;
    hpc_factors_begin(&walk, config, n, inputs, n_inputs);
    const uint64_t columns = config->columns;
    while (count > 0) {
        const uint64_t row = from / columns, column = from % columns;
        const uint64_t left = columns - column < count ? columns - column : count;
        const uint64_t rows = left == columns ? count / columns : 1;
        const hpc_factor_part part = part_of(&walk.sizes, sum, row, rows, column, left, columns);
        add_part(&part, walk, kernels);
        sum += rows * left, from += rows * left, count -= rows * left;
    }
}

int hpc_factors_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                    double weight, int isa) {
    const hpc_codec_input input = {in, nbytes, weight};
    const int status = hpc_factors_check(config, n, in, nbytes);
    if (status == 0) hpc_factors_add_range(config, n, &input, 1, 0, (uint64_t)n, acc, isa);
    return status;
}

/* Makes the sum of a part, and subtracts it from the parameters, part by part. */
static void take_by_sums(float *param, hpc_factors_walk walk, float rate, const struct hpc_factor_kernels *kernels) {
    enum { TALL = 96, WIDE = 256 };
    float sum[TALL * WIDE];
    const hpc_factor_sizes *s = &walk.sizes;
    const uint64_t wide = s->columns < WIDE ? s->columns : WIDE, tall = TALL * WIDE / wide;
    for (uint64_t row = 0; row < s->rows; row += tall)
        for (uint64_t column = 0; column < s->columns; column += wide) {
            const uint64_t rows = s->rows - row < tall ? s->rows - row : tall;
            const uint64_t columns = s->columns - column < wide ? s->columns - column : wide;
            const hpc_factor_part part = part_of(s, sum, row, rows, column, columns, columns);
            const hpc_factor_part to =
                part_of(s, param + row * s->columns + column, row, rows, column, columns, s->columns);
            memset(sum, 0, rows * columns * sizeof *sum);
            add_part(&part, walk, kernels);
            kernels->take_sum(&to, sum, columns, rate);
        }
}

int hpc_factors_add_all(const hpc_codec_config *config, float *param, int64_t n, const hpc_codec_input *inputs,
                        int n_inputs, double rate, int *wrong, int isa) {
    const struct hpc_factor_kernels *kernels = hpc_factor_kernels_of(isa);
    const int status = check_all(config, n, inputs, n_inputs, wrong);
    if (status != 0) return status;
    hpc_factor_pair pairs[HPC_FACTOR_PAIRS];
    hpc_factors_array array;
    hpc_factors_walk walk, first;
    hpc_factors_begin(&first, config, n, inputs, n_inputs);
    walk = first;
    const size_t some = hpc_factors_next(&walk, pairs, &array);
    const int all = array.values == NULL && walk.pair == walk.pairs && walk.at == walk.n_inputs;
    if (some == 0 && array.values == NULL) return 0;
    if (all && kernels->can_take(pairs, some)) {
        const hpc_factor_sizes *s = &walk.sizes;
        const hpc_factor_part part = part_of(s, param, 0, s->rows, 0, s->columns, s->columns);
        kernels->take(&part, pairs, some, (float)rate);
    } else {
        take_by_sums(param, first, (float)rate, kernels);
    }
    return 0;
}

static int decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                      double weight) {
    return hpc_factors_add(config, acc, n, in, nbytes, weight, HPC_ISA_BEST);
}

static int add_all(const hpc_codec_config *config, float *param, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                   double rate, int *wrong) {
    return hpc_factors_add_all(config, param, n, inputs, n_inputs, rate, wrong, HPC_ISA_BEST);
}

static void add_range(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                      uint64_t from, uint64_t count, float *sum) {
    hpc_factors_add_range(config, n, inputs, n_inputs, from, count, sum, HPC_ISA_BEST);
}

/* ---- the sum of squares ---- */

/* Returns the sum of the products of pairs a with pairs b. If a and b are the same pairs (same), each product of two is
 * computed once and counted twice. */
static double cross(const hpc_factor_sizes *s, const hpc_factor_pair *a, size_t n_a, const hpc_factor_pair *b,
                    size_t n_b, int same) {
    const struct hpc_factor_kernels *kernels = hpc_factor_kernels_of(HPC_ISA_BEST);
    double sum = 0;
    for (size_t i = 0; i < n_a; i++)
        for (size_t j = 0; j < (same ? i + 1 : n_b); j++) {
            const double weight = a[i].weight * b[j].weight * (same && i == j ? 1 : 2);
            const double v = weight == 0 ? 0 : kernels->dot(&a[i].v, &b[j].v, s->columns, s->values, s->v_index == 4);
            if (v != 0) sum += weight * v * kernels->dot(&a[i].u, &b[j].u, s->rows, s->values, s->u_index == 4);
        }
    return sum;
}

/* |sum of w u v^T|^2 = sum over all two pairs of w w' (u . u') (v . v'). */
static int squares(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                   double *sum) {
    hpc_factor_pair a[HPC_FACTOR_PAIRS], b[HPC_FACTOR_PAIRS];
    hpc_factors_walk outer, inner;
    hpc_factors_array array;
    size_t n_a, n_b, at = 0;
    *sum = 0;
    hpc_factors_begin(&outer, config, n, inputs, n_inputs);
    for (; (n_a = hpc_factors_next(&outer, a, &array)) > 0; at += n_a) {
        size_t to = 0;
        hpc_factors_begin(&inner, config, n, inputs, n_inputs);
        for (; to < at && (n_b = hpc_factors_next(&inner, b, &array)) > 0; to += n_b)
            *sum += cross(&outer.sizes, a, n_a, b, n_b, 0);
        *sum += cross(&outer.sizes, a, n_a, a, n_a, 1);
    }
    return array.values == NULL;
}

/* ---- the rest of the contract ---- */

static const char *check(const hpc_codec_config *config) {
    if (config->rows < 1 || config->columns < 1 || config->rows > HPC_PIECE_ELEMENTS / config->columns)
        return "rows and columns must be those of a matrix of 2^29 elements at most";
    if (config->pairs < 1) return "pairs must be 1 or more";
    if (config->unit < config->columns || config->unit % config->columns != 0)
        return "unit must be a multiple of columns, and not 0";
    if (config->values != HPC_F32 && config->values != HPC_F16 && config->values != HPC_BF16)
        return "values must be 0 (float32), 2 (float16) or 3 (bfloat16)";
    return config->state_slots == 0 ? NULL : "state_slots must be 0: it has no state";
}

static uint64_t unit_of(const hpc_codec_config *config, uint64_t n) {
    (void)n;
    return config->unit;
}

static int keeps(const hpc_codec_config *config) {
    (void)config;
    return 0;
}

static size_t source_bytes(const hpc_codec_config *config, uint64_t n) {
    (void)n;
    return hpc_factors_bytes(config);
}

/* Returns the number of pairs of an update; 0 if the update's count is out of range, which encode reports. */
static uint64_t pairs_of(const hpc_factors *from) {
    return *from->count < 0 || *from->count > from->pairs ? 0 : (uint64_t)*from->count;
}

/* Scales the products by scaling their first vectors. */
static void scale(const hpc_codec_config *config, void *source, float factor) {
    const hpc_factors from = hpc_factors_at(config, source);
    const uint64_t n = pairs_of(&from) * from.rows;
    for (uint64_t i = 0; i < n; i++) from.u[i] *= factor;
}

static int is_finite(const hpc_codec_config *config, const hpc_codec_source *source, uint64_t n) {
    const hpc_factors from = hpc_factors_at(config, (void *)(uintptr_t)source->data);
    const struct hpc_fold_kernels *kernels = hpc_fold_kernels_of(HPC_ISA_BEST);
    const uint64_t count = pairs_of(&from);
    (void)n;
    return kernels->all_finite(from.u, count * from.rows, HPC_F32) &&
           kernels->all_finite(from.v, count * from.columns, HPC_F32);
}

static const hpc_piece_form form = {NULL, NULL};

const hpc_codec hpc_codec_factors = {
    .name = "factors",
    .number = HPC_FACTORS,
    .max_bytes = max_bytes,
    .length = length,
    .encode = encode,
    .decode_add = decode_add,
    .form = &form,
    .add_all = add_all,
    .check_all = check_all,
    .add_range = add_range,
    .squares = squares,
    .check = check,
    .unit = unit_of,
    .keeps = keeps,
    .source_bytes = source_bytes,
    .scale = scale,
    .is_finite = is_finite,
    .encode_nothing = encode_nothing,
    .text = hpc_piece_text,
};
