#include "graph_jobs.h"

#include <sched.h>

static double *weight_at(graph_job *g, int phase, int to, int from) {
    return &g->weights[(phase * g->graph.ranks + to) * g->graph.ranks + from];
}

static void clear(graph_job *g, int n_phases) {
    memset(g->weights, 0, sizeof g->weights);
    g->graph.n_phases = n_phases;
    for (int p = 0; p < n_phases; p++)
        for (int i = 0; i < g->graph.ranks; i++) *weight_at(g, p, i, i) = 0.5;
}

void graph_job_init(graph_job *g, const rank *r) {
    *g = (graph_job){.consistency = HPC_NOTIFY_ACK};
    job_init(&g->j, r);
    g->j.rule = "average";
    hpc_plan_args_init("graph", &g->graph, sizeof g->graph);
    g->graph.ranks = r->size;
    clear(g, 1);
}

void graph_job_edge(graph_job *g, int phase, int to, int from, double weight) {
    *weight_at(g, phase, to, from) = weight;
}

double graph_job_weight(const graph_job *g, int step, int to, int from) {
    return g->weights[(step % g->graph.n_phases * g->graph.ranks + to) * g->graph.ranks + from];
}

static void fill_shape(graph_job *g, int phase, shape shape) {
    static const double unequal[] = {2, 1, 0.5, -1};
    int n = g->graph.ranks;
    for (int to = 0; to < n; to++)
        for (int from = 0; from < n; from++) {
            bool near = from == (to + n - 1) % n, far = from == (to + n - n / 2) % n, edge = false;
            if (shape == ROOT || shape == UNEQUAL) edge = near || far;
            if (shape == COMPLETE) edge = true;
            if (shape == RING) edge = near;
            if (shape == CHAIN) edge = from == to - 1;
            if (shape == STAR) edge = to == 0 || from == 0;
            if (edge && to != from) graph_job_edge(g, phase, to, from, 0.25);
            if ((edge || to == from) && shape == UNEQUAL)
                graph_job_edge(g, phase, to, from, unequal[(3 * to + from) % 4]);
        }
}

static void fill_matching(graph_job *g, int phase, uint64_t *random) {
    int order[RANKS_MAX], n = g->graph.ranks;
    for (int i = 0; i < n; i++) {
        int at = (int)(ranks_random(random) % (uint64_t)(i + 1));
        order[i] = order[at];
        order[at] = i;
    }
    for (int i = 0; i + 1 < n - phase % 2; i += 2) { /* in every other one, even of an even number, some are alone */
        graph_job_edge(g, phase, order[i], order[i + 1], 0.5);
        graph_job_edge(g, phase, order[i + 1], order[i], 0.25);
    }
}

void graph_job_shape(graph_job *g, shape shape) {
    static const enum shape of_phase[GRAPH_PHASES] = {COMPLETE, RING, CHAIN, STAR};
    int n = g->graph.ranks;
    uint64_t random = 7;
    clear(g, shape == ONE_PEER ? 3 : shape == MATCHING || shape == DEGREES ? GRAPH_PHASES : 1);
    for (int p = 0; p < g->graph.n_phases; p++) {
        if (shape == DEGREES)
            fill_shape(g, p, of_phase[p]);
        else if (shape == MATCHING)
            fill_matching(g, p, &random);
        else if (shape != ONE_PEER)
            fill_shape(g, p, shape);
        for (int i = 0; i < n && shape == ONE_PEER; i++)
            if (((1 << p) % n) != 0) graph_job_edge(g, p, i, (i + n - (1 << p) % n) % n, 0.5);
    }
}

static int below(uint64_t *random, int n) {
    return (int)(ranks_random(random) % (uint64_t)n);
}

