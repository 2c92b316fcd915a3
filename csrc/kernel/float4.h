/* The loops of 4-bit floats over a unit of elements: one table for each instruction set, all of them with the same
 * bits, made of float4_kernel.h and chosen at run time in tables.c.
 *
 * A code has a sign in bit 3 and an exponent in the bits below (E3M0). Exponent 0 stands for 0, and e for
 * scale * 2^(e - 7): 7 is the scale itself. Two codes lie in a byte, the earlier element's in the lower half; the upper
 * half behind a last, single element is 0. */
#ifndef HPC_FLOAT4_H
#define HPC_FLOAT4_H

#include "hpcomm/hpcomm.h"

enum { HPC_FLOAT4_CODES = 16, HPC_FLOAT4_TOP = 7 };

/* The smallest scale at which all values, and half the smallest one, are normal float32 numbers. */
#define HPC_FLOAT4_LEAST 0x1p-118f

struct hpc_float4_kernels {
    /* The bits of the largest magnitude of n elements of u: a NaN's are above all others, and Inf's next. u is x; with
     * a residual it is x + residual, and replaces the residual. */
    uint32_t (*largest)(const float *x, float *residual, size_t n);
    /* Writes the codes that are nearest to n elements of u; of two equally near ones the larger. scale: finite, at
     * least HPC_FLOAT4_LEAST, and no magnitude of u is larger. Unless it is NULL, rest gets u less the codes' values;
     * it may be u. */
    void (*put)(const float *u, size_t n, float scale, uint8_t *codes, float *rest);
    /* Adds levels[code] to each of n elements. levels[8 + e] is levels[e] with the other sign. */
    void (*add)(float *acc, size_t n, const uint8_t *codes, const float levels[HPC_FLOAT4_CODES]);
};

extern const struct hpc_float4_kernels hpc_float4_generic;
extern const struct hpc_float4_kernels hpc_float4_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const struct hpc_float4_kernels hpc_float4_avx512; /* and AVX-512F */

/* The value of each code with a scale, times weight, rounded once. */
void hpc_float4_levels(float levels[HPC_FLOAT4_CODES], float scale, float weight);

/* The table of an instruction set that hpc_isa_check let pass. Never NULL. */
const struct hpc_float4_kernels *hpc_float4_kernels_of(int isa);

#endif
