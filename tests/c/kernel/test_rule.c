/* The built-in rules: against their definitions where every value is exact, the same bits from every instruction set,
 * for every position and for every cut into blocks; and what is refused. */
#include "check.h"
#include "kernel/rule.h"
#include "base/isa.h"

#include <math.h>

enum { RULES = 9, SLOTS = 2, TAIL = 100, OFFSETS = 17, GUARD = 32, ROOM = TAIL + OFFSETS + 2 * GUARD };

static const char *const names[RULES] = {"average", "assign", "sgd",     "momentum", "nesterov",
                                         "adam",    "adamw",  "proxsgd", "dual"};

static uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static hpc_rule find(const char *name, int isa) {
    hpc_rule rule;
    CHECK_OK(hpc_rule_find(name, isa, &rule));
    return rule;
}

/* Ordinary numbers of mixed size, and one in 32 of any bits at all. */
static void fill(float *x, size_t count) {
    for (size_t j = 0; j < count; j++) {
        uint32_t bits = random_bits();
        if (bits % 32 == 0) {
            bits = random_bits();
            memcpy(&x[j], &bits, sizeof bits);
        } else {
            x[j] = ldexpf((float)(int32_t)random_bits(), (int)(bits % 16) - 39);
        }
    }
}

/* The same bits, or NaN in both: a NaN's payload is not promised. */
static void check_same(const float *got, const float *expected, size_t count, const char *name, int isa) {
    for (size_t j = 0; j < count; j++) {
        if (memcmp(&got[j], &expected[j], sizeof got[j]) == 0 || (isnan(got[j]) && isnan(expected[j]))) continue;
        fprintf(stderr, "%s: isa %d, element %zu of %zu is %a, not %a\n", name, isa, j, count, got[j], expected[j]);
        check_fail_red("wrong bytes");
    }
}

/* The definitions, one element in float32. volatile keeps the compiler of this file from contracting them. */
static void reference(const char *name, float *p, float g, float *s0, float *s1, const double *args) {
    volatile float rate = (float)args[1], decay = (float)args[2], mu = (float)args[3], x, y;
    if (strcmp(name, "average") == 0 || strcmp(name, "assign") == 0) {
        *p = g;
        return;
    }
    if (strcmp(name, "adamw") == 0) {
        volatile double taken = args[1] * args[2];
        x = (float)(1 - taken);
        *p = *p * x;
    } else if (decay != 0) {
        x = decay * *p;
        g = g + x;
    }
    if (strcmp(name, "adam") == 0 || strcmp(name, "adamw") == 0) {
        volatile float mu2 = (float)args[4], fresh = (float)(1 - args[3]), fresh2 = (float)(1 - args[4]);
        volatile float unbias2 = (float)(1 / (1 - pow(args[4], args[0])));
        rate = (float)(args[1] / (1 - pow(args[3], args[0])));
        x = mu * *s0;
        y = fresh * g;
        *s0 = x + y;
        x = mu2 * *s1;
        y = g * g;
        y = fresh2 * y;
        *s1 = x + y;
        x = unbias2 * *s1;
        x = sqrtf(x);
        x = x + (float)args[5];
        y = rate * *s0;
        y = y / x;
    } else if (strcmp(name, "sgd") == 0 || strcmp(name, "proxsgd") == 0 || strcmp(name, "dual") == 0) {
        y = rate * g;
    } else {
        x = mu * *s0;
        *s0 = x + g;
        x = *s0;
        if (strcmp(name, "nesterov") == 0) {
            x = mu * x;
            x = g + x;
        }
        y = rate * x;
    }
    *p = *p - y;
}

