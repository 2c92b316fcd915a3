/* The moments of Adam and AdamW. */
#ifndef HPC_RULE_MOMENTS_H
#define HPC_RULE_MOMENTS_H

#include "kernel/rule_kernel.h"

INLINE void adam_step(reals *p, reals g, reals *s, const struct constants *c) {
    s[0] = c->momentum * s[0] + c->fresh * g;
    s[1] = c->momentum2 * s[1] + c->fresh2 * (g * g);
    *p -= c->rate * s[0] / (root(c->unbias2 * s[1]) + c->epsilon);
}

/* Returns base to the power of n, by squaring: the same bits with every C library. */
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

#endif
