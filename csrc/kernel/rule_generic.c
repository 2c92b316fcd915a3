/* For every CPU. Compiled with -ffp-contract=off. */
#include "kernel/lanes_generic.h"
#include "kernel/prox_kernel.h"
#include "kernel/rules.h"

const hpc_builtin_rule *const *const hpc_rules_generic = rules;
const hpc_builtin_prox *const hpc_proxes_generic = proxes;