/* Every tail, arrays that start anywhere in a cache line, between guards, with and without decay. */
static void test_bits(const char *name, int isa) {
    _Alignas(64) static float p[ROOM], g[ROOM], s[SLOTS * ROOM], p_expected[ROOM], s_expected[SLOTS * ROOM];
    hpc_rule rule = find(name, isa);
    for (int n = 0; n <= TAIL; n++) {
        size_t p_at = GUARD + random_bits() % OFFSETS, g_at = random_bits() % OFFSETS, s_at = p_at + g_at % 5;
        fill(p, ROOM);
        fill(g, ROOM);
        fill(s, SLOTS * ROOM);
        rule.args[0] = 1 + random_bits() % 64; /* so few that pow and squaring agree in float32 */
        rule.args[2] = n % 2 ? 0.0 : 0.0123;
        memcpy(p_expected, p, sizeof p);
        memcpy(s_expected, s, sizeof s);
        for (int j = 0; j < n; j++)
            reference(name, &p_expected[p_at + j], g[g_at + j], &s_expected[s_at + j], &s_expected[s_at + n + j],
                      rule.args);
        CHECK_EQ(rule.apply(p + p_at, g + g_at, 3, s + s_at, rule.args, n), 0);
        check_same(p, p_expected, ROOM, name, isa);
        check_same(s, s_expected, SLOTS * ROOM, name, isa);
    }
}

/* One long array against the same in blocks of several sizes, each with its state behind it, over a few steps. */
static void test_blocks(const char *name, int isa) {
    enum { COUNT = 1000, STEPS = 3 };
    static const int blocks[] = {1, 7, 16, 64, 333, COUNT};
    static float start[COUNT], g[STEPS][COUNT], whole[COUNT], whole_state[SLOTS * COUNT];
    static float p[COUNT], state[SLOTS * COUNT], piece[SLOTS * COUNT];
    fill(start, COUNT);
    for (int t = 0; t < STEPS; t++) fill(g[t], COUNT);
    memcpy(whole, start, sizeof start);
    memset(whole_state, 0, sizeof whole_state);
    hpc_rule rule = find(name, HPC_ISA_GENERIC);
    rule.args[2] = 0.5;
    for (int t = 0; t < STEPS; t++) {
        rule.args[0] = t + 1;
        CHECK_EQ(rule.apply(whole, g[t], 2, whole_state, rule.args, COUNT), 0);
    }
    rule.apply = find(name, isa).apply;
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        memcpy(p, start, sizeof start);
        memset(state, 0, sizeof state);
        for (int t = 0; t < STEPS; t++) {
            rule.args[0] = t + 1;
            for (int at = 0, n; at < COUNT; at += n) {
                n = COUNT - at < blocks[b] ? COUNT - at : blocks[b];
                for (int k = 0; k < SLOTS; k++)
                    memcpy(piece + k * n, state + k * COUNT + at, (size_t)n * sizeof *piece);
                CHECK_EQ(rule.apply(p + at, g[t] + at, 2, piece, rule.args, n), 0);
                for (int k = 0; k < SLOTS; k++)
                    memcpy(state + k * COUNT + at, piece + k * n, (size_t)n * sizeof *piece);
            }
        }
        check_same(p, whole, COUNT, name, isa);
        check_same(state, whole_state, (size_t)rule.slots * COUNT, name, isa);
    }
}

/* Small integers and powers of two, so that nothing is rounded: torch.optim.SGD's update, in double. */
static void test_exact(const char *name, int isa, double decay) {
    enum { COUNT = 67, STEPS = 2 };
    float p[COUNT], g[COUNT], state[COUNT] = {0};
    double p_exact[COUNT], buf[COUNT] = {0};
    hpc_rule rule = find(name, isa);
    const double lr = 0.125, mu = strcmp(name, "sgd") == 0 ? 0 : 0.5;
    rule.args[1] = lr;
    rule.args[2] = decay;
    if (mu != 0) rule.args[3] = mu;
    for (int j = 0; j < COUNT; j++) p_exact[j] = p[j] = (float)((int)(random_bits() % 31) - 15);
    for (int t = 1; t <= STEPS; t++) {
        for (int j = 0; j < COUNT; j++) g[j] = (float)((int)(random_bits() % 31) - 15);
        for (int j = 0; j < COUNT; j++) {
            double grad = g[j] + decay * p_exact[j];
            buf[j] = t == 1 ? grad : mu * buf[j] + grad;
            p_exact[j] -= lr * (strcmp(name, "nesterov") == 0 ? grad + mu * buf[j] : buf[j]);
            CHECK((double)(float)p_exact[j] == p_exact[j]);
        }
        rule.args[0] = t;
        CHECK_EQ(rule.apply(p, g, 1, state, rule.args, COUNT), 0);
        for (int j = 0; j < COUNT; j++) {
            CHECK((double)p[j] == p_exact[j]);
            if (mu != 0) CHECK((double)state[j] == buf[j]);
        }
    }
}

