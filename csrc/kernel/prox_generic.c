/* For every CPU. Compiled with -ffp-contract=off. */
#include "kernel/prox_kernel.h"

const hpc_builtin_prox *const hpc_proxes_generic = proxes;