void graph_job_random(graph_job *g, const rank *r, uint64_t seed) {
    static const int wires[] = {HPC_F32, HPC_F32, HPC_F16, HPC_BF16};
    static const char *const rules[] = {"average", "sgd", "momentum"};
    uint64_t random = seed * 1000003 + (uint64_t)r->size;
    graph_job_init(g, r);
    graph_job_shape(g, (shape)((seed + (uint64_t)below(&random, 2) * 3) % SHAPES));
    job *j = &g->j;
    j->seed = seed;
    j->n_keys = 1 + below(&random, 5);
    j->cores = 1 + below(&random, 2);
    j->depth = 1 + below(&random, 4);
    j->wire = wires[below(&random, 4)];
    j->chunk = (uint64_t)64 << below(&random, 10);
    job_random_sizes(j, &random, j->chunk * 16 < 10001 ? j->chunk * 16 : 10001);
    j->rule = rules[below(&random, 3)];
    j->args[1] = 0.5, j->args[3] = 0.5;
    g->user = below(&random, 4) == 0;
    if (g->user) j->wire = HPC_F32;
    j->mixed = !g->user && below(&random, 2);
    j->progress = below(&random, 2) ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    g->consistency = below(&random, 4) == 0 ? HPC_BSP : HPC_NOTIFY_ACK;
    if (below(&random, 2) && strcmp(j->rule, "average") == 0 && !g->user) graph_job_in_place(g);
}

void graph_job_in_place(graph_job *g) {
    g->j.in_place = 1;
    if (job_is_float32(&g->j)) g->j.depth++; /* for the model */
}

static int user_fold(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    const float *from = in;
    if (nbytes != n * (int64_t)sizeof *from) return 1;
    for (int64_t i = 0; i < n; i++) acc[i] += (float)args[1] * (float)weight * from[i];
    return 0;
}

static int user_apply(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)state, (void)args;
    for (int64_t i = 0; i < n; i++) param[i] += acc[i] + (float)count;
    return 0;
}

void graph_config_init(job_config *to, const rank *r, graph_job *g) {
    static const hpc_rule user = {.name = "user", .apply = user_apply, .fold = user_fold, .args = {0, 2}};
    hpc_exchange_config c;
    hpc_plan *plan = NULL;
    job with_plan = g->j;
    hpc_graph *graph = &g->graph;
    graph->keys = g->j.keys, graph->n_keys = g->j.n_keys;
    graph->cores = g->j.cores, graph->chunk = g->j.chunk, graph->depth = g->j.depth, graph->wire = g->j.wire;
    graph->weights = g->weights;
    graph->wires = g->j.mixed ? g->wires : NULL, graph->n_wires = g->j.mixed ? g->j.n_keys : 0;
    job_wires(&g->j, g->wires);
    if (!g->j.plan) CHECK_OK(hpc_plan_make("graph", graph, &plan));
    with_plan.plan = g->j.plan ? g->j.plan : plan;
    job_settings(&c, &g->j);
    c.graph = graph;
    c.consistency = g->consistency;
    c.staleness = g->staleness;
    c.quorum = g->quorum, c.grace = g->grace;
    if (g->user) c.rule = &user;
    job_config_init(to, r, &with_plan, &c);
    to->plan = plan;
}

int graph_create(const rank *r, graph_job *g, double timeout, hpc_exchange **exchange) {
    job_config c;
    graph_config_init(&c, r, g);
    int status = hpc_exchange_create(r->context, &c.config, timeout, exchange);
    job_config_free(&c);
    return status;
}

hpc_exchange *graph_open(const rank *r, graph_job *g) {
    hpc_exchange *e = NULL;
    CHECK_OK(graph_create(r, g, -1, &e));
    CHECK(e);
    return e;
}

void graph_reference_step(reference *ref, const graph_job *g, int who, int key) {
    int step = ref->step[key], n = 0;
    uint64_t count = g->j.keys[key].count;
    double *sum = calloc(count, sizeof *sum);
    for (int from = 0; from < g->graph.ranks; from++) {
        double weight = graph_job_weight(g, step, who, from);
        n += weight != 0;
        for (uint64_t i = 0; i < count && weight != 0; i++)
            sum[i] += weight * (double)job_gradient(&g->j, from, step, key, i);
    }
    if (g->user) {
        for (uint64_t i = 0; i < count; i++) ref->params[key][i] += (float)(2 * sum[i] + n);
        ref->step[key]++;
    } else {
        reference_apply(ref, key, sum);
    }
    free(sum);
}

void graph_dawdle(uint64_t *random) {
    int times = below(random, 4) ? 0 : below(random, 20);
    volatile double x = 1;
    for (int i = 0; i < times; i++) {
        if (i % 2) sched_yield();
        for (int k = 0; k < 300; k++) x = x * 1.0000001;
    }
}
