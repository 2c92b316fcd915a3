/* The step of gradient descent, which several rules have: w -= lr * g. */
#ifndef HPC_RULE_DESCENT_H
#define HPC_RULE_DESCENT_H

#include "kernel/rule_kernel.h"

INLINE void sgd_step(reals *p, reals g, reals *s, const struct constants *c) {
    (void)s;
    *p -= c->rate * g;
}

static int sgd(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count;
    struct constants c = constants_of(args);
    return apply(sgd_step, 0, &c, param, acc, state, n);
}

static int sgd_pass(const hpc_pass *p) {
    struct constants c = constants_of(p->args);
    return pass(sgd_step, 0, &c, p);
}

#endif
