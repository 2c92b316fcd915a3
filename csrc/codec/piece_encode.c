/* Writes a piece: filters, then chooses the form. */
#include <string.h>

#include "codec/piece.h"
#include "base/isa.h"

/* While a piece of up to SMALL elements is written, its bits are on the stack. A larger piece has its bits at the end
 * of its memory. The values would reach the bits only if nearly all elements are kept, and then the piece becomes
 * dense. It becomes dense STEP elements before that, so the filter can work in steps of STEP elements. */
enum { SMALL = 1 << 16, STEP = 1024 };

/* A piece that is being written. */
typedef struct piece_outlet {
    const hpc_piece_filter *how;
    const struct hpc_sparse_kernels *kernels;
    hpc_filter_fn *filter;
    const float *x;
    float *residual;
    uint8_t *values; /* after the head; room for n */
    uint8_t *bits;
    size_t n, item, nbits; /* nbits: bytes of bits */
    size_t kept;
} piece_outlet;

static hpc_filter_fn *filter_of(const hpc_piece_filter *how, const struct hpc_sparse_kernels *kernels) {
    if (how->filter != NULL) return how->filter;
    return how->values == HPC_F32   ? kernels->filter_f32
           : how->values == HPC_F16 ? kernels->filter_f16
                                    : kernels->filter_bf16;
}

/* Filters `count` elements. Returns how many the filter kept, or HPC_PIECE_FAILED if a user's filter set another number
 * of bits than it returned. */
static int64_t filter_some(const piece_outlet *out, const float *x, float *residual, size_t count, void *values,
                           uint8_t *bits) {
    int64_t kept = out->filter(x, residual, (int64_t)count, out->how->delta, values, bits);
    if (out->how->filter == NULL) return kept;
    if (kept < 0 || out->kernels->count(bits, count) != (size_t)kept) return HPC_PIECE_FAILED;
    return count % 8 != 0 && bits[count / 8] >> count % 8 != 0 ? HPC_PIECE_FAILED : kept;
}

/* Returns the number of kept elements from which a piece is dense, because bits would take as many bytes. */
static size_t dense_from(const piece_outlet *out) {
    size_t all = out->n * out->item;
    if (out->how->paper) return (out->n + 4) / 5;
    size_t from = (all - out->nbits + out->item - 1) / out->item;
    return out->n <= SMALL ? from : from - STEP;
}

/* Filters until the end, or until the piece is dense; returns how many elements are done, or a negative error. */
static int64_t filter_all(piece_outlet *out) {
    size_t limit = out->n <= SMALL ? out->n : (out->n * out->item - out->nbits) / out->item;
    size_t dense = dense_from(out), at = 0;
    while (at < out->n && (out->kept < dense || at == 0)) {
        size_t some = out->n - at, room = limit - out->kept;
        if (some > room) some = room & ~(size_t)63;
        int64_t kept = filter_some(out, out->x + at, out->residual + at, some, out->values + out->kept * out->item,
                                   out->bits + at / 8);
        if (kept < 0) return kept;
        out->kept += (size_t)kept;
        at += some;
    }
    return (int64_t)at;
}

/* Writes a dense piece. First undoes the filter on the `done` elements: their residual becomes all of u (update plus
 * residual), and filtering u + 0 keeps the same elements again. Then filters all elements by blocks, and spreads the
 * values. */
static int64_t write_dense(piece_outlet *out, size_t done) {
    static const float zeros[STEP];
    float values[STEP];
    uint8_t bits[STEP / 8];
    hpc_sparse_return(out->residual, done, out->bits, out->values, out->how->values);
    out->kept = 0;
    for (size_t at = 0, some; at < out->n; at += some) {
        size_t end = at < done ? done : out->n;
        some = end - at < STEP ? end - at : STEP;
        int64_t kept = filter_some(out, at < done ? zeros : out->x + at, out->residual + at, some, values, bits);
        if (kept < 0) return kept;
        hpc_sparse_spread(out->values + at * out->item, some, bits, values, out->how->values);
        out->kept += (size_t)kept;
    }
    return (int64_t)(out->n * out->item);
}

/* Returns one more than the index of the last kept element. */
static size_t span_of(const piece_outlet *out) {
    size_t byte = out->nbits;
    while (byte > 0 && out->bits[byte - 1] == 0) byte--;
    return byte == 0 ? 0 : 8 * byte - (size_t)(__builtin_clz(out->bits[byte - 1]) - 24);
}

/* Writes gaps after the values if they take fewer than *best bytes, and updates *best; returns their form, or the
 * argument form if no gaps take fewer. */
