/* SGD with momentum: g += weight_decay * w; m = momentum * m + g; w -= lr * m. */
#ifndef HPC_RULE_MOMENTUM_H
#define HPC_RULE_MOMENTUM_H

#include "kernel/rule_kernel.h"

INLINE void momentum_step(reals *p, reals g, reals *s, const struct constants *c) {
    s[0] = c->momentum * s[0] + g;
    *p -= c->rate * s[0];
}

static int momentum(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count;
    struct constants c = constants_of(args);
    return apply(momentum_step, 1, &c, param, acc, state, n);
}

static int momentum_pass(const hpc_pass *p) {
    struct constants c = constants_of(p->args);
    return pass(momentum_step, 1, &c, p);
}

static const hpc_builtin_rule rule_momentum = {
    .rule =
        {
            .name = "momentum",
            .apply = momentum,
            .slots = 1,
            .args = {0, 0.01, 0, 0.9},
            .arg_names = "lr weight_decay momentum",
        },
    .pass = momentum_pass,
};

#endif
