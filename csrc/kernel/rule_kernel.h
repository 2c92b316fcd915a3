/* A rule's step on a block of elements: alone, or in one pass with the fold and the writes. The file of an instruction
 * set includes its lanes_*.h before this one.
 *
 * Every element sees the same operations in the same order for every vector width, and nothing is contracted
 * (-ffp-contract=off). So all instruction sets give the same bits, and so does every division of an array into blocks.
 * The last elements go through a vector filled up with zeroes, not through other code. */
#ifndef HPC_RULE_KERNEL_H
#define HPC_RULE_KERNEL_H

#include "kernel/rule.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* The arguments of all rules, converted to the factors that a step uses. */
struct constants {
    float rate;     /* adam: divided by the bias of the first moment */
    float decay;    /* times the parameter: added to the gradient */
    float keep;     /* adamw: factor of the parameter in each step */
    float momentum; /* adam: factor of the first moment */
    float fresh;    /* adam: factor of the gradient in the first moment */
    float momentum2, fresh2;
    float unbias2; /* 1 divided by the bias of the second moment */
    float epsilon;
};

/* One step on one vector: changes p, the parameters, and s, the state; g is the gradient. */
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
    fold_end(0);
}

/* Without decay the addition of decay * p is left out: it would cost time, turn -0 into 0 and Inf into NaN. */
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

/* ---- fold, rule and write of float32 updates in one pass ----
 *
 * While a block's gradients are read from memory its parameters are written there, which separate loops could not
 * overlap. */

INLINE reals fold_inputs(const hpc_pass *p, const float *weights, int n_in, int64_t j) {
    typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
    reals g = weights[0] * (reals) * (const vector *)(p->in[0] + j);
    for (int i = 1; i < n_in; i++) g += weights[i] * (reals) * (const vector *)(p->in[i] + j);
    return g;
}

/* The number of elements that are streamed to one place before the next place gets its elements. A CPU has few buffers
 * that combine streamed stores: if each of eight places got one vector in turn, lines would be written in parts. */
enum { HPC_PASS_TILE = 512 };

/* Writes the parameters of [from, to), which are now in the L1 cache, to all places. */
INLINE void stream_tile(const hpc_pass *p, int64_t from, int64_t to) {
    enum { LANES = VECTOR_BYTES / sizeof(float) };
    for (int o = 0; o < p->n_out; o++)
        for (int64_t j = from; j < to; j += LANES) stream_vector(p->out[o] + j, p->param + j);
}

INLINE void pass_from(step_fn *step, int slots, int decayed, int n_in, const struct constants *c, const hpc_pass *p) {
    typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
    enum { LANES = VECTOR_BYTES / sizeof(float) };
    reals s[HPC_RULE_SLOTS];
    float weights[HPC_PASS_INPUTS];
    hpc_pass own = *p; /* a copy, so the compiler knows that no store changes it */
    const float *in[HPC_PASS_INPUTS];
    for (int i = 0; i < n_in; i++) {
        weights[i] = (float)p->weights[i];
        in[i] = p->in[i];
    }
    own.in = in;
    int64_t j = 0, streamed = 0, n = p->n;
    for (; n - j >= LANES; j += LANES) {
        reals x = (reals) * (const vector *)(own.param + j), g = fold_inputs(&own, weights, n_in, j);
        for (int k = 0; k < slots; k++) s[k] = (reals) * (const vector *)(own.state + k * n + j);
        if (decayed) g += c->decay * x;
        step(&x, g, s, c);
        for (int k = 0; k < slots; k++) *(vector *)(own.state + k * n + j) = s[k];
        *(vector *)(own.param + j) = x;
        if (!own.stream) {
            for (int o = 0; o < own.n_out; o++) *(vector *)(own.out[o] + j) = x;
        } else if ((j + LANES) % HPC_PASS_TILE == 0) {
            stream_tile(&own, streamed, j + LANES);
            streamed = j + LANES;
        }
    }
    if (own.stream) stream_tile(&own, streamed, j);
    if (j < n) {
        size_t left = (size_t)(n - j) * sizeof(float);
        reals x = {0}, g = {0};
        memcpy(&x, p->param + j, left);
        for (int i = 0; i < n_in; i++) {
            reals y = {0};
            memcpy(&y, in[i] + j, left);
            g = i == 0 ? weights[0] * y : g + weights[i] * y;
        }
        for (int k = 0; k < slots; k++) {
            s[k] = (reals){0};
            memcpy(&s[k], p->state + k * n + j, left);
        }
        if (decayed) g += c->decay * x;
        step(&x, g, s, c);
        for (int k = 0; k < slots; k++) memcpy(p->state + k * n + j, &s[k], left);
        memcpy(p->param + j, &x, left);
        for (int o = 0; o < p->n_out; o++) memcpy(p->out[o] + j, &x, left);
    }
    fold_end(0);
}

/* A constant number of inputs gives each input its own load instruction, which prefetchers follow (fold_kernel.h). */
INLINE void pass_of(step_fn *step, int slots, int decayed, const struct constants *c, const hpc_pass *p) {
    switch (p->n_in) {
    case 1:
        pass_from(step, slots, decayed, 1, c, p);
        break;
    case 2:
        pass_from(step, slots, decayed, 2, c, p);
        break;
    case 3:
        pass_from(step, slots, decayed, 3, c, p);
        break;
    case 4:
        pass_from(step, slots, decayed, 4, c, p);
        break;
    case 8:
        pass_from(step, slots, decayed, 8, c, p);
        break;
    default:
        pass_from(step, slots, decayed, p->n_in, c, p);
        break;
    }
}

INLINE int pass(step_fn *step, int slots, const struct constants *c, const hpc_pass *p) {
    if (c->decay != 0)
        pass_of(step, slots, 1, c, p);
    else
        pass_of(step, slots, 0, c, p);
    return HPC_OK;
}

/* ---- gradient descent, whose step several rules have: w -= lr * g ---- */

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
