/* The fold, written once. wire_kernel.h includes this file once for each type, and defines REAL and the names of the
 * functions made here: FOLD_SCALARS, FOLD_BLOCKS and FOLD. For inputs narrower than REAL, which then is float, it also
 * defines ITEM, WIDEN(item), which converts one item, and LOAD(items), which converts a vector of them.
 *
 * All inputs are read side by side and each element of out is written once, so one pass over memory suffices for any
 * n_in. Every element sees the same operations in the same order, whether in a block, in a single vector or as a
 * scalar. Without contraction (-ffp-contract=off) all vector widths therefore give the same bits. If two NaNs are
 * added, the compiler decides which one becomes the sum. Encoders of the narrow types send a NaN's bits, so folds of
 * these types replace every NaN by one fixed NaN. */

#ifdef ITEM
#define SETTLE(sum) one_nan(sum)
#define SETTLE_SCALAR(sum) ((sum) == (sum) ? (sum) : hpc_float_of_bits(0x7fc00000))
#else
#define ITEM REAL
#define WIDEN(item) (item)
#define LOAD(items) (*(const vector *)(items))
#define SETTLE(sum) (sum)
#define SETTLE_SCALAR(sum) (sum)
#endif

static void FOLD_SCALARS(REAL *out, const void *const *in, const double *weights, int n_in, size_t from, size_t to) {
    for (size_t j = from; j < to; j++) {
        REAL sum = (REAL)weights[0] * WIDEN(((const ITEM *)in[0])[j]);
        for (int i = 1; i < n_in; i++) sum += (REAL)weights[i] * WIDEN(((const ITEM *)in[i])[j]);
        out[j] = SETTLE_SCALAR(sum);
    }
}

/* Folds blocks of a few vectors, from element j on; returns the first element that is left. */
static inline __attribute__((always_inline)) size_t FOLD_BLOCKS(REAL *out, const void *const *in, const double *weights,
                                                                int n_in, size_t j, size_t count, int stream) {
    typedef REAL vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
    enum { WIDE = 4, LANES = VECTOR_BYTES / sizeof(REAL), BLOCK = WIDE * LANES };
    for (; count - j >= BLOCK; j += BLOCK) {
        vector sum[WIDE];
        const ITEM *x = (const ITEM *)in[0] + j;
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; v++) sum[v] = (REAL)weights[0] * LOAD(x + v * LANES);
#pragma GCC unroll 8
        for (int i = 1; i < n_in; i++) {
            x = (const ITEM *)in[i] + j;
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; v++) sum[v] += (REAL)weights[i] * LOAD(x + v * LANES);
        }
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; v++) sum[v] = SETTLE(sum[v]);
        vector *y = (vector *)(out + j);
        if (stream) {
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; v++) stream_vector(&y[v], &sum[v]);
        } else {
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; v++) y[v] = sum[v];
        }
    }
    return j;
}

static void FOLD(void *to, const void *const *in, const double *weights, int n_in, size_t count, int stream) {
    typedef REAL vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
    enum { LANES = VECTOR_BYTES / sizeof(REAL), CACHE_LINE = 64, FEW = 8 };
    REAL *out = to;
    const void *x[FEW];
    double w[FEW];
    for (int i = 0; i < n_in && i < FEW; i++) {
        x[i] = in[i];
        w[i] = weights[i];
    }

    /* Streamed stores must be aligned, and ordinary stores should not straddle cache lines. */
    size_t j = (CACHE_LINE - (uintptr_t)out % CACHE_LINE) % CACHE_LINE / sizeof(REAL);
    if (j > count) j = count;
    FOLD_SCALARS(out, in, weights, n_in, 0, j);

    /* A constant n_in gives each input separate load instructions. Prefetchers that follow the strides of single
     * instructions then see n_in simple streams; a loop over four or eight inputs was up to twice as slow. */
    switch (n_in) {
    case 1:
        j = FOLD_BLOCKS(out, x, w, 1, j, count, stream);
        break;
    case 2:
        j = FOLD_BLOCKS(out, x, w, 2, j, count, stream);
        break;
    case 3:
        j = FOLD_BLOCKS(out, x, w, 3, j, count, stream);
        break;
    case 4:
        j = FOLD_BLOCKS(out, x, w, 4, j, count, stream);
        break;
    case 5:
        j = FOLD_BLOCKS(out, x, w, 5, j, count, stream);
        break;
    case 6:
        j = FOLD_BLOCKS(out, x, w, 6, j, count, stream);
        break;
    case 7:
        j = FOLD_BLOCKS(out, x, w, 7, j, count, stream);
        break;
    case 8:
        j = FOLD_BLOCKS(out, x, w, 8, j, count, stream);
        break;
    default:
        j = FOLD_BLOCKS(out, in, weights, n_in, j, count, stream);
        break;
    }

    for (; count - j >= LANES; j += LANES) {
        vector sum = (REAL)weights[0] * LOAD((const ITEM *)in[0] + j);
        for (int i = 1; i < n_in; i++) sum += (REAL)weights[i] * LOAD((const ITEM *)in[i] + j);
        *(vector *)(out + j) = SETTLE(sum);
    }
    FOLD_SCALARS(out, in, weights, n_in, j, count);

    /* Streamed stores are weakly ordered: without a fence here, a later release store could become visible before
     * them. */
    fold_end(stream);
}

#undef REAL
#undef ITEM
#undef WIDEN
#undef LOAD
#undef SETTLE
#undef SETTLE_SCALAR
#undef FOLD_SCALARS
#undef FOLD_BLOCKS
#undef FOLD
