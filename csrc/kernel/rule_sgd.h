/* Stochastic gradient descent (w -= lr * g, with g += weight_decay * w first), and the rules that take its step before
 * a prox (SFB, section 2.1), which the engine calls (engine/prox.c). */
#ifndef HPC_RULE_SGD_H
#define HPC_RULE_SGD_H

#include "kernel/rule_pass.h"

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

static const hpc_builtin_rule rule_sgd = {
    .rule = {.name = "sgd", .apply = sgd, .args = {0, 0.01, 0}, .arg_names = "lr weight_decay"},
    .pass = sgd_pass,
};

/* Before a prox of the parameters. */
static const hpc_builtin_rule rule_proxsgd = {
    .rule = {.name = "proxsgd", .apply = sgd, .args = {0, 0.01, 0}, .arg_names = "lr weight_decay"},
    .pass = sgd_pass,
};

/* On the state Z; the parameters are the prox of Z. */
static const hpc_builtin_rule rule_dual = {
    .rule = {.name = "dual", .apply = sgd, .slots = 1, .args = {0, 1, 0}, .arg_names = "lr weight_decay", .dual = 1},
};

#endif
