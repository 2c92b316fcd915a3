/* Adam (Kingma and Ba, algorithm 1), with g += weight_decay * w first. */
#ifndef HPC_RULE_ADAM_H
#define HPC_RULE_ADAM_H

#include "kernel/rule_moments.h"

static int adam(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    struct constants c;
    int status = adam_constants(args, &c);
    (void)count;
    return status == HPC_OK ? apply(adam_step, 2, &c, param, acc, state, n) : status;
}

static int adam_pass(const hpc_pass *p) {
    struct constants c;
    int status = adam_constants(p->args, &c);
    return status == HPC_OK ? pass(adam_step, 2, &c, p) : status;
}

static const hpc_builtin_rule rule_adam = {
    .rule =
        {
            .name = "adam",
            .apply = adam,
            .slots = 2,
            .args = {0, 0.01, 0, 0.9, 0.999, 1e-8},
            .arg_names = "lr weight_decay beta1 beta2 epsilon",
        },
    .pass = adam_pass,
};

#endif
