/* For every CPU: vectors of 16 bytes, which the compiler maps to the baseline's registers. -ffp-contract=off. */
#include "kernel/combine.h"
#include "kernel/lanes_generic.h"
#include "kernel/combine_kernel.h"

const struct hpc_combine_kernels hpc_combine_generic = COMBINE_TABLE;
