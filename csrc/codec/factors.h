/* Factors: an update as a trainer writes it, and its pieces as they are read. */
#ifndef HPC_FACTORS_H
#define HPC_FACTORS_H

#include "codec/piece.h"
#include "kernel/factors.h"

/* ---- an update ---- */

/* Bytes before the vectors: the count of pairs lies there. */
enum { HPC_FACTORS_HEAD = 64 };

/* Bytes of a whole update: the head, then u and v of all pairs. */
static inline size_t hpc_factors_bytes(const hpc_codec_config *config) {
    return HPC_FACTORS_HEAD + (size_t)config->pairs * (size_t)(config->rows + config->columns) * sizeof(float);
}

/* The parts of an update at source, which has hpc_factors_bytes. */
static inline hpc_factors hpc_factors_at(const hpc_codec_config *config, void *source) {
    float *u = (float *)(void *)((char *)source + HPC_FACTORS_HEAD);
    return (hpc_factors){.count = source,
                         .u = u,
                         .v = u + (size_t)config->pairs * config->rows,
                         .pairs = config->pairs,
                         .rows = config->rows,
                         .columns = config->columns};
}

/* The codec's functions by the kernels of an instruction set (hpc_isa). */
int64_t hpc_factors_encode(const hpc_codec_config *config, const hpc_codec_source *source, int64_t n, void *out,
                           int64_t cap, int64_t *kept, int isa);
int hpc_factors_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                    double weight, int isa);
int hpc_factors_add_all(const hpc_codec_config *config, float *param, int64_t n, const hpc_codec_input *inputs,
                        int n_inputs, double rate, int *wrong, int isa);
void hpc_factors_add_range(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                           uint64_t from, uint64_t count, float *sum, int isa);

/* ---- pieces ----
 *
 * Pieces of factors, as they are read: pair by pair, in bounds whatever their memory holds.
 *
 * A piece of count pairs, behind its head:
 *
 *     form                 bytes
 *     HPC_PIECE_FACTORS    count vectors v, then the piece's rows of count vectors u: values
 *     HPC_PIECE_SPARSE     2 count lengths (uint32_t), v's first: entries, or HPC_FACTOR_DENSE; then the vectors
 *                          in the same order, each from a multiple of 4 bytes on: its values if it is dense, else its
 *                          indices, which ascend, and from a multiple of 4 bytes on its values
 *     HPC_PIECE_DENSE      the sum
 *
 * Indices are uint16_t where the length of the vector is at most 65,536, else uint32_t. */

#define HPC_FACTOR_DENSE UINT32_MAX
enum { HPC_FACTOR_NARROW = 1 << 16 };

/* Vectors of a configuration's pieces of n elements. */
typedef struct hpc_factor_sizes {
    uint64_t rows, columns, pairs;
    int values;
    size_t item;
    size_t u_index, v_index; /* bytes of an index */
} hpc_factor_sizes;

hpc_factor_sizes hpc_factors_sizes(const hpc_codec_config *config, uint64_t n);
/* The most bytes of a piece. */
size_t hpc_factors_most(const hpc_factor_sizes *sizes);
/* Bytes of a vector in a sparse piece; entries: of them, or HPC_FACTOR_DENSE. */
static inline uint64_t hpc_factors_vector(uint64_t length, uint64_t entries, size_t item, size_t index) {
    if (entries == HPC_FACTOR_DENSE) return (length * item + 3) / 4 * 4;
    return (entries * index + 3) / 4 * 4 + (entries * item + 3) / 4 * 4;
}

/* 0 if n elements are rows of a matrix, and in is a sound piece of them, with all its lengths and indices; else the
 * error (HPC_PIECE_*). */
int hpc_factors_check(const hpc_codec_config *config, int64_t n, const void *in, int64_t nbytes);

/* Walks over the pairs of some pieces that were checked, in order. The number of pairs that lie behind each other, at
 * most HPC_FACTOR_PAIRS, or 0: then *array is the next piece that is a sum, or NULL at the end. */
typedef struct hpc_factors_walk {
    hpc_factor_sizes sizes;
    const hpc_codec_input *inputs;
    int n_inputs, at;
    int64_t n;
    uint32_t pair, pairs; /* of input at */
    const char *u, *v, *end;
    const char *table; /* NULL: all its vectors are dense */
} hpc_factors_walk;

/* A piece that is a sum: n values in the configuration's format. */
typedef struct hpc_factors_array {
    const char *values;
    double weight;
} hpc_factors_array;

void hpc_factors_begin(hpc_factors_walk *walk, const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs,
                       int n_inputs);
size_t hpc_factors_next(hpc_factors_walk *walk, hpc_factor_pair *pairs, hpc_factors_array *array);

#endif
