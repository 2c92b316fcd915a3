/* AdamW (Loshchilov and Hutter, algorithm 2): w *= 1 - lr * weight_decay, then Adam's step without decay. */
#ifndef HPC_RULE_ADAMW_H
#define HPC_RULE_ADAMW_H

#include "kernel/rule_moments.h"

/* keep is one float32 factor, computed in double, as in torch.optim.AdamW. */
static int adamw_constants(const double *args, struct constants *c) {
    int status = adam_constants(args, c);
    if (status != HPC_OK) return status;
    c->decay = 0;
    c->keep = (float)(1 - args[1] * args[2]);
    return HPC_OK;
}

/* The decay changes the parameter and does not enter the moments (Loshchilov and Hutter). */
INLINE void adamw_step(reals *p, reals g, reals *s, const struct constants *c) {
    *p *= c->keep;
    adam_step(p, g, s, c);
}

static int adamw(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    struct constants c;
    int status = adamw_constants(args, &c);
    (void)count;
    return status == HPC_OK ? apply(adamw_step, 2, &c, param, acc, state, n) : status;
}

static int adamw_pass(const hpc_pass *p) {
    struct constants c;
    int status = adamw_constants(p->args, &c);
    return status == HPC_OK ? pass(adamw_step, 2, &c, p) : status;
}

static const hpc_builtin_rule rule_adamw = {
    .rule =
        {
            .name = "adamw",
            .apply = adamw,
            .slots = 2,
            .args = {0, 0.01, 0.01, 0.9, 0.999, 1e-8},
            .arg_names = "lr weight_decay beta1 beta2 epsilon",
        },
    .pass = adamw_pass,
};

#endif
