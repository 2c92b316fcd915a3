/* Pairs of vectors among peers and on a graph, by every way, at once and in two calls; plans by hand, and what is
 * refused. All numbers are whole, so that a sum has the same bits in every order. */
#include <math.h>

#include "engine/owner/kind.h"
#include "exchange_plans.h"
#include "inside.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* In an arg. PARTIAL: each sends to the two behind it. FACTORS: the first key goes as pairs of vectors. RELAY: each
 * update goes on from rank to rank, by a binary tree. HOSTS: one rank of each two passes the updates of others on.
 * GRAPH: the edges are of a graph, under NOTIFY_ACK if with THREADS. */
enum {
    THREADS = 1,
    PARTIAL = 2,
    FACTORS = 4,
    HALF = 8,
    MOMENTUM = 16,
    DEEP = 32,
    RELAY = 64,
    HOSTS = 128,
    GRAPH = 256,
    ONCE = 512,     /* a push applies */
    SHALLOW = 1024, /* one slot */
    STALE = 2048    /* times s */
};
enum { ROWS = 24, COLUMNS = 5, PAIRS = 3 };

typedef struct game {
    job j;
    hpc_plan *plan;
    hpc_codec_config factors;
    const hpc_codec_config *codecs[JOB_KEYS];
    int wires[JOB_KEYS], arg, parents[RANKS_MAX * RANKS_MAX], hosts[RANKS_MAX];
    unsigned char sends[RANKS_MAX * RANKS_MAX];
    hpc_graph graph;
    double weights[RANKS_MAX * RANKS_MAX];
} game;

static bool hears(const rank *r, int arg, int to, int from) {
    return !(arg & PARTIAL) || (to - from + r->size) % r->size <= 2;
}

static void graph_of(game *g, const rank *r, int depth) {
    hpc_graph *graph = &g->graph;
    hpc_plan_args_init("graph", graph, sizeof *graph);
    for (int to = 0; to < r->size; to++)
        for (int from = 0; from < r->size; from++) g->weights[to * r->size + from] = hears(r, g->arg, to, from);
    graph->keys = g->j.keys, graph->n_keys = g->j.n_keys, graph->ranks = r->size, graph->n_phases = 1;
    graph->weights = g->weights, graph->cores = 2, graph->chunk = 2048, graph->depth = depth;
    graph->wires = g->wires, graph->n_wires = g->j.n_keys;
    CHECK_OK(hpc_plan_make("graph", graph, &g->plan));
    g->j.plan = g->plan;
}

static void plan_of(game *g, const rank *r, int depth) {
    hpc_peer_to_peer all;
    if (g->arg & GRAPH) {
        graph_of(g, r, depth);
        return;
    }
    hpc_plan_args_init("peer_to_peer", &all, sizeof all);
    all.keys = g->j.keys, all.n_keys = g->j.n_keys, all.workers = g->j.workers, all.n_workers = g->j.n_workers;
    for (int from = 0; from < r->size; from++)
        for (int i = 0; i < r->size; i++)
            g->parents[from * r->size + (from + i) % r->size] = (from + (i > 0 ? (i - 1) / 2 : 0)) % r->size;
    for (int who = 0; who < r->size; who++) g->hosts[who] = who / 2;
    if (g->arg & RELAY)
        all.parents = g->parents;
    else if (g->arg & HOSTS)
        all.hosts = g->hosts;
    else
        all.sends = g->sends;
    all.cores = 2, all.chunk = 2048, all.sum = 1, all.depth = depth;
    all.wires = g->wires, all.n_wires = g->j.n_keys;
    CHECK_OK(hpc_plan_make("peer_to_peer", &all, &g->plan));
    CHECK_OK(hpc_plan_check(g->plan, r->size));
    g->j.plan = g->plan;
}

static game *game_new(const rank *r, int arg) {
    game *g = calloc(1, sizeof *g);
    job *j = &g->j;
    job_init(j, r);
    g->arg = arg;
    j->split = !(arg & ONCE);
    j->rule = arg & MOMENTUM ? "momentum" : "sgd";
    if (arg & MOMENTUM) j->args[3] = 0.5;
    j->progress = arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    for (int from = 0; from < r->size; from++)
        for (int to = 0; to < r->size; to++) g->sends[from * r->size + to] = hears(r, arg, to, from);
    for (int k = 0; k < j->n_keys; k++) g->wires[k] = arg & HALF ? HPC_F16 : HPC_F32;
    if (arg & FACTORS) {
        j->keys[0].count = j->keys[0].unit = (uint64_t)(ROWS * COLUMNS);
        hpc_codec_config_init(&g->factors);
        g->factors.rows = ROWS, g->factors.columns = COLUMNS, g->factors.pairs = PAIRS;
        g->factors.unit = j->keys[0].count;
        g->codecs[0] = &g->factors;
        g->wires[0] = HPC_FACTORS;
    }
    plan_of(g, r, arg & SHALLOW ? 1 : 2 + (arg & DEEP ? 2 : arg / STALE));
    return g;
}

