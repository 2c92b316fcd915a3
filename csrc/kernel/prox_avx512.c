/* Compiled with -mavx512f -ffp-contract=off; runs only where the CPU has it. */
#define VECTOR_BYTES 64
#include "kernel/prox_kernel.h"

const hpc_builtin_prox *const hpc_proxes_avx512 = proxes;
