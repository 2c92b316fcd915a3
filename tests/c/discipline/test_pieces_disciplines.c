/* Updates that go as pieces, under every discipline that takes them. Nothing is lost: what all workers have computed is
 * what owners have applied and what encoders hold back, element by element. */
#include <math.h>

#include "piece_jobs.h"

static const setup setups[] = {
    {"bsp", 3, HUB, .kinds = {LARGE, ALL, DECAYS}},
    {"bsp_forms", 3, HUB, .kinds = {PAPER, LOSSY, OWN}, .progress = HPC_PROGRESS_THREAD},
    {"bsp_rounded", 3, HUB, .kinds = {HALF, BRAIN, TOP}, .scale = 237},
    {"bsp_bits", 3, HUB, .kinds = {BITS, DENSE, BITS}, .depth = 2},
    {"lz4", 3, HUB, .kinds = {LZ4, LZ4, LARGE}, .consistency = HPC_ASYNC},
    {"snappy", 3, HUB, .kinds = {SNAPPY, LARGE, SNAPPY}},
    {"zstd", 3, SERVER, .kinds = {ZSTD, ZSTD, DENSE}, .quorum = 1},
    {"zlib", 4, HUB, .kinds = {ZLIB, ZLIB, ZLIB}, .quorum = 2},
    {"async", 3, HUB, .consistency = HPC_ASYNC, .kinds = {LARGE, TOP, OWN}},
    {"async_deep", 4, SERVER, .consistency = HPC_ASYNC, .depth = 3, .kinds = {LARGE, HALF, DENSE}, .scale = 37},
    {"async_threads", 8, HUB, .consistency = HPC_ASYNC, .depth = 2, .kinds = {BITS, LARGE, TOP},
     .progress = HPC_PROGRESS_THREAD},
    {"ssp", 3, HUB, .consistency = HPC_SSP, .staleness = 2, .depth = 3, .kinds = {LARGE, OWN, TOP}},
    {"ssp_1", 4, SERVER, .consistency = HPC_SSP, .staleness = 1, .depth = 2, .kinds = {BRAIN, LOSSY, DENSE},
     .progress = HPC_PROGRESS_THREAD},
    {"quorum_1", 3, HUB, .quorum = 1, .kinds = {LARGE, TOP, OWN}},
    {"quorum_2", 4, HUB, .quorum = 2, .kinds = {LARGE, HALF, DENSE}, .depth = 3, .scale = 37},
    {"quorum_3", 4, SERVER, .quorum = 2, .kinds = {BITS, ALL, DECAYS}, .progress = HPC_PROGRESS_THREAD},
    {"quorum_unwaited", 4, HUB, .quorum = 2, .kinds = {LARGE, TOP, OWN}, .unwaited = 1},
    {"quorum_8", 8, HUB, .quorum = 3, .grace = 1e-4, .kinds = {LARGE, OWN, PAPER}, .progress = HPC_PROGRESS_THREAD},
    {"hosts", 4, HOSTS, .per_host = 2, .kinds = {LARGE, TOP, OWN}},
    {"hosts_async", 5, HOSTS, .per_host = 2, .consistency = HPC_ASYNC, .kinds = {LARGE, OWN, DENSE}},
    {"hosts_ssp", 6, HOSTS, .per_host = 2, .consistency = HPC_SSP, .staleness = 1, .kinds = {HALF, LARGE, TOP},
     .progress = HPC_PROGRESS_THREAD, .scale = 37},
    {"racks_async", 8, RACKS, .per_host = 2, .consistency = HPC_ASYNC, .kinds = {LARGE, LARGE, BRAIN}},
    {"racks_ssp", 8, RACKS, .per_host = 2, .consistency = HPC_SSP, .staleness = 2, .kinds = {LARGE, OWN, ZLIB}},
    {"hosts_quorum", 6, HOSTS, .per_host = 2, .quorum = 2, .kinds = {LARGE, OWN, HALF}, .scale = 37},
    {"hosts_quorum_1", 5, HOSTS, .per_host = 2, .quorum = 1, .kinds = {ALL, ZLIB, TOP},
     .progress = HPC_PROGRESS_THREAD},
    {"hosts_quorum_unwaited", 6, HOSTS, .per_host = 2, .quorum = 1, .depth = 2, .kinds = {LARGE, TOP, OWN},
     .unwaited = 1},
    {"hosts_quorum_split", 6, HOSTS, .per_host = 2, .quorum = 2, .split = 1, .kinds = {LARGE, OWN, HALF}, .scale = 37},
    {"racks_quorum_split", 8, RACKS, .per_host = 2, .quorum = 1, .split = 1, .kinds = {ALL, ZLIB, TOP},
     .progress = HPC_PROGRESS_THREAD},
    {"by_hand_quorum", 3, BY_HAND, .quorum = 1, .kinds = {LARGE, OWN, TOP}, .progress = HPC_PROGRESS_THREAD},
    {"racks_quorum", 8, RACKS, .per_host = 2, .quorum = 1, .kinds = {LARGE, OWN, BRAIN}, .scale = 37},
    {"peers_quorum", 4, PEERS, .quorum = 2, .kinds = {LARGE, HALF, OWN}, .depth = 3, .scale = 37},
    {"peers_quorum_1", 3, PEERS, .quorum = 1, .kinds = {BITS, TOP, DECAYS}, .progress = HPC_PROGRESS_THREAD},
    {"graph_bsp", 4, GRAPH, .shape = ROOT, .kinds = {LARGE, DENSE, OWN}},
    {"graph_notify", 4, GRAPH, .shape = UNEQUAL, .consistency = HPC_NOTIFY_ACK, .depth = 2, .kinds = {LARGE, TOP, HALF},
     .scale = 37},
    {"graph_chain", 5, GRAPH, .shape = CHAIN, .consistency = HPC_NOTIFY_ACK, .kinds = {OWN, LARGE, ZLIB},
     .progress = HPC_PROGRESS_THREAD},
    {"graph_ssp", 4, GRAPH, .shape = ROOT, .consistency = HPC_SSP, .staleness = 2, .depth = 4,
     .kinds = {LARGE, PAPER, BRAIN}},
    {"graph_ssp_8", 8, GRAPH, .shape = COMPLETE, .consistency = HPC_SSP, .staleness = 1, .depth = 3,
     .kinds = {LARGE, LARGE, DENSE}, .progress = HPC_PROGRESS_THREAD},
};