static int create(const rank *r, const game *g, int consistency, int staleness, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = consistency, c.progress = g->j.progress, c.split = g->j.split, c.in_place = g->j.in_place;
    c.staleness = staleness, c.check_finite = 1, c.shared_params = g->j.shared_params;
    if (g->arg & GRAPH) c.graph = &g->graph;
    if (g->arg & FACTORS) c.codecs = g->codecs;
    return job_create_with(r, &g->j, &c, -1, e);
}

static hpc_exchange *game_open(const rank *r, const game *g) {
    hpc_exchange *e = NULL;
    const int s = g->arg / STALE, acks = (g->arg & GRAPH) && (g->arg & THREADS);
    CHECK_OK(create(r, g, s > 0 ? HPC_SSP : acks ? HPC_NOTIFY_ACK : HPC_BSP, s, &e));
    return e;
}

static void game_free(game *g) {
    hpc_plan_free(g->plan);
    free(g);
}

static void end(hpc_exchange *e, game *g) {
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    game_free(g);
}

/* ---- updates ---- */

static float element(int worker, int step, int key, uint64_t i) {
    return (float)(worker + 1 + step % 3 + key + (int)(i % 5));
}

static int pairs_of(int worker, int step) {
    return (worker + step) % (PAIRS + 1);
}

static float u_of(int worker, int step, int pair, uint64_t row) {
    return (float)((int)(row + (uint64_t)(worker + step)) % 3 + pair - 1);
}

static float v_of(int worker, int step, int pair, uint64_t column) {
    return (float)((int)(column + (uint64_t)(2 * worker + step)) % 4 - pair);
}

static double update(const game *g, int worker, int step, int key, uint64_t i) {
    if (key > 0 || !(g->arg & FACTORS)) return (double)element(worker, step, key, i);
    double sum = 0;
    for (int k = 0; k < pairs_of(worker, step); k++)
        sum += (double)u_of(worker, step, k, i / COLUMNS) * (double)v_of(worker, step, k, i % COLUMNS);
    return sum;
}

static bool is_empty(int who, int step, int key) {
    return step % 5 == 4 && (who + key + step / 5) % 2 == 0;
}

static double *sum_of(const rank *r, const game *g, int step, int key) {
    double *sum = calloc(g->j.keys[key].count, sizeof *sum);
    CHECK(sum);
    for (int who = 0; who < r->size; who++)
        for (uint64_t i = 0; i < g->j.keys[key].count; i++)
            if (hears(r, g->arg, r->rank, who) && !is_empty(who, step, key)) sum[i] += update(g, who, step, key, i);
    return sum;
}

static uint64_t start(const rank *r, const game *g, hpc_exchange *e, int key, int step, int flags) {
    uint64_t ticket;
    if (flags == HPC_PUSH && is_empty(r->rank, step, key)) {
        CHECK_OK(hpc_exchange_fold_nothing(e, key, -1, &ticket));
    } else if (key == 0 && g->arg & FACTORS) {
        hpc_factors f;
        CHECK_OK(hpc_exchange_factors(e, 0, -1, &f));
        *f.count = pairs_of(r->rank, step);
        for (int k = 0; k < *f.count; k++) {
            for (uint64_t i = 0; i < f.rows; i++) f.u[(uint64_t)k * f.rows + i] = u_of(r->rank, step, k, i);
            for (uint64_t i = 0; i < f.columns; i++) f.v[(uint64_t)k * f.columns + i] = v_of(r->rank, step, k, i);
        }
        CHECK_OK(hpc_exchange_start(e, 0, flags, NULL, -1, &ticket));
    } else {
        float *values = malloc(g->j.keys[key].count * sizeof *values);
        for (uint64_t i = 0; i < g->j.keys[key].count; i++) values[i] = element(r->rank, step, key, i);
        CHECK_OK(hpc_exchange_start(e, key, flags, values, -1, &ticket));
        free(values);
    }
    return ticket;
}

