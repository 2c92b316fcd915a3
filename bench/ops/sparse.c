/* sparse.c - the codecs' encoder and decoder, with any filter and instruction set. They are internal to the library,
 * so sparse_bench.py links this file with the objects of the build. */
#define _GNU_SOURCE
#include "bench.h"
#include "codec/piece.h"

/* Returns the filter of an instruction set (hpc_isa). */
BENCH_API void *bench_filter(int isa) {
    return (void *)hpc_sparse_kernels_of(isa)->filter_f32;
}

/* Returns the seconds of one encode of n elements; *nbytes gets the bytes of the piece, or a negative error. */
BENCH_API double bench_encode(void *filter, int isa, const float *x, int64_t n, float *residual, float delta, void *out,
                              int64_t cap, int64_t *nbytes) {
    hpc_piece_filter how = {.filter = (hpc_filter_fn *)filter, .delta = delta, .values = HPC_F32, .isa = isa};
    double start = bench_now();
    *nbytes = hpc_piece_encode(&how, x, n, residual, out, cap, NULL);
    return bench_now() - start;
}

/* Returns the seconds of one decode_add, or the negative status with which the piece is refused. */
BENCH_API double bench_decode_add(float *acc, int64_t n, const void *in, int64_t nbytes, int isa) {
    double start = bench_now();
    int status = hpc_piece_add(acc, n, in, nbytes, 1, isa);
    return status != 0 ? status : bench_now() - start;
}

/* Returns the seconds of an encoder's memory traffic alone: 12 bytes per element, 8 read and 4 written. */
BENCH_API double bench_traffic(const float *restrict x, int64_t n, float *restrict residual) {
    double start = bench_now();
    for (int64_t i = 0; i < n; i++) residual[i] += x[i];
    return bench_now() - start;
}
