/* The loops of 4-bit floats over a unit of elements. There is one table for each instruction set, made of
 * float4_kernel.h and chosen at run time in tables.c. All give the same bits.
 *
 * A code has the sign in bit 3 and an exponent in the lower bits (E3M0). Exponent 0 stands for the value 0, and any
 * other exponent e for scale * 2^(e - 7); so exponent 7 stands for the scale itself. A byte has two codes; the earlier
 * element's code is in the lower half. The upper half after a last, single element is 0. */
#ifndef HPC_FLOAT4_H
#define HPC_FLOAT4_H

#include "hpcomm/hpcomm.h"

enum { HPC_FLOAT4_CODES = 16, HPC_FLOAT4_TOP = 7 };

/* The smallest scale whose values, and half of the smallest value, are normal float32 numbers. */
#define HPC_FLOAT4_LEAST 0x1p-118f

struct hpc_float4_kernels {
    /* Returns the bits of the largest magnitude among n elements of u; NaN's bits are above all others, then comes Inf.
     * u is x or, if there is a residual, x + residual, which then replaces the residual. */
    uint32_t (*largest)(const float *x, float *residual, size_t n);
    /* Writes the codes nearest to n elements of u; of two equally near ones, the larger. scale must be finite, at least
     * HPC_FLOAT4_LEAST, and at least as large as every magnitude. rest gets u minus the codes' values, unless rest is
     * NULL; rest may be u. */
    void (*put)(const float *u, size_t n, float scale, uint8_t *codes, float *rest);
    /* Adds levels[code] to each of n elements. levels[8 + e] must be levels[e] with the other sign. */
    void (*add)(float *acc, size_t n, const uint8_t *codes, const float levels[HPC_FLOAT4_CODES]);
};

extern const struct hpc_float4_kernels hpc_float4_generic;
extern const struct hpc_float4_kernels hpc_float4_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const struct hpc_float4_kernels hpc_float4_avx512; /* and AVX-512F */

/* Writes each code's value for a scale, times weight, rounded once. */
void hpc_float4_levels(float levels[HPC_FLOAT4_CODES], float scale, float weight);

/* Returns the table of an instruction set that hpc_isa_check accepts. Never NULL. */
const struct hpc_float4_kernels *hpc_float4_kernels_of(int isa);

#endif