/* Kingma and Ba, algorithm 1, and Loshchilov and Hutter, algorithm 2, in double. */
static void test_adam(const char *name, int isa, double decay) {
    enum { COUNT = 67, STEPS = 200 };
    float p[COUNT], g[COUNT], state[2 * COUNT] = {0};
    double theta[COUNT], m[COUNT] = {0}, v[COUNT] = {0};
    const double alpha = 0.05, beta1 = 0.875, beta2 = 0.96875, epsilon = 1e-6;
    const int decoupled = strcmp(name, "adamw") == 0;
    hpc_rule rule = find(name, isa);
    CHECK(rule.args[1] == 0.01 && rule.args[3] == 0.9 && rule.args[4] == 0.999 && rule.args[5] == 1e-8);
    rule.args[1] = alpha;
    rule.args[2] = decay;
    rule.args[3] = beta1;
    rule.args[4] = beta2;
    rule.args[5] = epsilon;
    for (int j = 0; j < COUNT; j++) theta[j] = p[j] = ldexpf((float)(int32_t)random_bits(), -30);
    for (int t = 1; t <= STEPS; t++) {
        for (int j = 0; j < COUNT; j++) {
            g[j] = ldexpf((float)(int32_t)random_bits(), -31 + j % 5);
            double grad = g[j] + (decoupled ? 0 : decay * theta[j]);
            if (decoupled) theta[j] *= 1 - alpha * decay;
            m[j] = beta1 * m[j] + (1 - beta1) * grad;
            v[j] = beta2 * v[j] + (1 - beta2) * grad * grad;
            theta[j] -= alpha * (m[j] / (1 - pow(beta1, t))) / (sqrt(v[j] / (1 - pow(beta2, t))) + epsilon);
        }
        rule.args[0] = t;
        CHECK_EQ(rule.apply(p, g, 1, state, rule.args, COUNT), 0);
        for (int j = 0; j < COUNT; j++) CHECK(fabs(p[j] - theta[j]) < 2e-5);
    }

    /* After very many steps nothing is left of the bias. */
    float one = 0, gradient = 1, moments[2] = {1, 1};
    rule.args[0] = 1e15;
    rule.args[2] = 0;
    CHECK_EQ(rule.apply(&one, &gradient, 1, moments, rule.args, 1), 0);
    CHECK(fabs(one + alpha) < 1e-6);
    const double wrong[] = {0, -1, 0.5, NAN, INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rule.args[0] = wrong[i];
        CHECK(rule.apply(&one, &gradient, 1, moments, rule.args, 1) != 0);
    }
}

/* A decay of 0 is no decay: 0 * Inf would be NaN, and -0 + 0 is 0. */
static void test_no_decay(int isa) {
    for (int r = 2; r < RULES; r++) {
        enum { COUNT = 37 };
        float p[COUNT], g[COUNT], state[SLOTS * COUNT];
        hpc_rule rule = find(names[r], isa);
        rule.args[0] = 1;
        rule.args[2] = 0;
        for (int j = 0; j < COUNT; j++) {
            p[j] = j % 2 ? INFINITY : 0.0f;
            g[j] = -0.0f;
        }
        for (int j = 0; j < SLOTS * COUNT; j++) state[j] = j < COUNT ? -0.0f : 0.0f;
        CHECK_EQ(rule.apply(p, g, 1, state, rule.args, COUNT), 0);
        for (int j = 0; j < COUNT; j++) {
            CHECK(p[j] == (j % 2 ? INFINITY : 0.0f));
            if (rule.slots > 0) CHECK(state[j] == 0 && signbit(state[j]));
        }
    }
}

