/* A bit an element, and two values for each unit. */
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

static float mean_of(double sum, size_t count) {
    return count > 0 ? (float)(sum / (double)count) : 0;
}

int64_t hpc_onebit_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    const struct hpc_sparse_kernels *kernels = hpc_sparse_kernels_of(HPC_ISA_BEST);
    int status = hpc_piece_check(n, HPC_F32, cap);
    if (status != 0) return status;
    if (!(args[HPC_ARG_UNIT] >= 1 && args[HPC_ARG_UNIT] <= HPC_PIECE_ELEMENTS)) return HPC_PIECE_BAD_ARGS;
    size_t unit = (size_t)args[HPC_ARG_UNIT], all = (size_t)n, units = (all + unit - 1) / unit;
    uint64_t nbytes = hpc_piece_signs_bytes(all, unit);
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
    return hpc_piece_finish(out, HPC_PIECE_SIGNS, HPC_F32, n, (int64_t)unit, (size_t)nbytes);
}
