/* The loops of sparse codecs over arrays: one table for each instruction set, all of them with the same bits, made of
 * sparse_kernel.h and chosen at run time in tables.c.
 *
 * Bits tell which elements of a block are kept: bit i % 8 of byte i / 8 is element i's, and the bits behind the last
 * element are 0. */
#ifndef HPC_SPARSE_H
#define HPC_SPARSE_H

#include "hpcomm/hpcomm.h"

/* A gap is how many elements are skipped before the next one that is kept. It is a code of one or two bytes; the
 * largest code, HPC_GAP_SKIP8 or HPC_GAP_SKIP16, skips as many elements and keeps none: a larger gap is some of these
 * and a smaller code. */
enum { HPC_GAP_SKIP8 = 0xff, HPC_GAP_SKIP16 = 0xffff };
#define HPC_GAPS_DO_NOT_FIT SIZE_MAX

/* Writes the codes of the elements that the bits of n keep, n < 2^32. Returns their number, or HPC_GAPS_DO_NOT_FIT if
 * more than cap are needed; what lies behind out + cap is never written. */
typedef size_t hpc_gaps_fn(const uint8_t *bits, size_t n, void *out, size_t cap);

/* The positions of the elements that n codes keep: room for n + HPC_POSITIONS_SLACK of them. *next is the element that
 * follows the last one that was kept or skipped, before and after. Returns how many. */
enum { HPC_POSITIONS_SLACK = 16 };
typedef size_t hpc_positions_fn(const void *codes, size_t n, uint32_t *positions, uint32_t *next);

/* How many elements n codes keep; *span is how many they keep and skip. */
typedef size_t hpc_codes_fn(const void *codes, size_t n, uint64_t *span);

struct hpc_sparse_kernels {
    hpc_filter_fn *filter_f32;
    /* Rounded to the nearest; beyond the largest number of the format its value is sent and the rest stays. A number
     * that would be rounded to 0 is not kept, however small delta is. */
    hpc_filter_fn *filter_f16, *filter_bf16;
    hpc_gaps_fn *gaps8, *gaps16;
    hpc_positions_fn *positions8, *positions16;
    hpc_codes_fn *codes8, *codes16;
    /* How many of the bits of n elements are set, any behind them in the last byte included. */
    size_t (*count)(const uint8_t *bits, size_t n);
    /* Adds the next of the values to each of n elements whose bit is set. As many are read as there are bits. */
    void (*add_bits)(float *acc, size_t n, const uint8_t *bits, const float *values);

    /* One bit an element: u = x + residual replaces the residual, the bit says u >= 0. sums: of the u with the bit and
     * of the others, in float64: element i into sum i % 16, then these pairwise. Returns how many have the bit. */
    size_t (*signs)(const float *x, float *residual, size_t n, uint8_t *bits, double sums[2]);
    /* Takes plus from the elements with the bit and minus from the others; 0 where that is NaN or infinite. */
    void (*take_signs)(float *residual, size_t n, const uint8_t *bits, float plus, float minus);
    void (*add_signs)(float *acc, size_t n, const uint8_t *bits, float plus, float minus);
};

extern const struct hpc_sparse_kernels hpc_sparse_generic;
extern const struct hpc_sparse_kernels hpc_sparse_avx2;   /* built on x86-64; the CPU must have AVX2 and F16C */
extern const struct hpc_sparse_kernels hpc_sparse_avx512; /* and AVX-512F */

/* The table of an instruction set that hpc_isa_check let pass. Never NULL. */
const struct hpc_sparse_kernels *hpc_sparse_kernels_of(int isa);

/* Move values, one for each set bit, to their places among n elements. spread writes them in the same dtype (HPC_F32,
 * HPC_F16, HPC_BF16), and 0 elsewhere; return adds them to the residual as float32. */
void hpc_sparse_spread(void *out, size_t n, const uint8_t *bits, const void *values, int dtype);
void hpc_sparse_return(float *residual, size_t n, const uint8_t *bits, const void *values, int dtype);

#endif
