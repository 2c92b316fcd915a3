/* The built-in rules, each in its own file. The file of each instruction set includes this one after its lanes_*.h,
 * which compiles every rule once for that set. */
#ifndef HPC_RULES_H
#define HPC_RULES_H

#include "kernel/rule_average.h"
#include "kernel/rule_assign.h"
#include "kernel/rule_sgd.h"
#include "kernel/rule_proxsgd.h"
#include "kernel/rule_dual.h"
#include "kernel/rule_momentum.h"
#include "kernel/rule_nesterov.h"
#include "kernel/rule_adam.h"
#include "kernel/rule_adamw.h"

static const hpc_builtin_rule *const rules[] = {
    // clang-format off
    &rule_average,
    &rule_assign,
    &rule_sgd,
    &rule_momentum,
    &rule_nesterov,
    &rule_adam,
    &rule_adamw,
    &rule_proxsgd,
    &rule_dual,
    NULL,
    // clang-format on
};

#endif