static void do_wait(hpc_exchange *e, int key, uint64_t ticket) {
    CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
}

static void fold(const rank *r, const game *g, hpc_exchange *e, int key, int step) {
    do_wait(e, key, start(r, g, e, key, step, HPC_PUSH));
}

static void apply(hpc_exchange *e, int key, double scale) {
    uint64_t ticket;
    CHECK_OK(hpc_exchange_apply(e, key, scale, -1, &ticket));
    do_wait(e, key, ticket);
}

static void skip(hpc_exchange *e, int key) {
    uint64_t ticket;
    CHECK_OK(hpc_exchange_skip(e, key, -1, &ticket));
    do_wait(e, key, ticket);
}

static void check_squares(hpc_exchange *e, int key, double expected) {
    double found = -1;
    uint64_t ticket;
    CHECK_OK(hpc_exchange_squares(e, key, -1, &ticket));
    do_wait(e, key, ticket);
    CHECK_OK(hpc_exchange_get_squares(e, key, &found));
    CHECK_EQ(found, expected);
}

static void check_gathered(const rank *r, const game *g, hpc_exchange *e, int key, const double *sum) {
    const uint64_t count = g->j.keys[key].count;
    float *mean = malloc(count * sizeof *mean);
    uint64_t ticket;
    for (uint64_t i = 0; i < count; i++) mean[i] = (float)sum[i];
    CHECK_OK(hpc_exchange_gather(e, key, -1, &ticket));
    do_wait(e, key, ticket);
    CHECK(same_floats(hpc_exchange_gathered(e, key), mean, count, "gathered", r->rank, key));
    free(mean);
}

/* ---- what comes out ---- */

/* Folds that are applied with a scale, skipped, looked at, or replaced; and workers without a gradient. */
static void between(rank *r) {
    game *g = game_new(r, r->arg);
    reference ref;
    hpc_exchange *e = game_open(r, g);
    const int steps = ranks_rounds(14);
    reference_init(&ref, &g->j);
    for (int step = 0; step < steps; step++)
        for (int key = 0; key < g->j.n_keys; key++) {
            double *sum = sum_of(r, g, step, key), squares = 0;
            for (uint64_t i = 0; i < g->j.keys[key].count; i++) squares += sum[i] * sum[i];
            if (step % 6 == 5) fold(r, g, e, key, step + 1); /* which is replaced */
            fold(r, g, e, key, step);
            for (int twice = 0; twice < step % 3; twice++) check_squares(e, key, squares);
            if (step % 4 == 1) check_gathered(r, g, e, key, sum);
            if (step % 4 == 3) {
                skip(e, key);
            } else {
                const double scale = step % 2 ? 0.5 : 1;
                for (uint64_t i = 0; i < g->j.keys[key].count; i++) sum[i] *= scale;
                apply(e, key, scale);
                reference_apply(&ref, key, sum);
            }
            reference_check(&ref, r, e, key);
            free(sum);
        }
    reference_free(&ref);
    end(e, g);
}

/* A scale of factors under sgd has the bits of a rate that is scaled, whatever the numbers; and no sum is made. */
static void scaled_rate(rank *r) {
    const double rate = 0.3, scale = 0.7;
    double args[HPC_RULE_ARGS];
    game *two = game_new(r, FACTORS), *one = game_new(r, FACTORS | ONCE);
    two->j.args[1] = rate, one->j.args[1] = rate * scale;
    hpc_exchange *e = game_open(r, two), *whole = game_open(r, one);
    CHECK(inside(e)->work[0].kind == &hpc_kind_pieces_all);
    CHECK(inside(e)->layout.dense_bytes == 0 && inside(e)->pieces[0].source == NULL);
    memcpy(args, two->j.args, sizeof args);
    for (int step = 0; step < 4; step++) {
        args[1] = rate + step, one->j.args[1] = (rate + step) * scale;
        CHECK_OK(hpc_exchange_set_args(e, 0, args)); /* of the apply */
        CHECK_OK(hpc_exchange_set_args(whole, 0, one->j.args));
        fold(r, two, e, 0, step);
        apply(e, 0, scale);
        do_wait(whole, 0, start(r, one, whole, 0, step, BOTH));
        CHECK(same_floats(hpc_exchange_params(e, 0), hpc_exchange_params(whole, 0), ROWS * COLUMNS, "scaled", r->rank,
                          0));
    }
    fold(r, two, e, 0, 1);
    apply(e, 0, NAN);
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++) CHECK(isnan(hpc_exchange_params(e, 0)[i]));
    end(whole, one);
    end(e, two);
}

