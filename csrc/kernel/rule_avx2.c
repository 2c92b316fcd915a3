/* Compiled with -mavx2 -mf16c -ffp-contract=off; runs only where the CPU has it. */
#include "kernel/lanes_avx2.h"
#include "kernel/prox_kernel.h"
#include "kernel/rules.h"

const hpc_builtin_rule *const *const hpc_rules_avx2 = rules;
const hpc_builtin_prox *const hpc_proxes_avx2 = proxes;
