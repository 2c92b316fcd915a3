/* The fold and related loops. There is one table for each instruction set, made of fold_kernel.h and wire_kernel.h and
 * chosen at run time in fold.c. */
#ifndef HPC_FOLD_H
#define HPC_FOLD_H

#include "hpcomm/hpcomm.h"

/* Does hpc_fold without its checks. With stream 1 it stores past the caches, and out must not be an input. These stores
 * are ordered before every later store of this thread. */
typedef void hpc_fold_fn(void *out, const void *const *in, const double *weights, int n_in, size_t count, int stream);

struct hpc_fold_kernels {
    hpc_fold_fn *f32;
    hpc_fold_fn *f64;
    hpc_fold_fn *f16; /* writes float32; if a sum is NaN, always the same NaN */
    hpc_fold_fn *bf16;
    /* hpc_encode without its checks. */
    void (*encode)(void *out, const float *in, size_t count, int dtype);
    /* memcpy for any alignment; stream as in the folds. */
    void (*copy)(void *out, const void *in, size_t nbytes, int stream);
    /* Returns 1 if no element is NaN or infinite, otherwise 0. Takes any hpc_dtype and any alignment. */
    int (*all_finite)(const void *in, size_t count, int dtype);
    /* Returns the sum of squares in float64: element i goes into sum i % 16, and the sums are added pairwise. All CPUs
     * give the same bits. */
    double (*squares)(const float *in, size_t count);
};

extern const struct hpc_fold_kernels hpc_fold_generic;
extern const struct hpc_fold_kernels hpc_fold_avx2;   /* built on x86-64; the CPU must have AVX2 and F16C */
extern const struct hpc_fold_kernels hpc_fold_avx512; /* and AVX-512F */

/* Returns the table of an instruction set that hpc_isa_check accepts. Never NULL. */
const struct hpc_fold_kernels *hpc_fold_kernels_of(int isa);

/* Returns the fold of an hpc_dtype. */
hpc_fold_fn *hpc_fold_of(const struct hpc_fold_kernels *kernels, int dtype);

/* Returns the size in bytes from which an output is streamed past the caches. */
size_t hpc_fold_stream_from(void);

#endif
