/* Exchanges on graphs: where folds wait for their inputs any shape, wire and rule gives the weighted sum of the very
 * step; and what pushes wait for. */
#include <pthread.h>

#include "graph_jobs.h"
#include "inside.h"
#include "transport/tcp/parts.h"

enum { BOTH = HPC_PUSH | HPC_PULL, STEPS = 12 };

typedef struct run {
    rank *r;
    graph_job *g;
    hpc_exchange *e;
    reference ref;
    uint64_t random; /* differs from rank to rank */
} run;

/* Pushes so many steps of every key, keys in any order, and waits for all of them, in any order. No more than depth, or
 * one where models are trained in place, or ranks that do different keys first would wait for each other. */
static void push_block(run *a, int steps) {
    uint64_t tickets[JOB_KEYS];
    int n = a->g->j.n_keys, first = (int)(ranks_random(&a->random) % (uint64_t)n);
    bool in_place = ranks_random(&a->random) % 2, rising = ranks_random(&a->random) % 2;
    for (int i = 0; i < n; i++) {
        int key = (first + (rising ? i : n - i)) % n;
        for (int s = 0; s < steps; s++) {
            graph_dawdle(&a->random);
            tickets[key] = job_start(a->r, &a->g->j, a->e, key, a->ref.step[key] + s, BOTH, in_place);
        }
    }
    first = (int)(ranks_random(&a->random) % (uint64_t)n);
    for (int i = 0; i < n; i++) {
        int key = (first + i) % n;
        graph_dawdle(&a->random);
        CHECK_OK(hpc_exchange_wait(a->e, key, tickets[key], -1));
        for (int s = 0; s < steps; s++) graph_reference_step(&a->ref, a->g, a->r->rank, key);
        reference_check(&a->ref, a->r, a->e, key);
    }
}

static void run_open(run *a, rank *r, graph_job *g) {
    *a = (run){.r = r, .g = g, .e = graph_open(r, g), .random = g->j.seed * 31 + (uint64_t)r->rank};
    reference_init(&a->ref, &g->j);
}

static void run_steps(run *a, int steps) {
    for (int done = 0, block; done < steps; done += block) {
        block = a->g->j.in_place ? 1 : 1 + (int)(ranks_random(&a->random) % (uint64_t)a->g->j.depth);
        if (block > steps - done) block = steps - done;
        push_block(a, block);
    }
}

/* Every input of every fold was whole; of each neighbour came, and to each went, what its edges say. */
static void check_counts(const run *a, int steps) {
    const graph_job *g = a->g;
    hpc_exchange_stats stats;
    uint64_t bytes = 0, sent = 0, inputs[RANKS_MAX] = {0}, expected[RANKS_MAX] = {0}, whole = 0;
    int me = a->r->rank, size = a->r->size;
    for (int key = 0; key < g->j.n_keys; key++)
        bytes += g->j.keys[key].count * (job_wire(&g->j, key) == HPC_F32 ? 4 : 2);
    CHECK_OK(hpc_exchange_get_stats(a->e, &stats));
    CHECK(hpc_exchange_get_histogram(a->e, HPC_FOLDS_BY_INPUTS, inputs, RANKS_MAX) < size);
    for (int step = 0; step < steps; step++) {
        int degree = 0;
        for (int from = 0; from < size; from++) degree += from != me && graph_job_weight(g, step, me, from) != 0;
        expected[degree] += stats.reduces / (uint64_t)steps;
        whole += (uint64_t)degree * (stats.reduces / (uint64_t)steps);
    }
    CHECK(stats.reduces >= (uint64_t)(steps * g->j.n_keys) && stats.reduces % (uint64_t)steps == 0);
    CHECK_EQ(stats.whole, whole);
    CHECK_EQ(stats.torn + stats.stale + stats.missing, 0);
    for (int n = 0; n < size; n++) CHECK_EQ(inputs[n], expected[n]);
    hpc_traffic traffic[RANKS_MAX];
    int n_traffic = hpc_exchange_get_traffic(a->e, traffic, RANKS_MAX), found = 0;
    for (int other = 0; other < size; other++) {
        uint64_t to = 0, from = 0;
        hpc_exchange_peer peer;
        for (int step = 0; step < steps && other != me; step++) {
            to += graph_job_weight(g, step, other, me) != 0 ? bytes : 0;
            from += graph_job_weight(g, step, me, other) != 0 ? bytes : 0;
        }
        CHECK_OK(hpc_exchange_get_peer(a->e, other, &peer));
        CHECK_EQ(peer.bytes_sent, to);
        CHECK_EQ(peer.bytes_received, from);
        if (to == 0) continue; /* a graph has no other stage */
        CHECK(found < n_traffic);
        CHECK_EQ(traffic[found].rank, other);
        CHECK_EQ(traffic[found].stage, HPC_TRAFFIC_PUSH);
        CHECK_EQ(traffic[found++].bytes, to);
        sent += to;
    }
    CHECK_EQ(found, n_traffic);
    CHECK_EQ(stats.bytes_sent, sent);
}

static void run_close(run *a) {
    CHECK_OK(hpc_exchange_close(a->e, -1));
    reference_free(&a->ref);
    hpc_exchange_free(a->e);
}

/* arg: the first seed. */
static void exact(rank *r) {
    graph_job g;
    run a;
    int rounds = ranks_rounds(2 * SHAPES);
    for (int round = 0; round < rounds; round++) {
        graph_job_random(&g, r, (uint64_t)(r->arg + round));
        run_open(&a, r, &g);
        run_steps(&a, STEPS);
        check_counts(&a, STEPS);
        run_close(&a);
    }
}