/* Keys of peers and keys with servers are two configurations of one exchange. */
static void mixed(rank *r) {
    game *g = game_new(r, r->arg);
    job hub;
    job_config first, second;
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    reference ref, of_hub;
    const int n = g->j.n_keys;
    job_init(&hub, r);
    hub.split = 1;
    job_number(&hub, n);
    hpc_exchange_config_init(&c);
    c.split = 1;
    job_config_init(&second, r, &hub, &c);
    if (g->arg & FACTORS) c.codecs = g->codecs;
    job_config_init(&first, r, &g->j, &c);
    first.config.next = &second.config;
    CHECK_OK(hpc_exchange_create(r->context, &first.config, -1, &e));
    reference_init(&ref, &g->j);
    reference_init(&of_hub, &hub);
    for (int step = 0; step < 4; step++) {
        uint64_t tickets[2 * JOB_KEYS];
        for (int key = n; key-- > 0;) {
            tickets[n + key] = job_start(r, &hub, e, key, step, HPC_PUSH, false);
            tickets[key] = start(r, g, e, key, step, HPC_PUSH);
        }
        for (int key = 0; key < 2 * n; key++) do_wait(e, key, tickets[key]);
        for (int key = 0; key < 2 * n; key++) {
            if (step == 1)
                skip(e, key);
            else
                apply(e, key, 1);
        }
        for (int key = 0; key < n; key++) {
            double *sum = sum_of(r, g, step, key);
            double *of_all = calloc(hub.keys[key].count, sizeof *of_all);
            for (int who = 0; who < r->size; who++)
                for (uint64_t i = 0; i < hub.keys[key].count; i++)
                    of_all[i] += (double)job_gradient(&hub, who, step, key, i);
            if (step != 1) reference_apply(&ref, key, sum);
            if (step != 1) reference_apply(&of_hub, key, of_all);
            reference_check(&ref, r, e, key);
            reference_check(&of_hub, r, e, key);
            free(sum);
            free(of_all);
        }
    }
    reference_free(&ref);
    reference_free(&of_hub);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    job_config_free(&first);
    job_config_free(&second);
    game_free(g);
}

/* ---- at once ---- */

static void train(const rank *r, const game *g, hpc_exchange *e, int from, int to) {
    uint64_t tickets[JOB_KEYS];
    for (int step = from; step < to; step++) {
        for (int key = 0; key < g->j.n_keys; key++) tickets[key] = start(r, g, e, key, step, BOTH);
        for (int key = g->j.n_keys; key-- > 0;) do_wait(e, key, tickets[key]);
    }
}

/* Ranks make steps + who % more each, where more is as far as they may be apart. */
static int steps_of(const game *g, int who, int steps, bool unequal) {
    const int s = g->arg / STALE;
    return steps + (unequal ? who % (s < 2 ? s + 1 : 3) : 0);
}

static void check_after(const rank *r, const game *g, hpc_exchange *e, int steps, bool unequal) {
    for (int key = 0; key < g->j.n_keys; key++)
        for (uint64_t i = 0; i < g->j.keys[key].count; i++) {
            double sum = 0;
            for (int who = 0; who < r->size; who++)
                for (int step = 0; step < steps_of(g, who, steps, unequal) && hears(r, g->arg, r->rank, who); step++)
                    sum += update(g, who, step, key, i);
            CHECK(hpc_exchange_params(e, key)[i] == (float)(job_initial(&g->j, key, i) - 0.5 * sum));
        }
}

/* After each step under BSP, after a settle where all have made as many steps, after a publish and after a close
 * nothing is missing. */
static void totals(rank *r) {
    enum { STEPS = 7 };
    game *g = game_new(r, r->arg | ONCE);
    hpc_exchange *e = game_open(r, g);
    for (int step = 1; step <= STEPS; step++) {
        train(r, g, e, step - 1, step);
        if (g->arg < STALE) check_after(r, g, e, step, false);
    }
    CHECK_OK(hpc_exchange_settle(e, -1));
    check_after(r, g, e, STEPS, false);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int round = 0; round < 2; round++) {
        const int from = round == 0 ? STEPS : steps_of(g, r->rank, 2 * STEPS, true), steps = (round + 2) * STEPS;
        train(r, g, e, from, steps_of(g, r->rank, steps, true));
        rank_set(r, 32 * round + r->rank, 1);
        for (int who = 0; who < r->size; who++) progress_until(r, e, 32 * round + who, 1);
        if (round == 1) break;
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_OK(hpc_exchange_publish(e, -1));
        check_after(r, g, e, steps, true);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    check_after(r, g, e, 3 * STEPS, true);
    end(e, g);
}

