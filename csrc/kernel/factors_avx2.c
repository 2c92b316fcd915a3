/* Compiled with -mavx2 -mf16c -mfma -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/factors.h"
#include "kernel/lanes_avx2.h"

#define TILE_ROWS 6
#define TILE_VECTORS 2
#define SUM_PAIRS 8
#include "kernel/factors_kernel.h"

const struct hpc_factor_kernels hpc_factors_avx2 = {add, take, can_take, take_sum, count, dot};