enum { IN_PLACE = 256 };

/* A rank waits for nobody further away: the others of a chain make their step while the last has not begun its own. */
static void only_neighbours(rank *r) {
    graph_job g;
    run a;
    graph_job_init(&g, r);
    graph_job_shape(&g, CHAIN);
    g.j.progress = HPC_PROGRESS_THREAD;
    run_open(&a, r, &g);
    if (r->rank == r->size - 1) rank_await(r, r->size - 2, 1);
    push_block(&a, 1);
    rank_set(r, r->rank, 1);
    run_steps(&a, 3);
    run_close(&a);
}

/* arg: the wire. Nobody trains and nobody pulls: each push sends the average of the last one, which it waits for. */
static void averages_again(rank *r) {
    enum { PUSHES = 4 };
    graph_job g;
    graph_job_init(&g, r);
    graph_job_shape(&g, ROOT);
    g.j.wire = r->arg, g.j.depth = 3;
    graph_job_in_place(&g);
    hpc_exchange *e = graph_open(r, &g);
    uint64_t ticket = job_start(r, &g.j, e, 1, 0, HPC_PUSH, true);
    for (int i = 1; i < PUSHES; i++) CHECK_OK(hpc_exchange_start(e, 1, HPC_PUSH, NULL, -1, &ticket));
    CHECK_OK(hpc_exchange_wait(e, 1, ticket, -1));
    uint64_t count = g.j.keys[1].count;
    float *expected = calloc(count, sizeof *expected);
    for (uint64_t i = 0; i < count; i++) {
        double x[RANKS_MAX], y[RANKS_MAX];
        for (int who = 0; who < r->size; who++) x[who] = (double)job_gradient(&g.j, who, 0, 1, i);
        for (int step = 0; step < PUSHES; step++) {
            for (int to = 0; to < r->size; to++) {
                y[to] = 0;
                for (int from = 0; from < r->size; from++) y[to] += graph_job_weight(&g, step, to, from) * x[from];
            }
            memcpy(x, y, sizeof x);
        }
        expected[i] = (float)x[r->rank];
    }
    CHECK(same_floats(hpc_exchange_params(e, 1), expected, count, "after all pushes", r->rank, 1));
    free(expected);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

static void push(const graph_job *g, hpc_exchange *e) {
    float *src = calloc(g->j.keys[0].count, sizeof *src);
    CHECK_OK(hpc_exchange_push_pull(e, 0, g->j.in_place ? NULL : src, -1));
    free(src);
}

/* arg: IN_PLACE or 0. Models: the newest version of a neighbour may be folded again, so its slot is not free yet, while
 * all before it are. */
static void ssp_keeps_newest(rank *r) {
    graph_job g;
    uint64_t ticket;
    graph_job_init(&g, r);
    graph_job_shape(&g, CHAIN);
    g.consistency = HPC_SSP, g.staleness = 1, g.j.depth = 3;
    if (r->arg) graph_job_in_place(&g);
    hpc_exchange *e = graph_open(r, &g);
    push(&g, e);
    if (r->rank == 1) {
        push(&g, e); /* which waits for the first of rank 0 */
        rank_set(r, 1, 1);
        rank_await(r, 0, 1);
        for (int step = 3; step <= 5; step++) push(&g, e);
    } else {
        progress_until(r, e, 1, 1);
        for (int step = 2; step <= 3; step++) push(&g, e);
        CHECK_STATUS(hpc_exchange_start(e, 0, BOTH, hpc_exchange_params(e, 0), 0.1, &ticket), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1));
        rank_set(r, 0, 1);
        push(&g, e);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* arg: consistency. A push itself asks each neighbour to say when the data are there: the next one waits for all of
 * these answers at once, not for one after the other. */
static void asks_all(rank *r) {
    graph_job g;
    graph_job_init(&g, r);
    graph_job_shape(&g, COMPLETE);
    g.consistency = r->arg;
    hpc_exchange *e = graph_open(r, &g);
    push(&g, e);
    for (int who = 0; who < r->size; who++) {
        if (who == r->rank) continue;
        tcp_link *link = inside(e)->in_lanes[0]->peers[who].out;
        pthread_mutex_lock(&link->sending);
        CHECK(link->issued > 0);
        CHECK_EQ(link->asked, link->issued);
        pthread_mutex_unlock(&link->sending);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "exact_2", .size = 2, .run = exact, .arg = 1},
        {.name = "exact_3", .size = 3, .run = exact, .arg = 100},
        {.name = "exact_4_sleepy", .size = 4, .run = exact, .arg = 200, .sleepy = true},
        {.name = "exact_5", .size = 5, .run = exact, .arg = 300},
        {.name = "only_neighbours", .size = 4, .run = only_neighbours},
        {.name = "averages_again", .size = 4, .run = averages_again, .arg = HPC_F32},
        {.name = "averages_again_f16", .size = 4, .run = averages_again, .arg = HPC_F16},
        {.name = "ssp_keeps_newest", .size = 2, .run = ssp_keeps_newest},
        {.name = "ssp_keeps_newest_in_place", .size = 2, .run = ssp_keeps_newest, .arg = IN_PLACE},
        {.name = "asks_all_barrier", .size = 3, .run = asks_all, .arg = HPC_BARRIER, .where = RANKS_TCP},
        {.name = "asks_all_async", .size = 3, .run = asks_all, .arg = HPC_ASYNC, .where = RANKS_TCP},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
