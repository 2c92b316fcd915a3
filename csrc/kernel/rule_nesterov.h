/* Nesterov's accelerated gradient: g += weight_decay * w; m = momentum * m + g; w -= lr * (g + momentum * m). */
#ifndef HPC_RULE_NESTEROV_H
#define HPC_RULE_NESTEROV_H

#include "kernel/rule_kernel.h"

INLINE void nesterov_step(reals *p, reals g, reals *s, const struct constants *c) {
    s[0] = c->momentum * s[0] + g;
    *p -= c->rate * (g + c->momentum * s[0]);
}

static int nesterov(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count;
    struct constants c = constants_of(args);
    return apply(nesterov_step, 1, &c, param, acc, state, n);
}

static int nesterov_pass(const hpc_pass *p) {
    struct constants c = constants_of(p->args);
    return pass(nesterov_step, 1, &c, p);
}

static const hpc_builtin_rule rule_nesterov = {
    .rule =
        {
            .name = "nesterov",
            .apply = nesterov,
            .slots = 1,
            .args = {0, 0.01, 0, 0.9},
            .arg_names = "lr weight_decay momentum",
        },
    .pass = nesterov_pass,
};

#endif