enum { SETUPS = sizeof setups / sizeof *setups };

/* Steps of random length; returns how often it has pushed. */
static int train(const play *p, rank *r, double *computed) {
    const int steps = ranks_rounds(16), n_keys = p->j.n_keys;
    uint64_t random = 77 * (uint64_t)r->rank + r->mode->seed, tickets[JOB_KEYS];
    int made = 0;
    for (int step = 0; p->s->quorum > 0 ? hpc_exchange_version(p->e, -1) < (uint64_t)steps : step < steps; step++) {
        for (int key = 0; key < n_keys; key++) {
            for (int i = 0; i < (p->s->plan == BY_HAND ? step * 37 % 200 : 20); i++) graph_dawdle(&random);
            if (p->s->consistency == HPC_ASYNC && p->j.depth > 1 && hpc_exchange_ready(p->e, key) == HPC_OK)
                play_start(p, r, 1000 + step, key, HPC_PUSH, false, computed);
            tickets[key] = play_start(p, r, step, key, BOTH, false, computed);
        }
        for (int key = 0; key < n_keys; key++) CHECK_OK(hpc_exchange_wait(p->e, key, tickets[key], -1));
        made++;
    }
    for (int zero = 0; p->s->plan == GRAPH && zero <= p->s->staleness; zero++) /* folds what was not waited for */
        for (int key = 0; key < n_keys; key++)
            CHECK_OK(hpc_exchange_wait(p->e, key, play_start(p, r, zero, key, BOTH, true, computed), -1));
    for (int key = 0; key < n_keys && p->s->unwaited; key++) play_start(p, r, made, key, HPC_PUSH, false, computed);
    return made;
}

/* A graph: each rank has a model of its own, made of what it and its in-neighbours have sent. */
static void check_graph(const play *p, const rank *r, const double *sent) {
    double *all = malloc((size_t)r->size * p->all * sizeof *all), *own = calloc(p->all, sizeof *own);
    CHECK_OK(hpc_allgather(r->context, sent, all, p->all * sizeof *all, -1));
    play_add_applied(p, r, -1, own);
    for (int from = 0; from < r->size; from++)
        for (size_t i = 0; i < p->all; i++)
            own[i] += graph_job_weight(&p->g, 0, r->rank, from) * all[(size_t)from * p->all + i];
    play_check_none(p, own);
    free(all);
    free(own);
}

/* Checks the bytes that were left out and went back into residuals: without a quorum there are none. */
static void check_returned(const play *p, const rank *r) {
    hpc_exchange_stats stats;
    uint64_t returned = 0;
    CHECK_OK(hpc_exchange_get_stats(p->e, &stats));
    for (int key = 0; key < p->j.n_keys; key++) {
        hpc_key_stats its;
        CHECK_OK(hpc_exchange_get_key_stats(p->e, key, &its));
        CHECK(its.returned <= its.bytes && its.kept <= its.elements && its.bytes_before == 4 * its.elements);
        returned += its.returned;
    }
    CHECK(stats.dropped > 0 || returned == 0);
    CHECK(p->s->quorum > 0 || returned == 0);
    (void)r;
}

