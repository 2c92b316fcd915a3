/* Reads pieces of factors pair by pair, within bounds whatever their memory holds.
 *
 * A piece of count pairs, after its head:
 *
 *     form                 bytes
 *     HPC_PIECE_FACTORS    count vectors v, then the piece's rows of count vectors u: values
 *     HPC_PIECE_SPARSE     2 count lengths (uint32_t), v's first: entries, or HPC_FACTOR_DENSE; then the vectors
 *                          in the same order, each from a multiple of 4 bytes on: its values if it is dense;
 *                          otherwise its indices, which ascend, and from a multiple of 4 bytes on its values
 *     HPC_PIECE_DENSE      the sum
 *
 * Indices are uint16_t if the length of the vector is at most 65,536, otherwise uint32_t. */
#ifndef HPC_FACTORS_READ_H
#define HPC_FACTORS_READ_H

#include "codec/piece.h"
#include "kernel/factors.h"

#define HPC_FACTOR_DENSE UINT32_MAX
enum { HPC_FACTOR_NARROW = 1 << 16 };

/* Sizes of the vectors in a configuration's pieces of n elements. */
typedef struct hpc_factor_sizes {
    uint64_t rows, columns, pairs;
    int values;
    size_t item;
    size_t u_index, v_index; /* bytes of an index */
} hpc_factor_sizes;

hpc_factor_sizes hpc_factors_sizes(const hpc_codec_config *config, uint64_t n);
/* Returns the most bytes of a piece. */
size_t hpc_factors_most(const hpc_factor_sizes *sizes);
/* Returns the bytes of a vector in a sparse piece. entries: its entries, or HPC_FACTOR_DENSE. */
static inline uint64_t hpc_factors_vector(uint64_t length, uint64_t entries, size_t item, size_t index) {
    if (entries == HPC_FACTOR_DENSE) return (length * item + 3) / 4 * 4;
    return (entries * index + 3) / 4 * 4 + (entries * item + 3) / 4 * 4;
}

/* Returns 0 if n elements are whole rows of a matrix, and in is a valid piece of them, with all its lengths and
 * indices; otherwise the error (HPC_PIECE_*). */
int hpc_factors_check(const hpc_codec_config *config, int64_t n, const void *in, int64_t nbytes);

/* A walk over the pairs of some checked pieces, in order. hpc_factors_next fills in the next pairs, at most
 * HPC_FACTOR_PAIRS, and returns how many. If it returns 0, *array is the next piece that is a sum; array->values is
 * NULL at the end of the walk. */
typedef struct hpc_factors_walk {
    hpc_factor_sizes sizes;
    const hpc_codec_input *inputs;
    int n_inputs, at;
    int64_t n;
    uint32_t pair, pairs; /* of the present input */
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
