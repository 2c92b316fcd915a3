/* Compiled with -mavx512f -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/lanes_avx512.h"
#include "kernel/prox_kernel.h"
#include "kernel/rules.h"

const hpc_builtin_rule *const *const hpc_rules_avx512 = rules;
const hpc_builtin_prox *const hpc_proxes_avx512 = proxes;
