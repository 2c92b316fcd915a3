/* Factors: the layout of an update, as a trainer writes it. */
#ifndef HPC_FACTORS_H
#define HPC_FACTORS_H

#include "codec/codec.h"

/* Bytes before the vectors, in which the count of pairs stands. */
enum { HPC_FACTORS_HEAD = 64 };

/* Returns the bytes of a whole update: the head, then u and v of all pairs. */
static inline size_t hpc_factors_bytes(const hpc_codec_config *config) {
    return HPC_FACTORS_HEAD + (size_t)config->pairs * (size_t)(config->rows + config->columns) * sizeof(float);
}

/* Returns the parts of an update at source, which has hpc_factors_bytes. */
static inline hpc_factors hpc_factors_at(const hpc_codec_config *config, void *source) {
    float *u = (float *)(void *)((char *)source + HPC_FACTORS_HEAD);
    return (hpc_factors){.count = source,
                         .u = u,
                         .v = u + (size_t)config->pairs * config->rows,
                         .pairs = config->pairs,
                         .rows = config->rows,
                         .columns = config->columns};
}

/* The codec's functions, by the kernels of an instruction set (hpc_isa). */
int64_t hpc_factors_encode(const hpc_codec_config *config, const hpc_codec_source *source, int64_t n, void *out,
                           int64_t cap, int64_t *kept, int isa);
int hpc_factors_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                    double weight, int isa);
int hpc_factors_add_all(const hpc_codec_config *config, float *param, int64_t n, const hpc_codec_input *inputs,
                        int n_inputs, double rate, int *wrong, int isa);
void hpc_factors_add_range(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                           uint64_t from, uint64_t count, float *sum, int isa);

#endif