static void make(const rank *r, const game *g, hpc_exchange *e, int key, int from, int to) {
    for (int step = from; step < to; step++) do_wait(e, key, start(r, g, e, key, step, HPC_PUSH));
}

/* A rank in close reads updates of each key while it waits for another: rank 1 closes before rank 2 has sent its step
 * of key 1, for which rank 0 waits before it makes the step of key 0 that rank 1's close waits for. Rank 1 may be slow
 * to close, so there are some rounds. */
static void closes_across_keys(rank *r) {
    enum { ROUNDS = 8, STARTED = 0, CLOSING = 1, MADE = 2 };
    for (int round = 0; round < ROUNDS; round++) {
        const int at = 3 * round;
        game *g = game_new(r, r->arg);
        hpc_exchange *e = game_open(r, g);
        if (r->rank == 2) {
            make(r, g, e, 0, 0, 1);
            rank_set(r, at + STARTED, 1);
            progress_until(r, e, at + CLOSING, 1);
            make(r, g, e, 1, 0, 1);
            rank_set(r, at + MADE, 1);
        } else {
            for (int key = 0; key < 2; key++) make(r, g, e, key, 0, 2);
            progress_until(r, e, at + STARTED, 1);
        }
        if (r->rank == 1) rank_set(r, at + CLOSING, 1);
        if (r->rank == 0) {
            make(r, g, e, 0, 2, 3);
            progress_until(r, e, at + MADE, 1);
            make(r, g, e, 1, 2, 3);
            make(r, g, e, 0, 3, 4);
        }
        end(e, g);
    }
}

/* ---- what is refused ---- */

