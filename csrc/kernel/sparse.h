/* The loops of sparse codecs over arrays. There is one table for each instruction set, made of sparse_kernel.h and
 * chosen at run time in tables.c. All give the same bits.
 *
 * Bits tell which elements of a block are kept: bit i % 8 of byte i / 8 is for element i. The bits after the last
 * element are 0. */
#ifndef HPC_SPARSE_H
#define HPC_SPARSE_H

#include "hpcomm/hpcomm.h"

/* A gap is the number of elements that are skipped before the next kept one. Its code has one or two bytes. The largest
 * code, HPC_GAP_SKIP8 or HPC_GAP_SKIP16, skips that many elements and keeps none; a larger gap consists of several such
 * codes and a smaller one. */
enum { HPC_GAP_SKIP8 = 0xff, HPC_GAP_SKIP16 = 0xffff };
#define HPC_GAPS_DO_NOT_FIT SIZE_MAX

/* Writes the codes of the elements that the bits of n keep; n must be below 2^32. Returns how many codes, or
 * HPC_GAPS_DO_NOT_FIT if there are more than cap. Nothing is written from out + cap on. */
typedef size_t hpc_gaps_fn(const uint8_t *bits, size_t n, void *out, size_t cap);

/* Writes the positions of the elements that n codes keep; positions needs room for n + HPC_POSITIONS_SLACK. *next is
 * the element after the last one that codes have kept or skipped; the call moves *next past the elements of these
 * codes. Returns how many positions it wrote. */
enum { HPC_POSITIONS_SLACK = 16 };
typedef size_t hpc_positions_fn(const void *codes, size_t n, uint32_t *positions, uint32_t *next);

/* Returns how many elements n codes keep; *span is how many they keep and skip. */
typedef size_t hpc_codes_fn(const void *codes, size_t n, uint64_t *span);

struct hpc_sparse_kernels {
    hpc_filter_fn *filter_f32;
    /* Values are rounded to the nearest. Of a value beyond the format's largest number, that number is sent and the
     * rest stays in the residual. A value that would be rounded to 0 is not kept, however small delta is. */
    hpc_filter_fn *filter_f16, *filter_bf16;
    hpc_gaps_fn *gaps8, *gaps16;
    hpc_positions_fn *positions8, *positions16;
    hpc_codes_fn *codes8, *codes16;
    /* Returns how many bits of n elements are set. Bits after the last element, in its byte, count too. */
    size_t (*count)(const uint8_t *bits, size_t n);
    /* Adds the next value to each of n elements whose bit is set. It reads as many values as bits are set. */
    void (*add_bits)(float *acc, size_t n, const uint8_t *bits, const float *values);

    /* Makes one bit for each element: u = x + residual replaces the residual, and the bit is 1 if u >= 0. sums[0] is
     * the sum of the u with bit 1, sums[1] the sum of the others, in float64: element i goes into sum i % 16, and these
     * are added pairwise. Returns how many bits are set. */
    size_t (*signs)(const float *x, float *residual, size_t n, uint8_t *bits, double sums[2]);
    /* Subtracts plus from the elements with the bit and minus from the others; a result that is NaN or infinite becomes
     * 0. */
    void (*take_signs)(float *residual, size_t n, const uint8_t *bits, float plus, float minus);
    void (*add_signs)(float *acc, size_t n, const uint8_t *bits, float plus, float minus);
};

extern const struct hpc_sparse_kernels hpc_sparse_generic;
extern const struct hpc_sparse_kernels hpc_sparse_avx2;   /* built on x86-64; the CPU must have AVX2 and F16C */
extern const struct hpc_sparse_kernels hpc_sparse_avx512; /* and AVX-512F */

/* Returns the table of an instruction set that hpc_isa_check accepts. Never NULL. */
const struct hpc_sparse_kernels *hpc_sparse_kernels_of(int isa);

/* Both functions move values, one for each set bit, to their places among n elements. hpc_sparse_spread writes them in
 * the same dtype (HPC_F32, HPC_F16, HPC_BF16), with 0 in other places. hpc_sparse_return adds them to the residual as
 * float32. */
void hpc_sparse_spread(void *out, size_t n, const uint8_t *bits, const void *values, int dtype);
void hpc_sparse_return(float *residual, size_t n, const uint8_t *bits, const void *values, int dtype);

#endif
