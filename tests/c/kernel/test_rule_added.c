/* A rule of one's own among the built-in ones: this program has an array with one more member, "lion", and hpc_rules_of
 * is its own. docs/architecture.md shows this file. */
#include "kernel/lanes_generic.h"

#include "exchange_plans.h"
#include "kernel/rule.h"
#include "kernel/rule_sgd.h"

enum { STEPS = 6 };

/* ---- the rule: Lion (Chen et al. 2023, algorithm 2) without weight decay ---- */

INLINE void lion_step(reals *p, reals g, reals *s, const struct constants *c) {
    const reals u = c->momentum * s[0] + c->fresh * g;
    *p -= c->rate * (__builtin_convertvector(u < 0, reals) - __builtin_convertvector(u > 0, reals)); /* true is -1 */
    s[0] = c->momentum2 * s[0] + c->fresh2 * g;
}

INLINE struct constants lion_constants(const double *args) {
    const float beta1 = (float)args[2], beta2 = (float)args[3];
    return (struct constants){
        .rate = (float)args[1], .momentum = beta1, .fresh = 1 - beta1, .momentum2 = beta2, .fresh2 = 1 - beta2};
}

static int lion(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    const struct constants c = lion_constants(args);
    (void)count;
    return apply(lion_step, 1, &c, param, acc, state, n);
}

static int lion_pass(const hpc_pass *p) {
    const struct constants c = lion_constants(p->args);
    return pass(lion_step, 1, &c, p);
}

static const hpc_builtin_rule rule_lion = {
    .rule = {.name = "lion", .apply = lion, .slots = 1, .args = {0, 1e-4, 0.9, 0.99}, .arg_names = "lr beta1 beta2"},
    .pass = lion_pass,
};

const hpc_builtin_rule *const *hpc_rules_of(int isa) {
    static const hpc_builtin_rule *const rules[] = {&rule_sgd, &rule_lion, NULL};
    (void)isa;
    return rules;
}

/* ---- tests ---- */

/* Parameters and state by Lion's formulas, from the sums of all workers' gradients. All of it is exact. */
static void expect(const job *j, int key, int step, float *params, float *moment) {
    const double lr = j->args[1], beta1 = j->args[2], beta2 = j->args[3];
    for (uint64_t i = 0; i < j->keys[key].count; i++) {
        double g = 0;
        for (int w = 0; w < j->n_workers; w++) g += (double)job_gradient(j, j->workers[w], step, key, i);
        const double u = beta1 * (double)moment[i] + (1 - beta1) * g;
        params[i] = (float)(params[i] - lr * ((u > 0) - (u < 0)));
        moment[i] = (float)(beta2 * (double)moment[i] + (1 - beta2) * g);
    }
}

/* arg: progress, + 4 block by block, as gradients have 16 bits. */
static void trains(rank *r) {
    job j;
    reference ref;
    hpc_exchange *e;
    job_init(&j, r);
    j.rule = "lion", j.progress = r->arg % 4, j.wire = r->arg / 4 ? HPC_F16 : HPC_F32;
    j.args[1] = 0.5, j.args[2] = 0.5, j.args[3] = 0.25;
    e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < j.n_keys; k++) {
            job_push_pull(r, &j, e, k, step);
            expect(&j, k, step, ref.params[k], ref.state[k]);
            reference_check(&ref, r, e, k);
        }
    job_close(e, &ref, NULL);
}

/* The library tells all its rules, this one too, with the names of their arguments. */
static void tells(rank *r) {
    hpc_rule rule;
    (void)r;
    CHECK(strcmp(hpc_rule_name(0), "sgd") == 0);
    CHECK(strcmp(hpc_rule_name(1), "lion") == 0);
    CHECK(hpc_rule_name(2) == NULL && hpc_rule_name(-1) == NULL);
    CHECK_OK(hpc_rule_find("lion", HPC_ISA_BEST, &rule));
    CHECK(strcmp(rule.arg_names, "lr beta1 beta2") == 0);
    CHECK_STATUS(hpc_rule_find("adam", HPC_ISA_BEST, &rule), HPC_ERR_INVALID);
    CHECK_MESSAGE("no rule is called 'adam'; there are sgd, lion");
}

int main(int argc, char **argv) {
    enum { INLINE_PROGRESS = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "trains", .size = 3, .run = trains, .arg = INLINE_PROGRESS},
        {.name = "trains by threads", .size = 3, .run = trains, .arg = THREAD},
        {.name = "trains by blocks", .size = 3, .run = trains, .arg = INLINE_PROGRESS + 4},
        {.name = "tells", .size = 1, .run = tells, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
