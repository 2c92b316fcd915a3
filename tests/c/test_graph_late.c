/* Exchanges on graphs whose folds take what is there: under SSP nothing older than is allowed, under BARRIER and ASYNC
 * whatever came, but always updates that are whole, of one version each, and none of them twice.
 *
 * Every rank's update is the number of its step, in digits of its own, so that the fold tells whose updates of which
 * steps are in it. */
#include <math.h>
#include <pthread.h>

#include "graph_jobs.h"
#include "inside.h"
#include "transport/tcp/tcp.h"

enum { BOTH = HPC_PUSH | HPC_PULL, DIGIT = 32, STEPS = DIGIT - 1, MOST = 4, IN_PLACE = 64 };

static float digit_of(int who, int version) {
    return ldexpf((float)version, 5 * who);
}

static void init(graph_job *g, const rank *r, int consistency) {
    CHECK(r->size <= MOST);
    graph_job_init(g, r);
    graph_job_shape(g, COMPLETE);
    for (int i = 0; i < r->size * r->size; i++) g->weights[i] = 1;
    g->consistency = consistency;
    g->j.keys[0].count = 40001; /* in rows that are torn apart on their way */
    g->j.chunk = 32768;
}

static void push(const rank *r, const graph_job *g, hpc_exchange *e, int key, int version) {
    float *src = g->j.in_place ? hpc_exchange_params(e, key) : malloc(g->j.keys[key].count * sizeof *src);
    for (int who = 0; who < r->size; who++) src[who] = who == r->rank ? (float)version : 0;
    for (uint64_t i = (uint64_t)r->size; i < g->j.keys[key].count; i++) src[i] = digit_of(r->rank, version);
    CHECK_OK(hpc_exchange_push_pull(e, key, g->j.in_place ? NULL : src, -1));
    if (!g->j.in_place) free(src);
}

/* The versions that the parameters are folded of, 0 for what was not there, and how many. The first elements tell them
 * one by one, and all others must be of the same. */
static int decode(const rank *r, const graph_job *g, hpc_exchange *e, int key, int step, int *versions) {
    const float *params = hpc_exchange_params(e, key);
    double sum = 0;
    int present = 0;
    for (int who = 0; who < r->size; who++) present += params[who] != 0;
    for (int who = 0; who < r->size; who++) {
        double version = (double)params[who] * present / r->size;
        versions[who] = (int)lround(version);
        CHECK(fabs(version - versions[who]) < 0.001);
        sum += (double)digit_of(who, versions[who]);
    }
    CHECK_EQ(versions[r->rank], step);
    sum *= (double)r->size / present;
    for (uint64_t i = (uint64_t)r->size; i < g->j.keys[key].count; i++) {
        if (fabs((double)params[i] - sum) <= 1e-6 * sum) continue;
        fprintf(stderr, "rank %d, key %d, step %d: element %llu is %.9g, not %.9g\n", r->rank, key, step,
                (unsigned long long)i, (double)params[i], sum);
        exit(1);
    }
    return present;
}

/* Checks the counts: of inputs, of folds by how many of their inputs were new, and of received bytes. */
static void check_counts(const rank *r, const graph_job *g, hpc_exchange *e, int reduces) {
    hpc_exchange_stats stats;
    uint64_t inputs[RANKS_MAX] = {0}, n = 0, whole = 0, received = 0, sent = 0, most = 0;
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(hpc_exchange_get_inputs(e, inputs, RANKS_MAX), r->size - 1);
    for (int i = 0; i < RANKS_MAX; i++) n += inputs[i], whole += (uint64_t)i * inputs[i];
    CHECK_EQ(stats.reduces, reduces);
    CHECK_EQ(n, reduces);
    CHECK_EQ(stats.whole, whole);
    CHECK_EQ(stats.whole + stats.torn + stats.stale + stats.missing, reduces * (r->size - 1));
    for (int other = 0; other < r->size; other++) {
        hpc_exchange_peer peer;
        CHECK_OK(hpc_exchange_get_peer(e, other, &peer));
        received += peer.bytes_received;
        sent += peer.bytes_sent;
        CHECK(other != r->rank || peer.bytes_sent + peer.bytes_received == 0);
    }
    for (int key = 0; key < g->j.n_keys; key++) most += g->j.keys[key].count * sizeof(float);
    CHECK_EQ(sent, most * STEPS * (uint64_t)(r->size - 1));
    CHECK_EQ(stats.bytes_sent, sent);
    if (g->j.n_keys == 1) CHECK_EQ(received, whole * most);
}

/* ---- SSP -------------------------------------------------------------------------------------------------------- */

/* arg: IN_PLACE or 0. Models: the newest version of a neighbour may be folded again, so its slot is not free yet, while
 * all before it are. */
