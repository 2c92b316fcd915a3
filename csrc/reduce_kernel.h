/* The fold, written once. The file of an instruction set defines VECTOR_BYTES, stream_vector(to, from) and
 * stream_end(), and includes this once for each type: REAL, and the names of the functions made here, FOLD_SCALARS,
 * FOLD_LOOP and FOLD.
 *
 * All inputs are read side by side and each element of out is written once, so memory is passed over once for any n_in.
 * Every element sees the same operations in the same order, be it in a block, in a single vector or a scalar: without
 * contraction (-ffp-contract=off) that makes the bits the same for every vector width. */

static inline __attribute__((always_inline)) void FOLD_SCALARS(REAL *out, const void *const *in, const double *weights,
                                                               int n_in, size_t from, size_t to) {
    for (size_t j = from; j < to; j++) {
        REAL sum = (REAL)weights[0] * ((const REAL *)in[0])[j];
        for (int i = 1; i < n_in; i++) sum += (REAL)weights[i] * ((const REAL *)in[i])[j];
        out[j] = sum;
    }
}

static inline __attribute__((always_inline)) void FOLD_LOOP(REAL *out, const void *const *in, const double *weights,
                                                            int n_in, size_t count, int stream) {
    typedef REAL vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
    enum { LANES = VECTOR_BYTES / sizeof(REAL), WIDE = 8, BLOCK = LANES * WIDE, CACHE_LINE = 64 };
    /* Streamed stores must be aligned, and ordinary ones should not straddle cache lines. */
    size_t j = (CACHE_LINE - (uintptr_t)out % CACHE_LINE) % CACHE_LINE / sizeof(REAL);
    if (j > count) j = count;

    FOLD_SCALARS(out, in, weights, n_in, 0, j);
    for (; count - j >= BLOCK; j += BLOCK) {
        vector sum[WIDE];
        const vector *x = (const vector *)((const REAL *)in[0] + j);
#pragma GCC unroll 8
        for (int v = 0; v < WIDE; v++) sum[v] = (REAL)weights[0] * x[v];
        for (int i = 1; i < n_in; i++) {
            x = (const vector *)((const REAL *)in[i] + j);
#pragma GCC unroll 8
            for (int v = 0; v < WIDE; v++) sum[v] += (REAL)weights[i] * x[v];
        }
        vector *y = (vector *)(out + j);
        if (stream) {
#pragma GCC unroll 8
            for (int v = 0; v < WIDE; v++) stream_vector(&y[v], &sum[v]);
        } else {
#pragma GCC unroll 8
            for (int v = 0; v < WIDE; v++) y[v] = sum[v];
        }
    }
    for (; count - j >= LANES; j += LANES) {
        vector sum = (REAL)weights[0] * *(const vector *)((const REAL *)in[0] + j);
        for (int i = 1; i < n_in; i++) sum += (REAL)weights[i] * *(const vector *)((const REAL *)in[i] + j);
        *(vector *)(out + j) = sum;
    }
    FOLD_SCALARS(out, in, weights, n_in, j, count);
    /* Streamed stores are weakly ordered: without this a later release store could be seen before them. */
    if (stream) stream_end();
}

/* With a constant n_in and local copies, pointers and weights stay in registers and the loop over the inputs goes. */
static void FOLD(void *out, const void *const *in, const double *weights, int n_in, size_t count, int stream) {
    const void *x[3] = {in[0], n_in > 1 ? in[1] : NULL, n_in > 2 ? in[2] : NULL};
    double w[3] = {weights[0], n_in > 1 ? weights[1] : 0, n_in > 2 ? weights[2] : 0};
    switch (n_in) {
    case 1:
        FOLD_LOOP(out, x, w, 1, count, stream);
        break;
    case 2:
        FOLD_LOOP(out, x, w, 2, count, stream);
        break;
    case 3:
        FOLD_LOOP(out, x, w, 3, count, stream);
        break;
    default:
        FOLD_LOOP(out, in, weights, n_in, count, stream);
        break;
    }
}

#undef REAL
#undef FOLD_SCALARS
#undef FOLD_LOOP
#undef FOLD
