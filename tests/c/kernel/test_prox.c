/* The built-in proxes: against their definitions or the conditions of a minimum, the same bits from every instruction
 * set and for every cut into rows, of long rows and short ones; and what is refused. */
#include "check.h"
#include "kernel/rule.h"
#include "base/isa.h"

#include <math.h>

enum { PROXES = 7, MOST = 6000 };

static const char *const names[PROXES] = {"l1",      "l2",      "elastic_net",     "l2_ball",
                                          "simplex", "dual_l2", "dual_elastic_net"};
static const int64_t lengths[] = {1, 2, 3, 15, 16, 17, 33, 100, 1000, 5000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
static const double args[HPC_RULE_ARGS] = {1, 0.5, 0, 1.5, 0.75};

static uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* Numbers of many sizes, small ones of one size, or all the same. */
static void fill(float *x, int64_t n, int how) {
    const float same = ldexpf((float)(int32_t)random_bits(), -31);
    for (int64_t i = 0; i < n; i++) {
        const float one = ldexpf((float)(int32_t)random_bits(), -31);
        x[i] = how == 0 ? ldexpf(one, (int)(random_bits() % 12) - 6) : how == 1 ? one : same;
    }
}

static hpc_prox_fn find(const char *name, int isa) {
    hpc_prox_fn prox = NULL;
    CHECK_OK(hpc_prox_find(name, isa, &prox));
    return prox;
}

static float soft(float x, float t) {
    return x > t ? x - t : x < -t ? x + t : 0;
}

/* The definitions of proxes that treat each element by itself. */
static int defined(const char *name, float x, float *y) {
    const float t = (float)args[1], first = (float)args[3], second = (float)args[4];
    if (strcmp(name, "l1") == 0)
        *y = soft(x, t * first);
    else if (strcmp(name, "l2") == 0)
        *y = x / (1 + t * first);
    else if (strcmp(name, "elastic_net") == 0)
        *y = soft(x, t * first) / (1 + t * second);
    else if (strcmp(name, "dual_l2") == 0)
        *y = x / first;
    else if (strcmp(name, "dual_elastic_net") == 0)
        *y = soft(x, first) / second;
    else
        return 0;
    return 1;
}

static double distance(const float *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sum;
}

/* y is the nearest row of the set: none of the rows of the set that are a little aside is nearer. */
static void check_ball(const float *x, const float *y, int64_t n) {
    const double radius = args[3];
    double x_norm = 0, y_norm = 0;
    for (int64_t i = 0; i < n; i++) {
        x_norm += (double)x[i] * x[i];
        y_norm += (double)y[i] * y[i];
    }
    CHECK(sqrt(y_norm) <= radius * (1 + 1e-6));
    for (int64_t i = 0; i < n; i++) {
        if (x_norm <= radius * radius)
            CHECK(y[i] == x[i]);
        else
            CHECK(fabs(y[i] * sqrt(x_norm) - x[i] * radius) <= 1e-6 * fabs(x[i] * radius) + 1e-30);
    }
}

static void check_simplex(const float *x, const float *y, int64_t n) {
    static double other[MOST];
    double sum = 0, low = INFINITY, high = -INFINITY, size = 1;
    for (int64_t i = 0; i < n; i++) {
        CHECK(y[i] >= 0);
        sum += (double)y[i];
        size = fmax(size, fabs(x[i]));
        if (y[i] == 0) continue;
        low = fmin(low, (double)x[i] - y[i]);
        high = fmax(high, (double)x[i] - y[i]);
    }
    CHECK(fabs(sum - 1) < 1e-5);
    CHECK(high - low < 1e-6 * size); /* one theta for all that are not 0 */
    for (int64_t i = 0; i < n; i++) CHECK(y[i] > 0 || x[i] <= high + 1e-6 * size);
    for (int64_t i = 0; i < n; i++) other[i] = y[i];
    const double best = distance(x, other, n);
    for (int round = 0; round < 20 && n > 1; round++) { /* moves a part of one element to another */
        const int64_t from = random_bits() % n, to = random_bits() % n;
        const double part = other[from] * 0.01 * (round % 3);
        if (from == to) continue;
        other[from] -= part, other[to] += part;
        CHECK(distance(x, other, n) >= best - 1e-6 * size * (double)n);
        other[from] += part, other[to] -= part;
    }
}

static void test_minimum(const char *name, int isa) {
    static float x[MOST], y[MOST];
    const hpc_prox_fn prox = find(name, isa);
    for (int round = 0; round < 3 * LENGTHS; round++) {
        const int64_t columns = lengths[round / 3], rows = MOST / columns < 9 ? MOST / columns : 9;
        fill(x, rows * columns, round % 3);
        memcpy(y, x, sizeof y);
        CHECK_EQ(prox(y, rows, columns, args), HPC_OK);
        for (int64_t r = 0; r < rows; r++) {
            if (strcmp(name, "l2_ball") == 0) check_ball(x + r * columns, y + r * columns, columns);
            if (strcmp(name, "simplex") == 0) check_simplex(x + r * columns, y + r * columns, columns);
        }
        for (int64_t i = 0; i < rows * columns; i++) {
            float expected;
            if (defined(name, x[i], &expected)) CHECK(y[i] == expected);
        }
        CHECK(memcmp(x + rows * columns, y + rows * columns, (size_t)(MOST - rows * columns) * sizeof *x) == 0);
    }
}

/* The bits are those of the generic code, one row at a time, wherever the rows begin. */
static void test_bits(const char *name, int isa) {
    static float x[MOST + 16], y[MOST];
    const hpc_prox_fn prox = find(name, isa), generic = find(name, HPC_ISA_GENERIC);
    for (int round = 0; round < 2 * LENGTHS; round++) {
        const int64_t columns = lengths[round / 2], rows = MOST / columns < 9 ? MOST / columns : 9;
        float *at = x + round % 16;
        fill(y, rows * columns, round % 2);
        memcpy(at, y, (size_t)(rows * columns) * sizeof *y);
        CHECK_EQ(prox(at, rows, columns, args), HPC_OK);
        for (int64_t r = 0; r < rows; r++) CHECK_EQ(generic(y + r * columns, 1, columns, args), HPC_OK);
        CHECK(memcmp(at, y, (size_t)(rows * columns) * sizeof *y) == 0);
    }
}

static void test_special(const char *name, int isa) {
    const hpc_prox_fn prox = find(name, isa);
    for (int64_t columns = 1; columns < 40; columns += 19) {
        float x[3 * 40];
        fill(x, 3 * columns, 1);
        x[columns + columns / 2] = NAN;
        CHECK_EQ(prox(x, 3, columns, args), HPC_OK);
        CHECK(isnan(x[columns + columns / 2]));
        for (int64_t i = 0; i < columns; i++) CHECK(!isnan(x[i]) && !isnan(x[2 * columns + i]));
    }
    float zeros[20] = {0};
    CHECK_EQ(prox(zeros, 4, 5, args), HPC_OK);
    for (int i = 0; i < 20; i++) CHECK(zeros[i] == (strcmp(name, "simplex") == 0 ? 0.2f : 0));
    CHECK_EQ(prox(zeros, 0, 5, args), HPC_OK);

    double wrong[HPC_RULE_ARGS] = {1, 0.5, 0, -4, -4};
    CHECK_EQ(prox(zeros, 4, 5, wrong), strcmp(name, "simplex") == 0 ? HPC_OK : HPC_ERR_INVALID);
}

/* A row of 2^24 and more, where float32 has no halves, and a thousand equal ones. */
static void test_simplex_far_away(int isa) {
    float x[1000];
    for (int i = 0; i < 1000; i++) x[i] = 0x1p24f;
    CHECK_EQ(find("simplex", isa)(x, 1, 1000, args), HPC_OK);
    for (int i = 0; i < 1000; i++) CHECK(x[i] == 0.001f);
    for (int i = 0; i < 1000; i++) x[i] = i == 77 ? 0x1p24f + 2 : 0x1p24f;
    CHECK_EQ(find("simplex", isa)(x, 1, 1000, args), HPC_OK);
    for (int i = 0; i < 1000; i++) CHECK(x[i] == (i == 77));
}

static void test_find(void) {
    hpc_prox_fn prox;
    for (int p = 0; p < PROXES; p++) {
        CHECK(strcmp(hpc_prox_name(p), names[p]) == 0);
        for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++) {
            if (!hpc_isa_available(isa)) {
                CHECK_STATUS(hpc_prox_find(names[p], isa, &prox), HPC_ERR_UNSUPPORTED);
                continue;
            }
            CHECK(strcmp(hpc_prox_text(find(names[p], isa)), names[p]) == 0);
        }
    }
    CHECK(hpc_prox_name(PROXES) == NULL && hpc_prox_name(-1) == NULL);
    CHECK(strcmp(hpc_prox_text(NULL), "none") == 0);
    CHECK_STATUS(hpc_prox_find("trace", HPC_ISA_BEST, &prox), HPC_ERR_INVALID);
    CHECK_MESSAGE("'trace'");
    for (int p = 0; p < PROXES; p++) CHECK_MESSAGE(names[p]);
    CHECK_STATUS(hpc_prox_find(NULL, HPC_ISA_BEST, &prox), HPC_ERR_INVALID);
    CHECK_MESSAGE("name is NULL");
    CHECK_STATUS(hpc_prox_find("l1", HPC_ISA_BEST, NULL), HPC_ERR_INVALID);
    CHECK_MESSAGE("prox is NULL");
    CHECK_STATUS(hpc_prox_find("l1", 4, &prox), HPC_ERR_INVALID);
}

