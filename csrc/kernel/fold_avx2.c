/* Compiled with -mavx2 -mf16c -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/fold.h"
#include "kernel/lanes_avx2.h"
#include "kernel/wire_kernel.h"

const struct hpc_fold_kernels hpc_fold_avx2 = {fold_f32, fold_f64, fold_f16,   fold_bf16,
                                               encode,   copy,     all_finite, squares};
