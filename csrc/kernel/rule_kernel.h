/* The rules, written once. The file of an instruction set defines VECTOR_BYTES, the vector reals, root(reals), the
 * square root, and rule_end(), and includes this.
 *
 * Every element sees the same operations in the same order for every vector width, and none is contracted
 * (-ffp-contract=off): all instruction sets give the same bits, and so does every cut of an array into blocks. A tail
 * goes through a vector that is filled up, not through other code. */
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* The args of all rules as the elements see them. */
struct constants {
    float rate;     /* adam: over the bias of the first moment */
    float decay;    /* what the gradient takes of the parameter */
    float keep;     /* adamw: what a step leaves of the parameter */
    float momentum; /* adam: of the first moment */
    float fresh;    /* adam: what its first moment takes of the gradient */
    float momentum2, fresh2;
    float unbias2; /* 1 over the bias of the second moment */
    float epsilon;
};

/* One vector: p, the parameters, and s, the state, are changed; g is the gradient. */
typedef void step_fn(reals *p, reals g, reals *s, const struct constants *c);

INLINE void sgd_step(reals *p, reals g, reals *s, const struct constants *c) {
    (void)s;
    *p -= c->rate * g;
}

INLINE void momentum_step(reals *p, reals g, reals *s, const struct constants *c) {
    s[0] = c->momentum * s[0] + g;
    *p -= c->rate * s[0];
}

INLINE void nesterov_step(reals *p, reals g, reals *s, const struct constants *c) {
    s[0] = c->momentum * s[0] + g;
    *p -= c->rate * (g + c->momentum * s[0]);
}

INLINE void adam_step(reals *p, reals g, reals *s, const struct constants *c) {
    s[0] = c->momentum * s[0] + c->fresh * g;
    s[1] = c->momentum2 * s[1] + c->fresh2 * (g * g);
    *p -= c->rate * s[0] / (root(c->unbias2 * s[1]) + c->epsilon);
}

/* Loshchilov and Hutter: the decay goes to the parameter and stays out of the moments. */
INLINE void adamw_step(reals *p, reals g, reals *s, const struct constants *c) {
    *p *= c->keep;
    adam_step(p, g, s, c);
}

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

static int average(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count, (void)state, (void)args;
    if (n > 0) memcpy(param, acc, (size_t)n * sizeof(float));
    return HPC_OK;
}

static int sgd(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count;
    struct constants c = constants_of(args);
    return apply(sgd_step, 0, &c, param, acc, state, n);
}

static int momentum(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count;
    struct constants c = constants_of(args);
    return apply(momentum_step, 1, &c, param, acc, state, n);
}

static int nesterov(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count;
    struct constants c = constants_of(args);
    return apply(nesterov_step, 1, &c, param, acc, state, n);
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

/* keep as torch.optim.AdamW has it: one float32 factor, made in double. */
static int adamw_constants(const double *args, struct constants *c) {
    int status = adam_constants(args, c);
    if (status != HPC_OK) return status;
    c->decay = 0;
    c->keep = (float)(1 - args[1] * args[2]);
    return HPC_OK;
}

static int adam(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    struct constants c;
    int status = adam_constants(args, &c);
    (void)count;
    return status == HPC_OK ? apply(adam_step, 2, &c, param, acc, state, n) : status;
}

static int adamw(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    struct constants c;
    int status = adamw_constants(args, &c);
    (void)count;
    return status == HPC_OK ? apply(adamw_step, 2, &c, param, acc, state, n) : status;
}
