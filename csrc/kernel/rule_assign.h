/* The folded update becomes the parameters, as with average, but workers push updates and no models: so the updates may
 * have any codec. This rule has no pass, which would make it look like sgd. */
#ifndef HPC_RULE_ASSIGN_H
#define HPC_RULE_ASSIGN_H

#include "kernel/rule_kernel.h"

static int assign(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count, (void)state, (void)args;
    if (n > 0) memcpy(param, acc, (size_t)n * sizeof(float));
    return HPC_OK;
}

static const hpc_builtin_rule rule_assign = {
    .rule = {.name = "assign", .apply = assign},
};

#endif
