/* For every CPU. Compiled with -ffp-contract=off. */
#define VECTOR_BYTES 16
#include "kernel/prox_kernel.h"

const hpc_builtin_prox *const hpc_proxes_generic = proxes;