static void peers_refused(rank *r) {
    game *g = game_new(r, r->arg);
    hpc_exchange *e = NULL;
    CHECK_STATUS(create(r, g, HPC_SSP, 31, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("staleness is 31; 0 to 30 are possible among peers");
    CHECK_STATUS(create(r, g, HPC_SSP, 3, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 3; SSP(3) among peers needs 5 or more");
    g->j.shared_params = 1;
    CHECK_STATUS(create(r, g, HPC_ASYNC, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("shared_params needs BSP: under ASYNC each worker has parameters of its own step");
    CHECK_STATUS(create(r, g, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("shared_params needs servers: each peer has parameters of its own");
    g->j.shared_params = 0, g->j.rule = "average";
    CHECK_STATUS(create(r, g, HPC_SSP, 1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule average, which needs the updates of all workers at once");
    game_free(g);
}

/* With two slots ASYNC would be BSP. */
static void refused_without_slots(rank *r) {
    game *g = game_new(r, ONCE);
    hpc_exchange *e = NULL;
    CHECK_STATUS(create(r, g, HPC_ASYNC, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 2; ASYNC among peers needs 3 or more");
    game_free(g);
}

/* Plans that no planner makes. */
static void ways_refused(rank *r) {
    game *g = game_new(r, r->arg);
    hpc_exchange *e = NULL;
    hpc_row *rows = (hpc_row *)(uintptr_t)g->plan->rows;
    const int core = rows[1].core;
    rows[1].core = 1 - core;
    CHECK_STATUS(create(r, g, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("of the same elements have cores");
    rows[1].core = core;
    rows[1].in = (hpc_edge *)memcpy(malloc((size_t)rows[1].n_in * sizeof(hpc_edge)), rows[1].in,
                                    (size_t)rows[1].n_in * sizeof(hpc_edge));
    ((hpc_edge *)(uintptr_t)rows[1].in)[4].row = -2 - 3; /* of rank 4 by way of rank 3, which gets it from rank 1 */
    ((hpc_edge *)(uintptr_t)rows[3].in)[4].row = -2 - 1;
    CHECK_STATUS(create(r, g, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("takes pushes of rank 4 by way of rank");
    free((void *)(uintptr_t)rows[1].in);
    game_free(g);
}

static void factors_refused(rank *r) {
    game *g = game_new(r, r->arg);
    hpc_exchange *e = game_open(r, g);
    hpc_factors f;
    uint64_t ticket;
    float u[ROWS] = {0}, v[COLUMNS] = {0};
    CHECK_STATUS(hpc_exchange_factors(e, 1, -1, &f), HPC_ERR_INVALID);
    CHECK_MESSAGE("goes as float32, not as factors");
    CHECK_STATUS(hpc_exchange_start_factors(e, 0, BOTH, PAIRS + 1, u, v, -1, &ticket), HPC_ERR_INVALID);
    CHECK_MESSAGE("count is 4; 0 to 3 pairs of vectors are possible");
    u[3] = (float)(1 / *(volatile double *)&(double){0});
    CHECK_STATUS(hpc_exchange_start_factors(e, 0, BOTH, 1, u, v, -1, &ticket), HPC_ERR_INVALID);
    CHECK_MESSAGE("the gradient of key k0 on rank");
    u[3] = 1, v[2] = 4;
    CHECK_OK(hpc_exchange_start_factors(e, 0, BOTH, 1, u, v, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    const uint64_t at = 3 * COLUMNS + 2;
    CHECK(hpc_exchange_params(e, 0)[at] == job_initial(&g->j, 0, at) - 2 * (float)r->size);
    end(e, g);
}

static void refused(rank *r) {
    game *g = game_new(r, 0);
    hpc_exchange *e = NULL;
    hpc_plan_free(g->plan);
    plan_of(g, r, 1);
    CHECK_STATUS(create(r, g, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 1; split among peers needs 2 or more");
    game_free(g);
    g = game_new(r, GRAPH);
    g->j.rule = "average", g->j.in_place = 1;
    CHECK_STATUS(create(r, g, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("in_place trains the last one where it lies");
    hpc_plan_free(g->plan);
    plan_of(g, r, 1);
    g->j.in_place = 0;
    CHECK_STATUS(create(r, g, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 1; split on a graph needs 2 or more");
    game_free(g);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "between", .size = 3, .run = between, .arg = FACTORS},
        {.name = "between_partial", .size = 5, .run = between, .arg = FACTORS | PARTIAL},
        {.name = "between_alone", .size = 1, .run = between, .arg = FACTORS},
        {.name = "between_hosts", .size = 4, .run = between, .arg = FACTORS, .per_host = 2},
        {.name = "between_relay_threads", .size = 4, .run = between, .arg = FACTORS | RELAY | THREADS | MOMENTUM},
        {.name = "between_ways_of_hosts", .size = 6, .run = between, .arg = FACTORS | HOSTS, .per_host = 2},
        {.name = "between_graph_threads",
         .size = 4,
         .run = between,
         .arg = GRAPH | PARTIAL | THREADS | MOMENTUM | HALF},
        {.name = "scaled_rate", .size = 3, .run = scaled_rate},
        {.name = "mixed", .size = 3, .run = mixed, .arg = FACTORS},
        {.name = "totals", .size = 4, .run = totals, .arg = FACTORS},
        {.name = "totals_partial", .size = 5, .run = totals, .arg = FACTORS | PARTIAL | THREADS},
        {.name = "totals_alone", .size = 1, .run = totals, .arg = FACTORS},
        {.name = "totals_shallow", .size = 3, .run = totals, .arg = SHALLOW, .sleepy = true},
        {.name = "totals_relay_hosts", .size = 6, .run = totals, .arg = FACTORS | RELAY, .per_host = 2},
        {.name = "totals_ways_of_hosts", .size = 5, .run = totals, .arg = FACTORS | HOSTS, .per_host = 2},
        {.name = "totals_ssp", .size = 4, .run = totals, .arg = FACTORS | THREADS | 3 * STALE},
        {.name = "totals_ssp_relay", .size = 5, .run = totals, .arg = FACTORS | RELAY | 2 * STALE},
        {.name = "totals_ssp_partial", .size = 5, .run = totals, .arg = FACTORS | PARTIAL | 2 * STALE},
        {.name = "totals_most_stale", .size = 3, .run = totals, .arg = 30 * STALE},
        {.name = "closes_across_keys", .size = 3, .run = closes_across_keys, .arg = ONCE | 2 * STALE},
        {.name = "peers_refused", .size = 3, .run = peers_refused, .arg = ONCE | STALE},
        {.name = "refused_without_slots", .size = 3, .run = refused_without_slots},
        {.name = "ways_refused", .size = 5, .run = ways_refused, .arg = ONCE | RELAY},
        {.name = "factors_refused", .size = 3, .run = factors_refused, .arg = ONCE | FACTORS},
        {.name = "refused", .size = 2, .run = refused},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
