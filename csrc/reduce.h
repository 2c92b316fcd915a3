/* The fold's kernels: one table for each instruction set, all of them reduce_kernel.h, chosen at run time in reduce.c.
 */
#ifndef HPC_REDUCE_H
#define HPC_REDUCE_H

#include "hpcomm/hpcomm.h"

/* hpc_fold without its checks. stream asks for stores that bypass the caches; out may not be an input then. They are
 * ordered before every later store of this thread. */
typedef void hpc_fold_fn(void *out, const void *const *in, const double *weights, int n_in, size_t count, int stream);

struct hpc_fold_kernels {
    hpc_fold_fn *f32;
    hpc_fold_fn *f64;
};

extern const struct hpc_fold_kernels hpc_fold_generic;
extern const struct hpc_fold_kernels hpc_fold_avx2;   /* built on x86-64; the CPU must have AVX2 */
extern const struct hpc_fold_kernels hpc_fold_avx512; /* and AVX-512F */

#endif
