/* A matrix as pairs of vectors, whose products u v^T are its sum (SFB, section 2). A piece of rows * columns elements
 * is those rows of each u, and all of each v; or the sum itself, where that takes fewer bytes. Nothing is held back. */
#include "codec/factors.h"

#include <math.h>
#include <string.h>

#include "codec/piece.h"

static uint64_t rows_of(const hpc_codec_config *config, uint64_t n) {
    return n / config->columns;
}

static size_t max_bytes(const hpc_codec_config *config, uint64_t n) {
    const uint64_t pairs = (uint64_t)config->pairs * (rows_of(config, n) + config->columns);
    return hpc_piece_max_bytes(pairs < n ? pairs : n, config->values);
}

static size_t length(const hpc_codec_config *config, const void *piece, uint64_t n) {
    return hpc_piece_length(piece, max_bytes(config, n));
}

static void add_product(float *acc, const float *u, const float *v, uint64_t rows, uint64_t columns, double weight) {
    for (uint64_t j = 0; j < rows; j++) {
        const float wu = (float)(weight * (double)u[j]);
        for (uint64_t d = 0; d < columns; d++) acc[j * columns + d] += wu * v[d];
    }
}

static int64_t encode(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept) {
    const hpc_codec_config *config = encoding->config;
    const hpc_factors from = hpc_factors_at(config, (void *)(uintptr_t)source->data);
    const uint64_t rows = rows_of(config, (uint64_t)n), first = rows_of(config, source->from),
                   count = (uint64_t)*from.count;
    (void)state;
    if (cap < (int64_t)max_bytes(config, (uint64_t)n)) return HPC_PIECE_NO_ROOM;
    if (*from.count < 0 || *from.count > from.pairs) return HPC_PIECE_BAD_ARGS;
    *kept = n;
    float *to = (float *)(void *)((char *)out + sizeof(hpc_piece_head));
    if (count * (rows + config->columns) > (uint64_t)n) {
        memset(to, 0, (size_t)n * sizeof *to);
        for (uint64_t k = 0; k < count; k++)
            add_product(to, from.u + k * from.rows + first, from.v + k * from.columns, rows, config->columns, 1);
        return hpc_piece_finish(out, HPC_PIECE_DENSE, HPC_F32, n, n, (size_t)n * sizeof *to);
    }
    memcpy(to, from.v, count * config->columns * sizeof *to);
    to += count * config->columns;
    for (uint64_t k = 0; k < count; k++, to += rows) memcpy(to, from.u + k * from.rows + first, rows * sizeof *to);
    return hpc_piece_finish(out, HPC_PIECE_FACTORS, HPC_F32, n, (int64_t)count,
                            count * (rows + config->columns) * sizeof(float));
}

static int decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                      double weight) {
    hpc_piece_head head;
    int status = hpc_piece_read(&head, in, nbytes, n);
    if (status != 0) return status;
    if (head.form == HPC_PIECE_DENSE) return hpc_piece_decode_add(config, acc, n, in, nbytes, weight);
    if (head.form != HPC_PIECE_FACTORS || head.entries > (uint32_t)config->pairs) return HPC_PIECE_BAD_HEAD;
    const uint64_t rows = rows_of(config, (uint64_t)n), count = head.entries;
    if ((uint64_t)nbytes - sizeof head != count * (rows + config->columns) * sizeof(float)) return HPC_PIECE_BAD_LENGTH;
    const float *v = (const float *)(const void *)((const char *)in + sizeof head), *u = v + count * config->columns;
    for (uint64_t k = 0; k < count; k++)
        add_product(acc, u + k * rows, v + k * config->columns, rows, config->columns, weight);
    return 0;
}

static const char *check(const hpc_codec_config *config) {
    if (config->rows < 1 || config->columns < 1 || config->rows > HPC_PIECE_ELEMENTS / config->columns)
        return "rows and columns must be those of a matrix of 2^29 elements at most";
    if (config->pairs < 1) return "pairs must be 1 or more";
    if (config->unit < config->columns || config->unit % config->columns != 0)
        return "unit must be a multiple of columns, and not 0";
    if (config->values != HPC_F32) return "values must be 0 (float32)";
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

static int is_finite(const hpc_codec_config *config, const hpc_codec_source *source, uint64_t n) {
    const hpc_factors from = hpc_factors_at(config, (void *)(uintptr_t)source->data);
    const uint64_t count = *from.count < 0 || *from.count > from.pairs ? 0 : (uint64_t)*from.count;
    (void)n;
    for (uint64_t i = 0; i < count * from.rows; i++)
        if (!isfinite(from.u[i])) return 0;
    for (uint64_t i = 0; i < count * from.columns; i++)
        if (!isfinite(from.v[i])) return 0;
    return 1;
}

static void encode_nothing(const hpc_codec_config *config, int64_t n, void *out) {
    (void)config;
    hpc_piece_finish(out, HPC_PIECE_FACTORS, HPC_F32, n, 0, 0);
}

const hpc_codec hpc_codec_factors = {
    .name = "factors",
    .number = HPC_FACTORS,
    .max_bytes = max_bytes,
    .length = length,
    .encode = encode,
    .decode_add = decode_add,
    .check = check,
    .unit = unit_of,
    .keeps = keeps,
    .source_bytes = source_bytes,
    .is_finite = is_finite,
    .encode_nothing = encode_nothing,
    .text = hpc_piece_text,
};
