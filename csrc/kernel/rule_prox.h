/* The rules to which a prox belongs (SFB, section 2.1): sgd on the parameters, or on the state Z that they are made of.
 * The engine calls the prox (engine/prox.c). */
#ifndef HPC_RULE_PROX_H
#define HPC_RULE_PROX_H

#include "kernel/rule_sgd.h"

static const hpc_builtin_rule rule_proxsgd = {
    .rule = {.name = "proxsgd", .apply = sgd, .args = {0, 0.01, 0}, .arg_names = "lr weight_decay"},
    .pass = sgd_pass,
};

static const hpc_builtin_rule rule_dual = {
    .rule = {.name = "dual", .apply = sgd, .slots = 1, .args = {0, 1, 0}, .arg_names = "lr weight_decay", .dual = 1},
};

#endif
