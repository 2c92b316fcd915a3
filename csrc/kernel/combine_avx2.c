/* Compiled with -mavx2 -mf16c -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/combine.h"
#include "kernel/lanes_avx2.h"
#include "kernel/combine_kernel.h"

const struct hpc_combine_kernels hpc_combine_avx2 = COMBINE_TABLE;
