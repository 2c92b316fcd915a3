/* For every CPU. Compiled with -ffp-contract=off. */
#include "kernel/factors.h"
#include "kernel/lanes_generic.h"

#define TILE_ROWS 4
#define TILE_VECTORS 2
#define SUM_PAIRS 2
#include "kernel/factors_kernel.h"

const struct hpc_factor_kernels hpc_factors_generic = {add, take, can_take, take_sum, count, dot};
