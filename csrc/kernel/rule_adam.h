/* Adam (Kingma and Ba, algorithm 1), with g += weight_decay * w first; and AdamW (Loshchilov and Hutter, algorithm 2):
 * w *= 1 - lr * weight_decay, then Adam's step without decay. */
#ifndef HPC_RULE_ADAM_H
#define HPC_RULE_ADAM_H

#include "kernel/rule_pass.h"

INLINE void adam_step(reals *p, reals g, reals *s, const struct constants *c) {
    s[0] = c->momentum * s[0] + c->fresh * g;
    s[1] = c->momentum2 * s[1] + c->fresh2 * (g * g);
    *p -= c->rate * s[0] / (root(c->unbias2 * s[1]) + c->epsilon);
}

/* base to the power of n by squaring: the same bits with every C library. */
static double power(double base, uint64_t n) {
    double result = 1;
    for (; n != 0; n >>= 1) {
        if (n & 1) result *= base;
        base *= base;
    }
    return result;
}

static int adam_constants(const double *args, struct constants *c) {
    if (!(args[0] >= 1 && args[0] < 0x1p63)) return HPC_ERR_INVALID;
    uint64_t step = (uint64_t)args[0];
    double rate = args[1], beta1 = args[3], beta2 = args[4];
    *c = (struct constants){
        .rate = (float)(rate / (1 - power(beta1, step))),
        .decay = (float)args[2],
        .momentum = (float)beta1,
        .fresh = (float)(1 - beta1),
        .momentum2 = (float)beta2,
        .fresh2 = (float)(1 - beta2),
        .unbias2 = (float)(1 / (1 - power(beta2, step))),
        .epsilon = (float)args[5],
    };
    return HPC_OK;
}

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

/* ---- AdamW ---- */

/* keep as torch.optim.AdamW has it: one float32 factor, made in double. */
static int adamw_constants(const double *args, struct constants *c) {
    int status = adam_constants(args, c);
    if (status != HPC_OK) return status;
    c->decay = 0;
    c->keep = (float)(1 - args[1] * args[2]);
    return HPC_OK;
}

/* Loshchilov and Hutter: the decay goes to the parameter and stays out of the moments. */
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
