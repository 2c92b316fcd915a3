/* The rule sgd on the state Z (SFB, section 2.1). The parameters are the prox of Z, which the engine computes
 * (engine/owner/prox.c). */
#ifndef HPC_RULE_DUAL_H
#define HPC_RULE_DUAL_H

#include "kernel/rule_kernel.h"

static const hpc_builtin_rule rule_dual = {
    .rule = {.name = "dual", .apply = sgd, .slots = 1, .args = {0, 1, 0}, .arg_names = "lr weight_decay", .dual = 1},
};

#endif
