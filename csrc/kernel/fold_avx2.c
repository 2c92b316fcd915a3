/* Compiled with -mavx2 -mf16c -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/fold.h"
#include "kernel/lanes_avx2.h"
#include "kernel/wire_kernel.h"

#define REAL float
#define FOLD_SCALARS fold_scalars_f32
#define FOLD_BLOCKS fold_blocks_f32
#define FOLD fold_f32
#include "kernel/fold_kernel.h"

#define REAL double
#define FOLD_SCALARS fold_scalars_f64
#define FOLD_BLOCKS fold_blocks_f64
#define FOLD fold_f64
#include "kernel/fold_kernel.h"

#define REAL float
#define ITEM uint16_t
#define WIDEN hpc_from_f16
#define LOAD load_f16
#define FOLD_SCALARS fold_scalars_f16
#define FOLD_BLOCKS fold_blocks_f16
#define FOLD fold_f16
#include "kernel/fold_kernel.h"

#define REAL float
#define ITEM uint16_t
#define WIDEN hpc_from_bf16
#define LOAD load_bf16
#define FOLD_SCALARS fold_scalars_bf16
#define FOLD_BLOCKS fold_blocks_bf16
#define FOLD fold_bf16
#include "kernel/fold_kernel.h"

const struct hpc_fold_kernels hpc_fold_avx2 = {fold_f32, fold_f64, fold_f16,   fold_bf16,
                                               encode,   copy,     all_finite, squares};