static void ssp_keeps_newest(rank *r) {
    graph_job g;
    uint64_t ticket;
    init(&g, r, HPC_SSP);
    graph_job_shape(&g, CHAIN);
    g.staleness = 1, g.j.depth = 3;
    if (r->arg) graph_job_in_place(&g);
    hpc_exchange *e = graph_open(r, &g);
    push(r, &g, e, 0, 1);
    if (r->rank == 1) {
        push(r, &g, e, 0, 2); /* which waits for the first of rank 0 */
        rank_set(r, 1, 1);
        rank_await(r, 0, 1);
        for (int step = 3; step <= 5; step++) push(r, &g, e, 0, step);
    } else {
        progress_until(r, e, 1, 1);
        for (int step = 2; step <= 3; step++) push(r, &g, e, 0, step);
        CHECK_STATUS(hpc_exchange_start(e, 0, BOTH, hpc_exchange_params(e, 0), 0.1, &ticket), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1));
        rank_set(r, 0, 1);
        push(r, &g, e, 0, 4);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* ---- BARRIER, ASYNC -----------------------------------------------------------------------------------------------
 */

/* arg: consistency + 16 * progress, + IN_PLACE. */
static void what_is_there(rank *r) {
    int rounds = ranks_rounds(100) < 100 ? 3 : 6; /* each depth, once or twice */
    for (int round = 0; round < rounds; round++) {
        graph_job g;
        int versions[MOST], last[2][MOST] = {{0}};
        uint64_t random = (uint64_t)(r->rank + 100 * round);
        init(&g, r, r->arg % 16);
        g.j.progress = r->arg % IN_PLACE / 16;
        g.j.depth = 1 + round % 3;
        if (r->arg >= IN_PLACE) graph_job_in_place(&g);
        g.j.n_keys = 1 + round % 2;
        hpc_exchange *e = graph_open(r, &g);
        for (int step = 1; step <= STEPS; step++) {
            rank_set(r, r->rank, (uint64_t)(round * STEPS + step));
            for (int key = 0; key < g.j.n_keys; key++) {
                push(r, &g, e, key, step);
                decode(r, &g, e, key, step, versions);
                for (int who = 0; who < r->size; who++) {
                    CHECK(versions[who] == 0 || versions[who] > last[key][who]);
                    if (versions[who] != 0) last[key][who] = versions[who];
                    if (g.consistency == HPC_BARRIER) /* all have met */
                        CHECK(rank_await(r, who, 0) >= (uint64_t)(round * STEPS + step));
                }
            }
            graph_dawdle(&random);
        }
        check_counts(r, &g, e, STEPS * g.j.n_keys);
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_OK(hpc_exchange_close(e, -1));
        hpc_exchange_free(e);
    }
}

/* arg: consistency. A push itself asks each neighbour to say when the data are there: the next one waits for all of
 * these answers at once, not for one after the other. */
static void asks_all(rank *r) {
    graph_job g;
    init(&g, r, r->arg);
    hpc_exchange *e = graph_open(r, &g);
    push(r, &g, e, 0, 1);
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
    enum { INLINE = 16 * HPC_PROGRESS_INLINE, THREAD = 16 * HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "ssp_keeps_newest", .size = 2, .run = ssp_keeps_newest},
        {.name = "ssp_keeps_newest_in_place", .size = 2, .run = ssp_keeps_newest, .arg = IN_PLACE},
        {.name = "barrier", .size = 4, .run = what_is_there, .arg = HPC_BARRIER + INLINE, .where = RANKS_UNSEEDED},
        {.name = "barrier_thread",
         .size = 3,
         .run = what_is_there,
         .arg = HPC_BARRIER + THREAD,
         .where = RANKS_UNSEEDED},
        {.name = "async", .size = 4, .run = what_is_there, .arg = HPC_ASYNC + INLINE, .where = RANKS_UNSEEDED},
        {.name = "async_thread", .size = 4, .run = what_is_there, .arg = HPC_ASYNC + THREAD, .where = RANKS_UNSEEDED},
        {.name = "barrier_in_place",
         .size = 3,
         .run = what_is_there,
         .arg = HPC_BARRIER + INLINE + IN_PLACE,
         .where = RANKS_UNSEEDED},
        {.name = "async_in_place",
         .size = 4,
         .run = what_is_there,
         .arg = HPC_ASYNC + THREAD + IN_PLACE,
         .where = RANKS_UNSEEDED},
        {.name = "asks_all_barrier", .size = 3, .run = asks_all, .arg = HPC_BARRIER, .where = RANKS_TCP},
        {.name = "asks_all_async", .size = 3, .run = asks_all, .arg = HPC_ASYNC, .where = RANKS_TCP},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