static void nothing_is_lost(rank *r) {
    play *p = play_new(r, &setups[r->arg]);
    double *sum = calloc(p->all, sizeof *sum);
    if (job_works(&p->j, r->rank)) {
        train(p, r, sum);
        if (!p->s->unwaited) CHECK_OK(hpc_exchange_settle(p->e, -1));
    }
    if (p->s->unwaited || !job_works(&p->j, r->rank))
        CHECK_OK(hpc_exchange_close(p->e, -1));
    else
        play_meet(r, p, 0);
    if (!p->s->unwaited && job_works(&p->j, r->rank)) play_add_residuals(p, r, 0, sum);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    play_add_residuals(p, r, -1, sum);
    check_returned(p, r);
    if (p->s->plan == GRAPH)
        check_graph(p, r, sum);
    else
        play_check_servers(p, r, sum);
    CHECK_OK(hpc_barrier(r->context, -1));
    free(sum);
    play_free(p);
}

/* ---- what a quorum leaves out ---- */

/* arg: progress. Two of three make a step, and the third one comes late with its update, which goes back whole: the
 * piece, and what it left out. It goes out with the next update, whether that one is encoded over it or not. */
static void goes_back(rank *r) {
    const setup s = {.plan = HUB, .quorum = 2, .progress = r->arg, .kinds = {LARGE, ALL, HALF}, .scale = 37};
    play *p = play_new(r, &s);
    double *computed = calloc(p->all, sizeof *computed);
    uint64_t tickets[JOB_KEYS], made;
    hpc_key_stats stats;
    for (int step = 0; step < 3; step++) {
        /* in step 0 the last rank is late; in step 1 it is the first that pushes, and rank 1 is late */
        const int late = step == 0 ? LATE : step == 1 ? 1 : -1;
        if (r->rank == late) progress_until(r, p->e, WORD + step, 2);
        for (int key = 0; key < p->j.n_keys; key++) tickets[key] = play_start(p, r, step, key, BOTH, false, computed);
        for (int key = 0; key < p->j.n_keys; key++) CHECK_OK(hpc_exchange_wait(p->e, key, tickets[key], -1));
        if (r->rank != late) atomic_fetch_add(&r->board[WORD + step], 1);
        progress_until(r, p->e, WORD + step, late < 0 ? 3 : 2);
        rank_set(r, r->rank, (uint64_t)step + 1);
        for (int who = 0; who < r->size; who++) progress_until(r, p->e, who, (uint64_t)step + 1);
        for (int key = 0; key < p->j.n_keys; key++) {
            CHECK_OK(hpc_exchange_get_key_stats(p->e, key, &stats));
            CHECK(step == 2 || (hpc_exchange_late(p->e, key) > 0) == (r->rank == late));
            if (r->rank != late || step > 0) continue;
            float *values = play_residual(p, key, &made);
            CHECK_EQ(made, 1);
            for (uint64_t i = 0; i < p->j.keys[key].count; i++)
                CHECK((double)values[i] == computed[p->first[key] + i]); /* all of it is here again */
            CHECK_OK(hpc_exchange_get_key_stats(p->e, key, &stats));
            CHECK_EQ(stats.returned, stats.bytes);
            free(values);
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    play_add_residuals(p, r, -1, computed);
    play_check_servers(p, r, computed);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    free(computed);
    play_free(p);
}

/* A NaN that comes late is gone: it does not stay in the residual for good. */
static void wild_goes(rank *r) {
    const setup s = {.plan = HUB, .quorum = 1, .kinds = {LARGE, OWN, BITS}};
    play *p = play_new(r, &s);
    uint64_t ticket, made;
    for (int key = 0; key < p->j.n_keys; key++) {
        float *src = calloc(p->j.keys[key].count, sizeof *src);
        if (r->rank == LATE && p->c.kinds[key] != OWN) src[0] = NAN, src[1] = INFINITY;
        if (r->rank == LATE) src[2] = 7, progress_until(r, p->e, WORD + key, 2);
        CHECK_OK(hpc_exchange_start(p->e, key, BOTH, src, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(p->e, key, ticket, -1));
        if (r->rank != LATE) atomic_fetch_add(&r->board[WORD + key], 1);
        if (r->rank == LATE) {
            CHECK(hpc_exchange_late(p->e, key) > 0);
            float *values = play_residual(p, key, &made);
            for (uint64_t i = 0; i < p->j.keys[key].count; i++) CHECK(isfinite(values[i]));
            CHECK(p->c.kinds[key] == BITS || values[2] == 7);
            free(values);
        }
        free(src);
    }
    play_meet(r, p, 0);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
}

int main(int argc, char **argv) {
    ranks_case cases[SETUPS + 4] = {{0}};
    int n = 0;
    for (int i = 0; i < SETUPS; i++)
        cases[n++] = (ranks_case){.name = setups[i].name, .size = setups[i].size, .run = nothing_is_lost, .arg = i};
    cases[n++] = (ranks_case){.name = "goes_back", .size = 3, .run = goes_back, .arg = HPC_PROGRESS_INLINE};
    cases[n++] = (ranks_case){.name = "goes_back_threads", .size = 3, .run = goes_back, .arg = HPC_PROGRESS_THREAD};
    cases[n++] = (ranks_case){.name = "wild_goes", .size = 3, .run = wild_goes};
    return ranks_main(argc, argv, cases);
}
