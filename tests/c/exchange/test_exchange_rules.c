/* Rules by key, and arguments that travel with the pushes: they hold from the next push on, wherever the rule is
 * applied and however many pushes are on their way. */
#include <math.h>

#include "engine/scheme.h"
#include "inside.h"
#include "exchange_plans.h"
#include "graph_jobs.h"

enum { BOTH = HPC_PUSH | HPC_PULL, SLOTS_OF_JOB = 3 };

static const double rates[] = {0.5, 1, 0.25, 2};

static hpc_rule found(const char *name, double rate, double third) {
    hpc_rule rule;
    CHECK_OK(hpc_rule_find(name, HPC_ISA_BEST, &rule));
    memset(rule.args, 0, sizeof rule.args);
    rule.args[1] = rate, rule.args[3] = third;
    return rule;
}

static void set(hpc_exchange *e, job *j, int key, double rate) {
    double args[HPC_RULE_ARGS] = {0};
    for (int i = 1; i < HPC_RULE_ARGS; i++) args[i] = j->args[i];
    args[1] = j->args[1] = rate;
    CHECK_OK(hpc_exchange_set_args(e, key, args));
}

/* A key with each of three rules: each goes on as if all keys had its rule. arg: progress. */
static void by_key(rank *r) {
    static const char *const names[] = {"sgd", "momentum", "average"};
    job j, alone[3];
    reference refs[3];
    hpc_rule rules[3];
    const hpc_rule *given[3];
    hpc_exchange *e = NULL;
    hpc_exchange_config config;
    job_init(&j, r);
    j.cores = 2;
    for (int k = 0; k < 3; k++) {
        alone[k] = j;
        alone[k].rule = names[k];
        alone[k].args[1] = rates[k], alone[k].args[3] = 0.5;
        rules[k] = found(names[k], rates[k], 0.5);
        given[k] = &rules[k];
        reference_init(&refs[k], &alone[k]);
    }
    hpc_exchange_config_init(&config);
    config.rules = given, config.progress = r->arg;
    CHECK_OK(job_create_with(r, &j, &config, -1, &e));
    for (int step = 0; step < 8; step++) {
        if (step == 3) set(e, &alone[1], 1, 2); /* of that key alone */
        if (step == 5)
            for (int k = 0; k < 2; k++) set(e, &alone[k], k, 0.25);
        for (int k = 0; k < 3; k++) {
            job_push_pull(r, &j, e, k, step);
            reference_step(&refs[k], k);
            reference_check(&refs[k], r, e, k);
        }
    }
    double args[HPC_RULE_ARGS];
    for (int k = 0; k < 2; k++) {
        CHECK_OK(hpc_exchange_get_args(e, k, args));
        CHECK_EQ(args[1], 0.25);
    }
    for (int i = 0; i < inside(e)->n_work; i++) /* a row has its own rule's state */
        CHECK_EQ(inside(e)->work[i].rule->rule.slots, inside(e)->work[i].row->key == 1);
    for (int k = 0; k < 3; k++) reference_free(&refs[k]);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Three pushes on their way, each with a rate of its own. arg: progress. */
static void pipelined(rank *r) {
    enum { KEY = 0 };
    job j;
    reference ref;
    uint64_t ticket = 0;
    job_init(&j, r);
    j.each = 1, j.depth = SLOTS_OF_JOB, j.progress = r->arg, j.n_servers = 1;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 24 && r->rank == r->size - 1; step++) {
        if (step % 5 != 4) set(e, &j, step % 2 ? -1 : KEY, rates[step % 4]); /* else the last one holds */
        ticket = job_start(r, &j, e, KEY, step, step % 6 == 5 ? BOTH : HPC_PUSH, true);
        double *sum = calloc(j.keys[KEY].count, sizeof *sum);
        for (uint64_t i = 0; i < j.keys[KEY].count; i++) sum[i] = (double)job_gradient(&j, r->rank, step, KEY, i);
        reference_apply(&ref, KEY, sum);
        free(sum);
        if (step % 6 != 5) continue;
        CHECK_OK(hpc_exchange_wait(e, KEY, ticket, -1));
        reference_check(&ref, r, e, KEY);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* The same on a graph, where an update of a later push may be there before the fold of an earlier one. arg: progress.
 */
static void pipelined_on_graph(rank *r) {
    enum { COUNT = 1001, STEPS = 21 };
    graph_job g;
    uint64_t ticket = 0;
    double expected = 0;
    graph_job_init(&g, r);
    graph_job_shape(&g, COMPLETE);
    for (int i = 0; i < r->size * r->size; i++)
        g.weights[i] = r->arg < 4 ? 0.5 : i % (r->size + 1) == 0; /* i / size == i % size */
    if (r->arg >= 4) g.consistency = HPC_SSP, g.staleness = 1;
    g.j.depth = SLOTS_OF_JOB, g.j.rule = "sgd", g.j.progress = r->arg % 4;
    hpc_exchange *e = graph_open(r, &g);
    float *src = malloc(COUNT * sizeof *src);
    const float first = hpc_exchange_params(e, 0)[0];
    for (int step = 0; step < STEPS; step++) {
        double rate = rates[(step + r->rank) % 4], sum = 0; /* each rank's is for its own parameters */
        if (step % 7 != 6)
            set(e, &g.j, 0, rate);
        else
            rate = g.j.args[1];
        for (int who = 0; who < r->size; who++) sum += graph_job_weight(&g, 0, r->rank, who) * (1 + who + step % 3);
        for (int i = 0; i < COUNT; i++) src[i] = (float)(1 + r->rank + step % 3);
        CHECK_OK(hpc_exchange_start(e, 0, BOTH, src, -1, &ticket));
        expected -= rate * sum;
    }
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    CHECK_EQ(hpc_exchange_params(e, 0)[0] - first, expected);
    free(src);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Racks: most ranks' pushes reach the owner by another rank. arg: progress. */
static void through_stages(rank *r) {
    job j;
    hand_plan h;
    reference ref;
    job_init(&j, r);
    hand_racks(&h, &j, r->size, HPC_F32, 512);
    j.plan = &h.plan, j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < ranks_rounds(60); step++) {
        if (step % 4 != 3) set(e, &j, -1, rates[step % 4]);
        for (int key = 0; key < j.n_keys; key++) {
            job_push_pull(r, &j, e, key, step);
            double *sum = calloc(j.keys[key].count, sizeof *sum);
            for (int w = 0; w < r->size; w++)
                for (uint64_t i = 0; i < j.keys[key].count; i++)
                    sum[i] += 0.5 * (double)job_gradient(&j, w, step, key, i);
            reference_apply(&ref, key, sum);
            free(sum);
            reference_check(&ref, r, e, key);
        }
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* With a quorum of servers that waits for all; the slots of updates that are put are not those of their pushes. */
static void with_quorum(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.quorum = r->size - 1, j.grace = INFINITY, j.depth = 2, j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 9; step++) {
        if (step % 4 != 3) set(e, &j, -1, rates[step % 4]);
        for (int key = 0; key < j.n_keys; key++) {
            job_push_pull(r, &j, e, key, step);
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* A push that a full ring has cut short keeps the arguments that it began with, and new ones hold from the next on. */
static void cut_short(rank *r) {
    enum { KEYS = 200, ELEMENTS = 5 };
    job j;
    uint64_t tickets[KEYS];
    float src[ELEMENTS] = {1, 2, 3, 4, 5};
    int key = 0, status = HPC_OK;
    job_init(&j, r);
    j.n_keys = KEYS, j.n_servers = 1, j.each = 1, j.workers[0] = 1, j.n_workers = 1;
    for (int k = 0; k < KEYS; k++) j.keys[k] = (hpc_key){job_key_name(k), ELEMENTS, 0};
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 0) {
        rank_await(r, 0, 1);
        CHECK_OK(hpc_exchange_serve(e, -1));
        hpc_exchange_free(e);
        return;
    }
    set(e, &j, -1, 1);
    for (; status == HPC_OK; key += status == HPC_OK)
        status = hpc_exchange_start(e, key, HPC_PUSH, src, 0.05, &tickets[key]);
    CHECK_STATUS(status, HPC_ERR_TIMEOUT);
    CHECK(key > 0 && key < KEYS);
    set(e, &j, -1, 4);
    rank_set(r, 0, 1);
    for (int round = 0; round < 2; round++, key = 0) {
        for (int k = key; k < KEYS; k++) CHECK_OK(hpc_exchange_start(e, k, HPC_PUSH, src, -1, &tickets[k]));
        for (int k = 0; k < KEYS; k++) CHECK_OK(hpc_exchange_wait(e, k, tickets[k], -1));
    }
    for (int k = 0; k < KEYS; k++) {
        int first = k <= 128 ? 1 : 4; /* two events a push */
        CHECK_OK(hpc_exchange_start(e, k, HPC_PULL, NULL, -1, &tickets[k]));
        CHECK_OK(hpc_exchange_wait(e, k, tickets[k], -1));
        for (int i = 0; i < ELEMENTS; i++)
            CHECK_EQ(job_initial(&j, k, (uint64_t)i) - hpc_exchange_params(e, k)[i], (float)(first + 4) * src[i]);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Rank 2 alone sets other arguments, or sets none while the others do. arg: which. */
static void differ(rank *r) {
    job j;
    job_init(&j, r);
    hpc_exchange *e = job_open(r, &j);
    for (int step = 0; step < 2; step++)
        for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, step);
    if ((r->rank == 2) != r->arg) set(e, &j, 1, 0.25);
    job_push_pull(r, &j, e, 0, 2);
    float src[33] = {0};
    int status = hpc_exchange_push_pull(e, 1, src, -1);
    CHECK(status == HPC_ERR_CONFIG || status == HPC_ERR_PEER);
    CHECK(status != HPC_OK && strstr(hpc_last_error()->message, "for push 3 of key k1 by rule sgd"));
    CHECK_MESSAGE("on rank 0, ");
    hpc_exchange_free(e);
}

static int half_a_step(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count, (void)state, (void)args;
    for (int64_t i = 0; i < n; i++) param[i] -= 0.5f * acc[i];
    return 0;
}

/* A rule of one's own is called, whatever its name. */
static void named_like_a_built_in(rank *r) {
    job j;
    reference ref;
    hpc_exchange *e = NULL;
    hpc_exchange_config config;
    const hpc_rule rules[] = {{.name = "average", .apply = half_a_step}, {.name = "sgd", .apply = half_a_step}};
    const hpc_rule *given[3] = {&rules[0], &rules[1], &rules[0]};
    job_init(&j, r);
    hpc_exchange_config_init(&config);
    config.rules = given;
    CHECK_OK(job_create_with(r, &j, &config, -1, &e));
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys; key++) {
        job_push_pull(r, &j, e, key, 0);
        reference_step(&ref, key);
        reference_check(&ref, r, e, key);
    }
    job_close(e, &ref, NULL);
}

static void refusals(rank *r) {
    job j;
    hpc_exchange *e = NULL;
    hpc_exchange_config config;
    hpc_rule sgd = found("sgd", 0.5, 0), adam = found("adam", 0.5, 0.5);
    const hpc_rule *given[3] = {&sgd, r->rank == 1 ? &adam : &sgd, &sgd};
    double args[HPC_RULE_ARGS] = {0};
    job_init(&j, r);
    hpc_exchange_config_init(&config);
    config.rules = given;
    CHECK_STATUS(job_create_with(r, &j, &config, -1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rank 1 has rule adam with 2 slots, rank 0 sgd with 0, for key k1");
    given[1] = NULL;
    CHECK_STATUS(job_create_with(r, &j, &config, -1, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("the rule of key k1 is NULL");
    e = job_open(r, &j);
    for (int key = -2; key <= j.n_keys; key += j.n_keys + 2) {
        CHECK_STATUS(hpc_exchange_set_args(e, key, args), HPC_ERR_INVALID);
        CHECK_MESSAGE("is out of range; the exchange has 3");
        CHECK_STATUS(hpc_exchange_get_args(e, key, args), HPC_ERR_INVALID);
    }
    CHECK_STATUS(hpc_exchange_get_args(e, -1, args), HPC_ERR_INVALID);
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_STATUS(hpc_exchange_set_args(e, 0, args), HPC_ERR_INVALID);
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "by_key", .size = 3, .run = by_key, .arg = INLINE},
        {.name = "by_key_thread", .size = 3, .run = by_key, .arg = THREAD},
        {.name = "pipelined", .size = 2, .run = pipelined, .arg = INLINE},
        {.name = "pipelined_thread", .size = 2, .run = pipelined, .arg = THREAD},
        {.name = "pipelined_on_graph", .size = 3, .run = pipelined_on_graph, .arg = INLINE},
        {.name = "pipelined_on_graph_thread", .size = 3, .run = pipelined_on_graph, .arg = THREAD},
        {.name = "pipelined_by_ssp", .size = 3, .run = pipelined_on_graph, .arg = INLINE + 4},
        {.name = "through_stages", .size = 4, .run = through_stages, .arg = INLINE},
        {.name = "through_stages_thread", .size = 4, .run = through_stages, .arg = THREAD},
        {.name = "with_quorum", .size = 3, .run = with_quorum, .arg = INLINE},
        {.name = "with_quorum_thread", .size = 3, .run = with_quorum, .arg = THREAD},
        {.name = "cut_short", .size = 2, .run = cut_short},
        {.name = "differ", .size = 3, .run = differ, .arg = 0, .apart = true},
        {.name = "differ_by_none", .size = 3, .run = differ, .arg = 1, .apart = true},
        {.name = "named_like_a_built_in", .size = 2, .run = named_like_a_built_in},
        {.name = "refusals", .size = 3, .run = refusals, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
