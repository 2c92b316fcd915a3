/* For every CPU: vectors of 16 bytes, which the compiler maps to the baseline's registers. -ffp-contract=off. */
#include "kernel/fold.h"
#include "kernel/lanes_generic.h"
#include "kernel/wire_kernel.h"

const struct hpc_fold_kernels hpc_fold_generic = {fold_f32, fold_f64, fold_f16,   fold_bf16,
                                                  encode,   copy,     all_finite, squares};
