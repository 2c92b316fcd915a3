/* Four bits for each element, and a scale for each unit of elements. The four bits are a sign and three bits of
 * exponent (E3M0), in which Streaming DiLoCo sends outer gradients (arXiv 2501.18512). */
#include <math.h>
#include <string.h>

#include "codec/piece.h"
#include "kernel/float4.h"
#include "kernel/half.h"

enum { SHORTEST = 16 /* elements of the shortest unit: in shorter ones scales take too many bytes */ };

/* Returns the bytes after the head of a piece. */
static uint64_t body_bytes(uint64_t n, uint64_t unit) {
    uint64_t whole = n / unit, last = n % unit;
    return (whole + (last > 0)) * sizeof(float) + whole * ((unit + 1) / 2) + (last + 1) / 2;
}

/* A single element takes fewer bytes as float32. */
static size_t max_bytes(const hpc_codec_config *config, uint64_t n) {
    const uint64_t codes = body_bytes(n, config->unit), dense = n * sizeof(float);
    return sizeof(hpc_piece_head) + (size_t)(codes < dense ? codes : dense);
}

static size_t length(const hpc_codec_config *config, const void *piece, uint64_t n) {
    return hpc_piece_length(piece, max_bytes(config, n));
}

/* Without feedback the rounding errors are lost, as in the paper. */
static int keeps(const hpc_codec_config *config) {
    return !config->no_feedback;
}

/* Encodes a unit with NaN or Inf: sends only NaN and Inf, and leaves the other elements out. */
static void put_wild(const float *u, size_t n, uint8_t *codes, float *rest) {
    memset(codes, 0, (n + 1) / 2);
    for (size_t i = 0; i < n; i++) {
        if (isfinite(u[i])) continue;
        const unsigned code = HPC_FLOAT4_TOP | (hpc_bits_of_float(u[i]) >> 28 & 8);
        codes[i / 2] |= (uint8_t)(code << i % 2 * 4);
        if (rest != NULL) rest[i] = 0;
    }
}

/* Encodes a unit. Returns its scale, which is its largest magnitude. */
static float put_unit(const struct hpc_float4_kernels *kernels, const float *x, float *residual, size_t n,
                      uint8_t *codes) {
    const float most = hpc_float_of_bits(kernels->largest(x, residual, n));
    const float *u = residual != NULL ? residual : x;
    if (!isfinite(most)) {
        put_wild(u, n, codes, residual);
        return most;
    }
    const float scale = most > HPC_FLOAT4_LEAST ? most : HPC_FLOAT4_LEAST;
    kernels->put(u, n, scale, codes, residual);
    return scale;
}

/* Writes a piece of one element: the value that the element would have as the last one of a longer piece. */
static int64_t write_single(const struct hpc_float4_kernels *kernels, const float *x, float *residual, void *out) {
    float levels[HPC_FLOAT4_CODES];
    uint8_t code;
    hpc_float4_levels(levels, put_unit(kernels, x, residual, 1, &code), 1);
    memcpy((char *)out + sizeof(hpc_piece_head), &levels[code], sizeof *levels);
    return hpc_piece_finish(out, HPC_PIECE_DENSE, HPC_F32, 1, 1, sizeof *levels);
}

int64_t hpc_float4_encode(const hpc_codec_config *config, const float *x, int64_t n, float *residual, void *out,
                          int64_t cap, int isa) {
    const struct hpc_float4_kernels *kernels = hpc_float4_kernels_of(isa);
    if (n < 0 || n > HPC_PIECE_ELEMENTS) return HPC_PIECE_BAD_ARGS;
    if (cap < 0 || (size_t)cap < max_bytes(config, (uint64_t)n)) return HPC_PIECE_NO_ROOM;
    if (n == 1) return write_single(kernels, x, residual, out);
    const size_t unit = (size_t)config->unit, all = (size_t)n, units = (all + unit - 1) / unit;
    char *scales = (char *)out + sizeof(hpc_piece_head);
    uint8_t *codes = (uint8_t *)scales + units * sizeof(float);
    for (size_t from = 0, u = 0; from < all; from += unit, u++) {
        const size_t some = all - from < unit ? all - from : unit;
        const float scale = put_unit(kernels, x + from, residual != NULL ? residual + from : NULL, some, codes);
        memcpy(scales + u * sizeof scale, &scale, sizeof scale);
        codes += (some + 1) / 2;
    }
    const uint64_t nbytes = body_bytes(all, unit);
    return hpc_piece_finish(out, HPC_PIECE_FLOAT4, HPC_F32, n, (int64_t)unit, (size_t)nbytes);
}

static int64_t encode(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept) {
    float *residual = keeps(encoding->config) ? state : NULL;
    *kept = n;
    return hpc_float4_encode(encoding->config, hpc_source_values(source), n, residual, out, cap, HPC_ISA_BEST);
}

static const char *check(const hpc_codec_config *config) {
    if (config->unit < SHORTEST || config->unit > HPC_PIECE_ELEMENTS) return "unit must be 16 to 2^29";
    return config->state_slots == 0 ? NULL : "state_slots must be 0: its state is the residual";
}

static uint64_t unit_of(const hpc_codec_config *config, uint64_t n) {
    (void)n;
    return config->unit;
}

/* ---- its form ---- */

static int check_form(const hpc_piece_head *head, uint64_t body) {
    if (head->values != HPC_F32 || head->entries < 1) return HPC_PIECE_BAD_HEAD;
    return body == body_bytes(head->n, head->entries) ? 0 : HPC_PIECE_BAD_LENGTH;
}

/* Returns whether, in all units of an odd number of elements, the unused half of the last byte is 0. */
static int is_padded(const uint8_t *codes, size_t n, size_t unit) {
    for (size_t from = 0; from < n; from += unit) {
        const size_t some = n - from < unit ? n - from : unit;
        if (some % 2 != 0 && codes[some / 2] >> 4 != 0) return 0;
        codes += (some + 1) / 2;
    }
    return 1;
}

static int add(const hpc_piece_intake *in, float *acc) {
    const struct hpc_float4_kernels *kernels = hpc_float4_kernels_of(in->isa);
    const size_t n = in->head->n, unit = in->head->entries, units = (n + unit - 1) / unit;
    const uint8_t *codes = (const uint8_t *)in->body + units * sizeof(float);
    if (!is_padded(codes, n, unit)) return HPC_PIECE_BAD_INDEX;
    for (size_t from = 0, u = 0; from < n; from += unit, u++) {
        const size_t some = n - from < unit ? n - from : unit;
        float scale, levels[HPC_FLOAT4_CODES];
        memcpy(&scale, in->body + u * sizeof scale, sizeof scale);
        hpc_float4_levels(levels, scale, (float)in->weight);
        kernels->add(acc + from, some, codes, levels);
        codes += (some + 1) / 2;
    }
    return 0;
}

static const hpc_piece_form form = {check_form, add};

const hpc_codec hpc_codec_float4 = {
    .name = "float4",
    .number = HPC_FLOAT4,
    .weighs = 1,
    .max_bytes = max_bytes,
    .length = length,
    .encode = encode,
    .decode_add = hpc_piece_decode_add,
    .form = &form,
    .check = check,
    .unit = unit_of,
    .keeps = keeps,
    .encode_nothing = hpc_piece_encode_nothing,
    .text = hpc_piece_text,
    .scratch = hpc_piece_scratch,
    .pack = hpc_piece_pack_by,
    .unpack = hpc_piece_unpack_by,
};