/* One pass is the fold, the rule and the copies, one after the other. */
static void test_pass(const char *name, int isa) {
    enum { MOST = 1100, OUTS = 2, OUT_ROOM = 1152 /* keeps the second one aligned */ }; /* more than two tiles */
    static const int inputs[] = {1, 2, 3, 4, 5, 8, HPC_PASS_INPUTS}, counts[] = {1, 15, 16, 33, 512, MOST};
    static _Alignas(64) float in[HPC_PASS_INPUTS][MOST], param[2][MOST], state[2][SLOTS * MOST], out[OUTS][OUT_ROOM];
    float acc[MOST];
    const float *from[HPC_PASS_INPUTS];
    float *to[OUTS] = {out[0], out[1]};
    double weights[HPC_PASS_INPUTS];
    hpc_rule rule = find(name, isa);
    hpc_pass_fn *run = hpc_rule_pass(&rule);
    CHECK(run != NULL);
    for (int round = 0; round < 7 * 6 * 2 * 3 * 2; round++) {
        int n_in = inputs[round % 7], n = counts[round / 7 % 6], streamed = round / 42 % 2, n_out = round / 84 % 3;
        rule.args[0] = 1 + round;
        rule.args[2] = round / 252 ? 0.25 : 0;
        for (int i = 0; i < n_in; i++) {
            fill(in[i], (size_t)n);
            from[i] = in[i];
            weights[i] = ldexp((double)(int32_t)random_bits(), -30);
        }
        fill(param[0], (size_t)n);
        fill(state[0], (size_t)(n * rule.slots));
        for (int j = 0; rule.slots == 2 && j < n; j++) state[0][n + j] = fabsf(state[0][n + j]);
        memcpy(param[1], param[0], sizeof param[0]);
        memcpy(state[1], state[0], sizeof state[0]);
        for (int o = 0; o < OUTS; o++)
            for (int j = 0; j < OUT_ROOM; j++) out[o][j] = 7;
        CHECK_OK(hpc_fold(acc, (const void *const *)from, weights, n_in, (size_t)n, HPC_F32, isa));
        CHECK_OK(rule.apply(param[1], acc, n_in, state[1], rule.args, n));
        const hpc_pass pass = {param[0], from, weights, n_in, to, n_out, state[0], rule.args, n, streamed};
        CHECK_EQ(run(&pass), 0);
        check_same(param[0], param[1], (size_t)n, name, isa);
        check_same(state[0], state[1], (size_t)(n * rule.slots), name, isa);
        for (int o = 0; o < OUTS; o++) {
            if (o < n_out) check_same(out[o], param[1], (size_t)n, name, isa);
            for (int j = o < n_out ? n : 0; j < OUT_ROOM; j++) CHECK(out[o][j] == 7);
        }
    }
    rule.fold = (hpc_fold_into_fn)(void (*)(void))rule.apply; /* a fold of one's own has no pass */
    CHECK(hpc_rule_pass(&rule) == NULL);
}

