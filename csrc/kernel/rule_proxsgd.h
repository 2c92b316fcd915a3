/* The rule sgd, followed by a prox of the parameters (SFB, section 2.1), which the engine computes
 * (engine/owner/prox.c). */
#ifndef HPC_RULE_PROXSGD_H
#define HPC_RULE_PROXSGD_H

#include "kernel/rule_kernel.h"

static const hpc_builtin_rule rule_proxsgd = {
    .rule = {.name = "proxsgd", .apply = sgd, .args = {0, 0.01, 0}, .arg_names = "lr weight_decay"},
    .pass = sgd_pass,
};

#endif
