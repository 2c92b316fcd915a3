/* Compiled with -mavx512f -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/factors.h"
#include "kernel/lanes_avx512.h"

#define TILE_ROWS 8
#define TILE_VECTORS 3
#define SUM_PAIRS 8
#include "kernel/factors_kernel.h"

const struct hpc_factor_kernels hpc_factors_avx512 = {add, take, can_take, take_sum, count, dot};