static void test_find(void) {
    static const int slots[RULES] = {0, 0, 0, 1, 1, 2, 2, 0, 1};
    static const double args[RULES][HPC_RULE_ARGS] = {{0},
                                                      {0},
                                                      {0, 0.01},
                                                      {0, 0.01, 0, 0.9},
                                                      {0, 0.01, 0, 0.9},
                                                      {0, 0.01, 0, 0.9, 0.999, 1e-8},
                                                      {0, 0.01, 0.01, 0.9, 0.999, 1e-8},
                                                      {0, 0.01},
                                                      {0, 1}};
    hpc_rule rule;
    for (int r = 0; r < RULES; r++) {
        for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++) {
            if (!hpc_isa_available(isa)) {
                CHECK_STATUS(hpc_rule_find(names[r], isa, &rule), HPC_ERR_UNSUPPORTED);
                continue;
            }
            rule = find(names[r], isa);
            CHECK(strcmp(rule.name, names[r]) == 0);
            CHECK(rule.apply != NULL && rule.fold == NULL);
            CHECK_EQ(rule.slots, slots[r]);
            for (int i = 0; i < HPC_RULE_ARGS; i++) CHECK(rule.args[i] == args[r][i]);
            CHECK_OK(hpc_rule_check(&rule, "test"));
        }
    }
    CHECK_STATUS(hpc_rule_find("lamb", HPC_ISA_BEST, &rule), HPC_ERR_INVALID);
    CHECK_MESSAGE("'lamb'");
    for (int r = 0; r < RULES; r++) CHECK_MESSAGE(names[r]);
    CHECK_STATUS(hpc_rule_find("", HPC_ISA_BEST, &rule), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_rule_find("sg", HPC_ISA_BEST, &rule), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_rule_find(NULL, HPC_ISA_BEST, &rule), HPC_ERR_INVALID);
    CHECK_MESSAGE("name is NULL");
    CHECK_STATUS(hpc_rule_find("sgd", HPC_ISA_BEST, NULL), HPC_ERR_INVALID);
    CHECK_MESSAGE("rule is NULL");
    CHECK_STATUS(hpc_rule_find("sgd", 4, &rule), HPC_ERR_INVALID);
    CHECK_MESSAGE("isa is 4");
    CHECK_STATUS(hpc_rule_find("sgd", -1, &rule), HPC_ERR_INVALID);
    CHECK_MESSAGE("isa is -1");
}

static void test_check(void) {
    hpc_rule rule = find("momentum", HPC_ISA_BEST);
    CHECK_STATUS(hpc_rule_check(NULL, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("rule is NULL");
    rule.name = NULL;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("name is NULL");
    rule = find("momentum", HPC_ISA_BEST);
    rule.apply = NULL;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("apply of rule 'momentum'");
    rule = find("momentum", HPC_ISA_BEST);
    rule.slots = HPC_RULE_SLOTS;
    CHECK_OK(hpc_rule_check(&rule, "test"));
    rule.slots = HPC_RULE_SLOTS + 1;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("is 5, not 0 to 4");
    rule.slots = -1;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    rule = find("momentum", HPC_ISA_BEST);
    rule.args[0] = NAN; /* the step is the engine's */
    CHECK_OK(hpc_rule_check(&rule, "test"));
    rule.args[1] = INFINITY;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("args[1] of rule 'momentum' is inf");
    rule.args[1] = 1;
    rule.args[HPC_RULE_ARGS - 1] = NAN;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("args[7]");
    CHECK_STATUS(hpc_rule_check_args("momentum", NULL, "test"), HPC_ERR_INVALID);
}

int main(void) {
    test_find();
    test_check();
    for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++) {
        if (!hpc_isa_available(isa)) continue;
        for (int r = 0; r < RULES; r++) {
            test_bits(names[r], isa);
            test_blocks(names[r], isa);
            if (r > 1 && r < RULES - 1) test_pass(names[r], isa);
        }
        hpc_rule average = find("average", isa), assigns = find("assign", isa);
        CHECK(hpc_rule_pass(&average) == NULL && hpc_rule_averages(&average));
        CHECK(hpc_rule_pass(&assigns) == NULL && !hpc_rule_averages(&assigns) && !hpc_rule_is_sgd(&assigns));
        for (int r = 2; r < 5; r++) {
            test_exact(names[r], isa, 0);
            test_exact(names[r], isa, 0.25);
        }
        test_adam("adam", isa, 0);
        test_adam("adam", isa, 0.03125);
        test_adam("adamw", isa, 0);
        test_adam("adamw", isa, 0.25);
        test_no_decay(isa);
    }
    return 0;
}
