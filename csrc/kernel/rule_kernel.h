/* A rule's step applied to a block of elements. The rule_lanes_*.h of an instruction set, included before, defines
 * VECTOR_BYTES, the vector reals, root(reals), the square root, and rule_end().
 *
 * Every element sees the same operations in the same order for every vector width, and none is contracted
 * (-ffp-contract=off): all instruction sets give the same bits, and so does every cut of an array into blocks. A tail
 * goes through a vector that is filled up, not through other code. */
#ifndef HPC_RULE_KERNEL_H
#define HPC_RULE_KERNEL_H

#include "kernel/rule.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* The args of all rules as the elements see them. */
struct constants {
    float rate;     /* adam: over the bias of the first moment */
    float decay;    /* times the parameter, added to the gradient */
    float keep;     /* adamw: factor of the parameter in a step */
    float momentum; /* adam: of the first moment */
    float fresh;    /* adam: factor of the gradient in the first moment */
    float momentum2, fresh2;
    float unbias2; /* 1 over the bias of the second moment */
    float epsilon;
};

/* One vector: p, the parameters, and s, the state, are changed; g is the gradient. */
typedef void step_fn(reals *p, reals g, reals *s, const struct constants *c);

INLINE void apply_from(step_fn *step, int slots, int decayed, const struct constants *c, float *param, const float *acc,
                       float *state, int64_t n) {
    typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
    enum { LANES = VECTOR_BYTES / sizeof(float) };
    reals s[HPC_RULE_SLOTS];
    int64_t j = 0;
    for (; n - j >= LANES; j += LANES) {
        reals p = (reals) * (const vector *)(param + j), g = (reals) * (const vector *)(acc + j);
        for (int k = 0; k < slots; k++) s[k] = (reals) * (const vector *)(state + k * n + j);
        if (decayed) g += c->decay * p;
        step(&p, g, s, c);
        for (int k = 0; k < slots; k++) *(vector *)(state + k * n + j) = s[k];
        *(vector *)(param + j) = p;
    }
    if (j < n) {
        size_t left = (size_t)(n - j) * sizeof(float);
        reals p = {0}, g = {0};
        memcpy(&p, param + j, left);
        memcpy(&g, acc + j, left);
        for (int k = 0; k < slots; k++) {
            s[k] = (reals){0};
            memcpy(&s[k], state + k * n + j, left);
        }
        if (decayed) g += c->decay * p;
        step(&p, g, s, c);
        for (int k = 0; k < slots; k++) memcpy(state + k * n + j, &s[k], left);
        memcpy(param + j, &p, left);
    }
    rule_end();
}

/* Without decay there is no decay * p to add: it would cost time, and turn -0 into 0 and Inf into NaN. */
INLINE int apply(step_fn *step, int slots, const struct constants *c, float *param, const float *acc, float *state,
                 int64_t n) {
    if (c->decay != 0)
        apply_from(step, slots, 1, c, param, acc, state, n);
    else
        apply_from(step, slots, 0, c, param, acc, state, n);
    return HPC_OK;
}

INLINE struct constants constants_of(const double *args) {
    return (struct constants){.rate = (float)args[1], .decay = (float)args[2], .momentum = (float)args[3]};
}

#endif