static void test_rules(void) {
    hpc_rule rule;
    CHECK_OK(hpc_rule_find("proxsgd", HPC_ISA_BEST, &rule));
    CHECK(hpc_rule_pass(&rule) != NULL && hpc_rule_is_sgd(&rule));
    rule.prox = find("l1", HPC_ISA_BEST);
    CHECK(hpc_rule_pass(&rule) == NULL && hpc_rule_is_sgd(&rule));
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("columns of rule 'proxsgd' is 0");
    rule.columns = 7;
    CHECK_OK(hpc_rule_check(&rule, "test"));
    CHECK_OK(hpc_rule_find("dual", HPC_ISA_BEST, &rule));
    CHECK(hpc_rule_pass(&rule) == NULL && hpc_rule_is_sgd(&rule));
    rule.slots = 2;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("slots of rule 'dual' is 2; with dual it must be 1");
    CHECK_OK(hpc_rule_find("momentum", HPC_ISA_BEST, &rule));
    CHECK(!hpc_rule_is_sgd(&rule));
    CHECK_OK(hpc_rule_find("average", HPC_ISA_BEST, &rule));
    CHECK(!hpc_rule_is_sgd(&rule));
    rule.prox = find("l1", HPC_ISA_BEST), rule.columns = 1;
    CHECK_STATUS(hpc_rule_check(&rule, "test"), HPC_ERR_INVALID);
    CHECK_MESSAGE("rule 'average' averages models, and has no prox");
}

int main(void) {
    test_find();
    test_rules();
    for (int isa = HPC_ISA_BEST; isa <= HPC_ISA_AVX512; isa++) {
        if (!hpc_isa_available(isa)) continue;
        for (int p = 0; p < PROXES; p++) {
            test_minimum(names[p], isa);
            test_bits(names[p], isa);
            test_special(names[p], isa);
        }
        test_simplex_far_away(isa);
    }
    return 0;
}
