/* Adds weighted sums of products of vectors to a part of a matrix: the sum over pairs of weight u v^T. There is one
 * table for each instruction set, made of factors_kernel.h and chosen at run time in tables.c. All give the same bits.
 *
 * Every element sees the same operations in the same order: wu = (float)(weight * u[j]); s += wu * v[d], pair after
 * pair, by fused multiply-add. Elements that a sparse vector lacks are skipped or count as 0: a sum that begins with 0
 * never becomes -0, so adding a product of 0 leaves its bits as they are.
 *
 * A kernel needs at most 192 KiB of stack, besides the 128 KiB of the codec that calls it, and allocates nothing.
 * Indices that are out of range, or that change meanwhile, give wrong sums, but nothing outside the part is written. */
#ifndef HPC_KERNEL_FACTORS_H
#define HPC_KERNEL_FACTORS_H

#include "hpcomm/hpcomm.h"

/* The most pairs that a kernel takes at once, and the most dense pairs that it can subtract from parameters in one
 * pass. */
enum { HPC_FACTOR_PAIRS = 512, HPC_FACTOR_DENSE_PAIRS = 256 };

/* A vector with n stored values. The indices of the values rise and are below the field length; indices NULL: they are
 * 0, 1, ... */
typedef struct hpc_factor {
    const void *values, *indices;
    uint32_t n, length;
} hpc_factor;

typedef struct hpc_factor_pair {
    hpc_factor u, v;
    double weight;
} hpc_factor_pair;

/* A part of a matrix: rows from row to row + rows, columns from column to column + columns. to is its first element. */
typedef struct hpc_factor_part {
    float *to;
    size_t stride; /* elements from one row to the next */
    uint32_t row, rows, column, columns;
    int values;                  /* of the pairs: HPC_F32, HPC_F16 or HPC_BF16 */
    int wide_rows, wide_columns; /* whether the indices of u, and of v, are uint32_t; otherwise uint16_t */
} hpc_factor_part;

struct hpc_factor_kernels {
    /* Adds the weighted sum of n pairs, at most HPC_FACTOR_PAIRS, to a part's elements, pair after pair. */
    void (*add)(const hpc_factor_part *part, const hpc_factor_pair *pairs, size_t n);
    /* The function take subtracts rate times the weighted sum of n pairs from a part. The sum begins with 0; elements
     * without products may stay unchanged. The function can_take returns whether take can do this in one pass. For that
     * the pairs must be of one kind (the same vectors sparse), and at most HPC_FACTOR_DENSE_PAIRS if dense. */
    void (*take)(const hpc_factor_part *part, const hpc_factor_pair *pairs, size_t n, float rate);
    int (*can_take)(const hpc_factor_pair *pairs, size_t n);
    /* Computes param -= rate * sum, row by row. */
    void (*take_sum)(const hpc_factor_part *param, const float *sum, size_t stride, float rate);
    /* Returns how many of n values are not 0. */
    size_t (*count)(const float *values, size_t n);
    /* Returns the inner product of a and b in float64: element i goes into sum i % 16, and the sums are added
     * pairwise. */
    double (*dot)(const hpc_factor *a, const hpc_factor *b, size_t n, int values, int wide);
};

extern const struct hpc_factor_kernels hpc_factors_generic;
extern const struct hpc_factor_kernels hpc_factors_avx2;   /* built on x86-64; the CPU must have AVX2, F16C and FMA */
extern const struct hpc_factor_kernels hpc_factors_avx512; /* and AVX-512F */

/* Returns the table of an instruction set that hpc_isa_check accepts. Never NULL. */
const struct hpc_factor_kernels *hpc_factor_kernels_of(int isa);

#endif
