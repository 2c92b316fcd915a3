/* The fold and what goes with it: one table for each instruction set, all of them made of fold_kernel.h and
 * wire_kernel.h, chosen at run time in fold.c. */
#ifndef HPC_FOLD_H
#define HPC_FOLD_H

#include "hpcomm/hpcomm.h"

/* hpc_fold without its checks. stream asks for stores that bypass the caches; out may not be an input then. They are
 * ordered before every later store of this thread. */
typedef void hpc_fold_fn(void *out, const void *const *in, const double *weights, int n_in, size_t count, int stream);

struct hpc_fold_kernels {
    hpc_fold_fn *f32;
    hpc_fold_fn *f64;
    hpc_fold_fn *f16; /* float32 comes out; where the sum is NaN, always the same one */
    hpc_fold_fn *bf16;
    /* hpc_encode without its checks. */
    void (*encode)(void *out, const float *in, size_t count, int dtype);
    /* memcpy for any alignment; stream is that of the folds. */
    void (*copy)(void *out, const void *in, size_t nbytes, int stream);
    /* 1 when no element is NaN or infinite, else 0. Any hpc_dtype, any alignment. */
    int (*all_finite)(const void *in, size_t count, int dtype);
    /* The sum of squares, in float64: element i into sum i % 16, then these pairwise. The same bits on all CPUs. */
    double (*squares)(const float *in, size_t count);
};

extern const struct hpc_fold_kernels hpc_fold_generic;
extern const struct hpc_fold_kernels hpc_fold_avx2;   /* built on x86-64; the CPU must have AVX2 and F16C */
extern const struct hpc_fold_kernels hpc_fold_avx512; /* and AVX-512F */

/* The table of an instruction set that hpc_isa_check let pass. Never NULL. */
const struct hpc_fold_kernels *hpc_fold_kernels_of(int isa);

/* The fold of a dtype, any of hpc_dtype. */
hpc_fold_fn *hpc_fold_of(const struct hpc_fold_kernels *kernels, int dtype);

/* The size in bytes from which an output is streamed past the caches. */
size_t hpc_fold_stream_from(void);

#endif
