/* Sums of products of vectors, weighted, as a part of a matrix: sum over pairs of weight u v^T. One table for each
 * instruction set, all of them with the same bits, made of factors_kernel.h and chosen at run time in tables.c.
 *
 * Every element sees the same operations in the same order: wu = (float)(weight * u[j]); s += wu * v[d], pair after
 * pair, the product rounded. Elements that a sparse vector leaves out are skipped, or are 0: a sum that begins with 0
 * never becomes -0, so adding a product that is 0 changes no bit of it.
 *
 * A kernel has at most 192 KiB on its stack, beside 128 KiB of the codec that calls it, and takes no other memory.
 * Indices that are out of range, or that change while it works, cost nothing but wrong sums: nothing outside the part
 * is written. */
#ifndef HPC_KERNEL_FACTORS_H
#define HPC_KERNEL_FACTORS_H

#include "hpcomm/hpcomm.h"

/* Pairs that a kernel takes at once, and how many of them it can subtract from parameters if all vectors are dense. */
enum { HPC_FACTOR_PAIRS = 512, HPC_FACTOR_DENSE_PAIRS = 256 };

/* A vector: n values, at indices that ascend and are below length, or (indices NULL) from 0 on. */
typedef struct hpc_factor {
    const void *values, *indices;
    uint32_t n, length;
} hpc_factor;

typedef struct hpc_factor_pair {
    hpc_factor u, v;
    double weight;
} hpc_factor_pair;

/* A part of a matrix: elements row to row + rows, column to column + columns, of which the first lies at to. */
typedef struct hpc_factor_part {
    float *to;
    size_t stride; /* elements from one row to the next */
    uint32_t row, rows, column, columns;
    int values;                  /* of the pairs: HPC_F32, HPC_F16 or HPC_BF16 */
    int wide_rows, wide_columns; /* indices of u, of v: uint32_t, else uint16_t */
} hpc_factor_part;

struct hpc_factor_kernels {
    /* Adds the weighted sum of n pairs, at most HPC_FACTOR_PAIRS, to a part: to its elements, one product after the
     * other. */
    void (*add)(const hpc_factor_part *part, const hpc_factor_pair *pairs, size_t n);
    /* Subtracts rate times the weighted sum of n pairs from a part. The sum begins with 0, and elements without
     * products may stay as they are. can_take: whether the pairs are so alike that it does this in one pass. */
    void (*take)(const hpc_factor_part *part, const hpc_factor_pair *pairs, size_t n, float rate);
    int (*can_take)(const hpc_factor_pair *pairs, size_t n);
    /* param -= rate * sum, for rows of elements. */
    void (*take_sum)(const hpc_factor_part *param, const float *sum, size_t stride, float rate);
    /* How many of n values are not 0. */
    size_t (*count)(const float *values, size_t n);
    /* u . w, in float64: element i into sum i % 16, then these pairwise. */
    double (*dot)(const hpc_factor *a, const hpc_factor *b, size_t n, int values, int wide);
};

extern const struct hpc_factor_kernels hpc_factors_generic;
extern const struct hpc_factor_kernels hpc_factors_avx2;   /* built on x86-64; the CPU must have AVX2, F16C and FMA */
extern const struct hpc_factor_kernels hpc_factors_avx512; /* and AVX-512F */

/* The table of an instruction set that hpc_isa_check let pass. Never NULL. */
const struct hpc_factor_kernels *hpc_factor_kernels_of(int isa);

#endif
