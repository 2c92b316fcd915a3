/* add.c - rebuilds an update from its factors. The functions are internal to the library, so add.py links this file
 * with the objects of the build. */
#define _GNU_SOURCE
#include "bench.h"
#include "codec/factors.h"

static hpc_codec_config config_of(uint64_t rows, uint64_t columns, int pairs, int values) {
    hpc_codec_config config;
    hpc_codec_config_init(&config);
    config.rows = rows, config.columns = columns, config.unit = rows * columns, config.pairs = pairs;
    config.values = values;
    return config;
}

/* Returns the bytes of an update as its trainer writes it: a head of 64, then pairs * rows values of u and pairs *
 * columns of v. */
BENCH_API size_t bench_factors_bytes(uint64_t rows, uint64_t columns, int pairs) {
    const hpc_codec_config config = config_of(rows, columns, pairs, HPC_F32);
    return hpc_factors_bytes(&config);
}

/* Encodes an update of pairs pairs into out, which has cap bytes; returns the bytes of the piece, or a negative
 * error. */
BENCH_API int64_t bench_factors_encode(uint64_t rows, uint64_t columns, int pairs, int values, void *update, void *out,
                                       int64_t cap) {
    const hpc_codec_config config = config_of(rows, columns, pairs, values);
    const hpc_codec_source source = {update, 0};
    int64_t kept;
    *hpc_factors_at(&config, update).count = pairs;
    return hpc_factors_encode(&config, &source, (int64_t)(rows * columns), out, cap, &kept, HPC_ISA_BEST);
}

/* Returns the seconds of one add_all of n pieces, each of weight 1, or the negative status with which a piece is
 * refused. */
BENCH_API double bench_factors_add_all(float *param, uint64_t rows, uint64_t columns, int pairs, int values,
                                       const void *const *pieces, const int64_t *nbytes, int n, double rate, int isa) {
    enum { MOST = 64 };
    const hpc_codec_config config = config_of(rows, columns, pairs, values);
    hpc_codec_input inputs[MOST];
    int wrong;
    for (int i = 0; i < n && i < MOST; i++) inputs[i] = (hpc_codec_input){pieces[i], nbytes[i], 1};
    const double start = bench_now();
    const int status =
        hpc_factors_add_all(&config, param, (int64_t)(rows * columns), inputs, n < MOST ? n : MOST, rate, &wrong, isa);
    return status != 0 ? status : bench_now() - start;
}
