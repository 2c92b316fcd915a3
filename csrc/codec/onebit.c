/* One bit for each element, and two values for each unit of elements. */
#include <math.h>
#include <string.h>

#include "codec/piece.h"

static int64_t write_dense(const float *x, int64_t n, float *residual, void *out) {
    float *values = (float *)((char *)out + sizeof(hpc_piece_head));
    for (int64_t i = 0; i < n; i++) {
        values[i] = x[i] + residual[i];
        residual[i] = 0;
    }
    return hpc_piece_finish(out, HPC_PIECE_DENSE, HPC_F32, n, n, (size_t)n * sizeof *values);
}

/* Returns the bytes after the head of a piece of signs. */
static uint64_t signs_bytes(uint64_t n, uint64_t unit) {
    uint64_t whole = n / unit, last = n % unit;
    return (whole + (last > 0)) * 2 * sizeof(float) + whole * ((unit + 7) / 8) + (last + 7) / 8;
}

/* Dense float32 is used if it takes no more bytes. */
static size_t max_bytes(const hpc_codec_config *config, uint64_t n) {
    const uint64_t signs = signs_bytes(n, config->unit), dense = n * sizeof(float);
    return sizeof(hpc_piece_head) + (size_t)(signs < dense ? signs : dense);
}

static size_t length(const hpc_codec_config *config, const void *piece, uint64_t n) {
    return hpc_piece_length(piece, max_bytes(config, n));
}

static float mean_of(double sum, size_t count) {
    return count > 0 ? (float)(sum / (double)count) : 0;
}

/* Encodes one bit for each element (CNTK's 1-bit SGD). A unit is a run of elements; its two values are the mean of its
 * elements that are 0 or more, and the mean of the others. The residual is the difference to these means. If units are
 * so small that dense float32 takes no more bytes, the piece is dense. A piece begins with a whole unit. */
static int64_t encode(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept) {
    const struct hpc_sparse_kernels *kernels = hpc_sparse_kernels_of(HPC_ISA_BEST);
    if (n < 0 || n > HPC_PIECE_ELEMENTS) return HPC_PIECE_BAD_ARGS;
    if (cap < 0 || (size_t)cap < max_bytes(encoding->config, (uint64_t)n)) return HPC_PIECE_NO_ROOM;
    size_t unit = (size_t)encoding->config->unit, all = (size_t)n, units = (all + unit - 1) / unit;
    uint64_t nbytes = signs_bytes(all, unit);
    const float *x = hpc_source_values(source);
    *kept = n;
    if (nbytes >= all * sizeof(float)) return write_dense(x, n, state, out);

    char *scales = (char *)out + sizeof(hpc_piece_head);
    uint8_t *bits = (uint8_t *)scales + units * 2 * sizeof(float);
    for (size_t from = 0, u = 0; from < all; from += unit, u++) {
        size_t some = all - from < unit ? all - from : unit;
        double sums[2];
        size_t up = kernels->signs(x + from, state + from, some, bits, sums);
        float both[2] = {mean_of(sums[0], up), mean_of(sums[1], some - up)};
        memcpy(scales + u * sizeof both, both, sizeof both);
        kernels->take_signs(state + from, some, bits, both[0], both[1]);
        bits += (some + 7) / 8;
    }
    if (encoding->config->no_feedback) memset(state, 0, all * sizeof *state);
    return hpc_piece_finish(out, HPC_PIECE_SIGNS, HPC_F32, n, (int64_t)unit, (size_t)nbytes);
}

static const char *check(const hpc_codec_config *config) {
    if (config->unit < 1 || config->unit > HPC_PIECE_ELEMENTS) return "unit must be 1 to 2^29";
    return config->state_slots == 0 ? NULL : "state_slots must be 0: its state is the residual";
}

static uint64_t unit_of(const hpc_codec_config *config, uint64_t n) {
    (void)n;
    return config->unit;
}

/* ---- its form ---- */

static int check_form(const hpc_piece_head *head, uint64_t body) {
    if (head->values != HPC_F32 || head->entries < 1) return HPC_PIECE_BAD_HEAD;
    return body == signs_bytes(head->n, head->entries) ? 0 : HPC_PIECE_BAD_LENGTH;
}

static int add(const hpc_piece_intake *in, float *acc) {
    const struct hpc_sparse_kernels *kernels = hpc_sparse_kernels_of(in->isa);
    size_t n = in->head->n, unit = in->head->entries, units = (n + unit - 1) / unit;
    const uint8_t *bits = (const uint8_t *)in->body + units * 2 * sizeof(float);
    for (size_t from = 0; from < n; from += unit) {
        size_t some = n - from < unit ? n - from : unit;
        if (some % 8 != 0 && bits[some / 8] >> some % 8 != 0) return HPC_PIECE_BAD_INDEX;
        bits += (some + 7) / 8;
    }
    bits = (const uint8_t *)in->body + units * 2 * sizeof(float);
    for (size_t from = 0, u = 0; from < n; from += unit, u++) {
        size_t some = n - from < unit ? n - from : unit;
        float both[2], weight = (float)in->weight;
        memcpy(both, in->body + u * sizeof both, sizeof both);
        kernels->add_signs(acc + from, some, bits, weight * both[0], weight * both[1]);
        bits += (some + 7) / 8;
    }
    return 0;
}

static const hpc_piece_form form = {check_form, add};

const hpc_codec hpc_codec_onebit = {
    .name = "onebit",
    .number = HPC_ONEBIT,
    .weighs = 1,
    .max_bytes = max_bytes,
    .length = length,
    .encode = encode,
    .decode_add = hpc_piece_decode_add,
    .form = &form,
    .check = check,
    .unit = unit_of,
    .encode_nothing = hpc_piece_encode_nothing,
    .text = hpc_piece_text,
    .scratch = hpc_piece_scratch,
    .pack = hpc_piece_pack_by,
    .unpack = hpc_piece_unpack_by,
};
