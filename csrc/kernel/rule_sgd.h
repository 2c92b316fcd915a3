/* Stochastic gradient descent: g += weight_decay * w; w -= lr * g. */
#ifndef HPC_RULE_SGD_H
#define HPC_RULE_SGD_H

#include "kernel/rule_kernel.h"

static const hpc_builtin_rule rule_sgd = {
    .rule = {.name = "sgd", .apply = sgd, .args = {0, 0.01, 0}, .arg_names = "lr weight_decay"},
    .pass = sgd_pass,
};

#endif
