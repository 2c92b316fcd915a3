/* Compiled with -mavx2 -ffp-contract=off; runs only where the CPU has it. */
#define VECTOR_BYTES 32
#include "kernel/prox_kernel.h"

const hpc_builtin_prox *const hpc_proxes_avx2 = proxes;