static int write_gaps(const piece_outlet *out, int form, size_t *best) {
    const struct hpc_sparse_kernels *kernels = out->kernels;
    uint8_t *to = out->values + out->kept * out->item;
    size_t kept = out->kept, skipped = span_of(out) - kept;
    /* A gap g takes at least (g - 254) / 255 skips of a byte, and all gaps together at most skipped / 65535 of two. */
    size_t least8 = kept + (skipped > 254 * kept ? (skipped - 254 * kept + 254) / 255 : 0);
    size_t most16 = 2 * (kept + skipped / HPC_GAP_SKIP16), most8 = *best - 1, got;
    if (least8 <= most16 && least8 < *best) {
        got = kernels->gaps8(out->bits, out->n, to, most8);
        if (got != HPC_GAPS_DO_NOT_FIT) *best = got, form = HPC_PIECE_GAPS8;
    }
    if (2 * kept >= *best) return form;
    got = kernels->gaps16(out->bits, out->n, to, (*best - 1) / 2);
    if (got != HPC_GAPS_DO_NOT_FIT) {
        *best = 2 * got;
        return HPC_PIECE_GAPS16;
    }
    if (form == HPC_PIECE_GAPS8) kernels->gaps8(out->bits, out->n, to, most8); /* gaps16 has overwritten them */
    return form;
}

/* Writes the rest, after the values, in the form with the fewest bytes. Returns the form; *nbytes gets the bytes of the
 * rest. */
static int write_rest(const piece_outlet *out, size_t *nbytes) {
    *nbytes = out->how->paper ? out->n * out->item - out->nbits - out->kept * out->item : out->nbits;
    int form = *nbytes > 0 ? write_gaps(out, HPC_PIECE_BITS, nbytes) : HPC_PIECE_BITS;
    if (form == HPC_PIECE_BITS) {
        *nbytes = out->nbits;
        memmove(out->values + out->kept * out->item, out->bits, out->nbits);
    }
    return form;
}

int64_t hpc_piece_encode(const hpc_piece_filter *how, const float *x, int64_t n, float *residual, void *to, int64_t cap,
                         int64_t *kept) {
    uint8_t bits[SMALL / 8];
    int status = hpc_piece_check(n, how->values, cap);
    if (status != 0) return status;
    if (!(how->delta >= 0 && how->delta <= 3.402823466e38f)) return HPC_PIECE_BAD_ARGS;
    const struct hpc_sparse_kernels *kernels = hpc_sparse_kernels_of(how->isa);
    piece_outlet out = {.how = how,
                        .kernels = kernels,
                        .filter = filter_of(how, kernels),
                        .x = x,
                        .residual = residual,
                        .values = (uint8_t *)to + sizeof(hpc_piece_head),
                        .bits = bits,
                        .n = (size_t)n,
                        .item = hpc_dtype_bytes(how->values),
                        .nbits = ((size_t)n + 7) / 8};
    if (n > SMALL) out.bits = out.values + out.n * out.item - out.nbits;
    int64_t done = filter_all(&out);
    if (done < 0) return done;

    int form = HPC_PIECE_DENSE;
    size_t entries = out.n, nbytes = 0;
    if (n > 0 && out.kept >= dense_from(&out)) {
        int64_t written = write_dense(&out, (size_t)done);
        if (written < 0) return written;
        nbytes = (size_t)written;
    } else if (n > 0) {
        entries = out.kept;
        form = write_rest(&out, &nbytes);
        nbytes += entries * out.item;
    }
    if (kept != NULL) *kept = (int64_t)out.kept;
    return hpc_piece_finish(to, form, how->values, n, (int64_t)entries, nbytes);
}

/* ---- codecs with a delta ---- */

const char *hpc_piece_check_filter(const hpc_codec_config *config) {
    if (config->values != HPC_F32 && config->values != HPC_F16 && config->values != HPC_BF16)
        return "values must be 0 (float32), 2 (float16) or 3 (bfloat16)";
    if (config->filter != NULL && config->values != HPC_F32) return "a user's filter needs values 0 (float32)";
    return config->state_slots == 0 ? NULL : "state_slots must be 0: its state is the residual";
}

/* Without feedback, values that are left out are lost. */
int64_t hpc_piece_encode_filtered(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state,
                                  void *out, int64_t cap, int64_t *kept) {
    const hpc_codec_config *config = encoding->config;
    const hpc_piece_filter how = {
        .filter = config->filter, .delta = encoding->delta, .values = config->values, .paper = config->paper != 0};
    int64_t nbytes = hpc_piece_encode(&how, hpc_source_values(source), n, state, out, cap, kept);
    if (config->no_feedback && nbytes > 0) memset(state, 0, (size_t)n * sizeof *state);
    return nbytes;
}
