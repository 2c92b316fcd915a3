/* Peers: every worker applies the pushes of those that send to it, under BSP and SSP(s). All numbers are whole, so that
 * a sum has the same bits in every order. */
#define _GNU_SOURCE
#include <time.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* Parts of a case's arg: s, and flags. PARTIAL: each sends to the two behind it. SHALLOW: one slot. FACTORS: the first
 * key goes as pairs of vectors. RELAY: each update goes on from rank to rank, by a binary tree. HOSTS: one rank of each
 * two applies for both. */
enum {
    THREADS = 32,
    PARTIAL = 64,
    SHALLOW = 128,
    FACTORS = 256,
    HALF = 512,
    RELAY = 2048,
    HOSTS = 4096,
    COLUMNS = 5,
    PAIRS = 3
};

typedef struct peers {
    job j;
    hpc_plan *plan;
    int s;
    unsigned char sends[RANKS_MAX * RANKS_MAX];
    hpc_codec_config factors;
    const hpc_codec_config *codecs[JOB_KEYS];
    int wires[JOB_KEYS], parents[RANKS_MAX * RANKS_MAX], hosts[RANKS_MAX];
} peers;

static bool hears(const rank *r, int to, int from) {
    return !(r->arg & PARTIAL) || (to - from + r->size) % r->size <= 2;
}

static peers *peers_new(const rank *r) {
    peers *p = calloc(1, sizeof *p);
    job *j = &p->j;
    job_init(j, r);
    p->s = r->arg % 32;
    j->progress = r->arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    j->wire = r->arg & HALF ? HPC_F16 : HPC_F32;
    for (int from = 0; from < r->size; from++)
        for (int to = 0; to < r->size; to++) p->sends[from * r->size + to] = hears(r, to, from);
    for (int k = 0; k < j->n_keys; k++) p->wires[k] = j->wire;
    if (r->arg & FACTORS) {
        j->keys[0].count = (uint64_t)(16 * COLUMNS);
        j->keys[0].unit = j->keys[0].count;
        hpc_codec_config_init(&p->factors);
        p->factors.rows = 16, p->factors.columns = COLUMNS, p->factors.pairs = PAIRS;
        p->factors.unit = j->keys[0].count;
        p->codecs[0] = &p->factors;
        p->wires[0] = HPC_FACTORS;
    }
    for (int from = 0; from < r->size; from++)
        for (int i = 0; i < r->size; i++)
            p->parents[from * r->size + (from + i) % r->size] = (from + (i > 0 ? (i - 1) / 2 : 0)) % r->size;
    hpc_peer_to_peer all;
    hpc_peer_to_peer_init(&all);
    all.keys = j->keys, all.n_keys = j->n_keys, all.workers = j->workers, all.n_workers = j->n_workers;
    for (int who = 0; who < r->size; who++) p->hosts[who] = who / 2;
    if (r->arg & RELAY)
        all.parents = p->parents;
    else if (r->arg & HOSTS)
        all.hosts = p->hosts;
    else
        all.sends = p->sends;
    all.cores = 2, all.chunk = 2048, all.sum = 1;
    all.depth = r->arg & SHALLOW ? 1 : p->s + 2;
    all.wires = p->wires, all.n_wires = j->n_keys;
    CHECK_OK(hpc_plan_peer_to_peer(&all, &p->plan));
    CHECK_OK(hpc_plan_check(p->plan, r->size));
    j->plan = p->plan;
    return p;
}

static int create(const rank *r, const peers *p, int consistency, int staleness, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = consistency, c.staleness = staleness, c.progress = p->j.progress, c.check_finite = 1;
    c.eager = p->j.eager, c.shared_params = p->j.shared_params, c.split = p->j.split;
    if (r->arg & FACTORS) c.codecs = p->codecs;
    return job_create_with(r, &p->j, &c, -1, e);
}

static hpc_exchange *peers_open(const rank *r, const peers *p) {
    hpc_exchange *e = NULL;
    CHECK_OK(create(r, p, p->s > 0 ? HPC_SSP : HPC_BSP, p->s, &e));
    return e;
}

static void end(hpc_exchange *e, peers *p) {
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    hpc_plan_free(p->plan);
    free(p);
}

static void delay(uint64_t *random) {
    if (ranks_random(random) % 4) return;
    struct timespec t = {0, (long)(ranks_random(random) % 3000) * 1000};
    nanosleep(&t, NULL);
}

/* ---- updates ---- */

static float element(int worker, int step, int key, uint64_t i) {
    return (float)(worker + 1 + step % 3 + key + (int)(i % 5));
}

/* Pairs of a step: at most PAIRS, none in some steps. */
static int pairs_of(int worker, int step) {
    return (worker + step) % (PAIRS + 1);
}

static float u_of(int worker, int step, int pair, uint64_t row) {
    return (float)((int)(row + (uint64_t)(worker + step)) % 3 + pair - 1);
}

static float v_of(int worker, int step, int pair, uint64_t column) {
    return (float)((int)(column + (uint64_t)(2 * worker + step)) % 4 - pair);
}

static double update(const rank *r, int worker, int step, int key, uint64_t i) {
    if (key > 0 || !(r->arg & FACTORS)) return element(worker, step, key, i);
    double sum = 0;
    for (int k = 0; k < pairs_of(worker, step); k++)
        sum += (double)u_of(worker, step, k, i / COLUMNS) * (double)v_of(worker, step, k, i % COLUMNS);
    return sum;
}

static uint64_t start_factors(const rank *r, hpc_exchange *e, int step) {
    hpc_factors f;
    uint64_t ticket;
    CHECK_OK(hpc_exchange_factors(e, 0, -1, &f));
    CHECK(f.rows == 16 && f.columns == COLUMNS && f.pairs == PAIRS);
    *f.count = pairs_of(r->rank, step);
    for (int k = 0; k < *f.count; k++) {
        for (uint64_t i = 0; i < f.rows; i++) f.u[(uint64_t)k * f.rows + i] = u_of(r->rank, step, k, i);
        for (uint64_t i = 0; i < f.columns; i++) f.v[(uint64_t)k * f.columns + i] = v_of(r->rank, step, k, i);
    }
    CHECK_OK(hpc_exchange_start(e, 0, BOTH, NULL, -1, &ticket));
    return ticket;
}

static uint64_t start(const rank *r, const peers *p, hpc_exchange *e, int key, int step) {
    uint64_t ticket;
    if (key == 0 && r->arg & FACTORS) return start_factors(r, e, step);
    float *values = malloc(p->j.keys[key].count * sizeof *values);
    for (uint64_t i = 0; i < p->j.keys[key].count; i++) values[i] = element(r->rank, step, key, i);
    CHECK_OK(hpc_exchange_start(e, key, BOTH, values, -1, &ticket));
    free(values);
    return ticket;
}

static void train(rank *r, const peers *p, hpc_exchange *e, int from, int to) {
    uint64_t random = 5 * (uint64_t)r->rank + r->mode->seed, tickets[JOB_KEYS];
    for (int step = from; step < to; step++) {
        delay(&random);
        for (int key = 0; key < p->j.n_keys; key++) tickets[key] = start(r, p, e, key, step);
        for (int key = p->j.n_keys; key-- > 0;) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    }
}

/* Trains one key alone. */
static void train_key(rank *r, const peers *p, hpc_exchange *e, int key, int from, int to) {
    for (int step = from; step < to; step++) CHECK_OK(hpc_exchange_wait(e, key, start(r, p, e, key, step), -1));
}

/* The parameters of a rank when it has so many steps of each rank that sends to it. */
static void check_after(const rank *r, const peers *p, hpc_exchange *e, const int *steps) {
    for (int key = 0; key < p->j.n_keys; key++)
        for (uint64_t i = 0; i < p->j.keys[key].count; i++) {
            double sum = 0;
            for (int who = 0; who < r->size; who++)
                for (int step = 0; step < steps[who] && hears(r, r->rank, who); step++)
                    sum += update(r, who, step, key, i);
            CHECK(hpc_exchange_params(e, key)[i] == (float)(job_initial(&p->j, key, i) - 0.5 * sum));
        }
}

static void check_equal(const rank *r, const peers *p, hpc_exchange *e, int steps) {
    int all[RANKS_MAX];
    for (int who = 0; who < r->size; who++) all[who] = steps;
    check_after(r, p, e, all);
}

/* ---- what comes out ---- */

/* Under BSP each step has the updates of that step of all that send to a rank, and no others. */
static void whole(rank *r) {
    peers *p = peers_new(r);
    hpc_exchange *e = peers_open(r, p);
    const int steps = ranks_rounds(8);
    for (int step = 0; step < steps; step++) {
        train(r, p, e, step, step + 1);
        check_equal(r, p, e, step + 1);
    }
    end(e, p);
}

/* A rank's own number of steps: so few more than another's that no push waits for its slot. */
static int steps_of(const peers *p, int who, int steps) {
    return steps + who % (p->s < 2 ? p->s + 1 : 3);
}

/* After a settle, where all have made as many steps, after a publish and after a close nothing is missing. */
static void totals(rank *r) {
    peers *p = peers_new(r);
    hpc_exchange *e = peers_open(r, p);
    const int steps = ranks_rounds(7);
    int done[RANKS_MAX];
    train(r, p, e, 0, steps);
    CHECK_OK(hpc_exchange_settle(e, -1));
    check_equal(r, p, e, steps);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int round = 0; round < 2; round++) {
        const int own = steps_of(p, r->rank, steps), before = steps + round * own;
        for (int who = 0; who < r->size; who++) done[who] = steps + (round + 1) * steps_of(p, who, steps);
        train(r, p, e, before, before + own);
        rank_set(r, 32 * round + r->rank, 1);
        for (int who = 0; who < r->size; who++) progress_until(r, e, 32 * round + who, 1);
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_OK(hpc_exchange_publish(e, -1));
        check_after(r, p, e, done);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    const int own = steps_of(p, r->rank, steps);
    train(r, p, e, steps + 2 * own, steps + 3 * own);
    for (int who = 0; who < r->size; who++) done[who] = steps + 3 * steps_of(p, who, steps);
    CHECK_OK(hpc_exchange_close(e, -1));
    check_after(r, p, e, done);
    end(e, p);
}

/* ---- ranks that stand, close and die ---- */

/* Rank 1 makes its first push and then stands still, so that it does not pass those of rank 0 on. Ranks 3 and 4, which
 * get them by way of it, name it. A wait may be too short to hear from others. */
static void stands_on_the_way(rank *r, int settles) {
    const int still = 1;
    peers *p = peers_new(r);
    hpc_exchange *e = peers_open(r, p);
    uint64_t ticket = start(r, p, e, 0, 0);
    if (r->rank == still) {
        atomic_fetch_add(&r->board[1], 1);
        rank_await(r, 0, (uint64_t)r->size - 1); /* makes no progress */
    } else {
        for (int step = 1; step <= p->s && !settles; step++) {
            CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
            ticket = start(r, p, e, 0, step);
        }
        atomic_fetch_add(&r->board[1], 1);
        progress_until(r, e, 1, (uint64_t)r->size);
        for (int tries = r->rank < 3 ? 0 : 40, named = 0; tries > 0 && !named; tries--) {
            const int status = settles ? hpc_exchange_settle(e, 0.1) : hpc_exchange_wait(e, 0, ticket, 0.1);
            CHECK_EQ(status, HPC_ERR_TIMEOUT);
            for (int i = 0; i < hpc_last_error()->n_culprits; i++) named |= hpc_last_error()->culprits[i].rank == still;
            CHECK(named || tries > 1);
        }
        atomic_fetch_add(&r->board[0], 1);
        progress_until(r, e, 0, (uint64_t)r->size - 1);
    }
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    if (r->rank == still && !settles) train_key(r, p, e, 0, 1, p->s + 1);
    CHECK_OK(hpc_exchange_close(e, -1));
    end(e, p);
}

static void waits_behind(rank *r) {
    stands_on_the_way(r, 0);
}

static void settles_behind(rank *r) {
    stands_on_the_way(r, 1);
}

/* ---- what is refused ---- */

static void refused(rank *r) {
    peers *p = peers_new(r);
    hpc_exchange *e = NULL;
    CHECK_STATUS(create(r, p, HPC_SSP, 31, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("staleness is 31; 0 to 30 are possible among peers");
    CHECK_STATUS(create(r, p, HPC_SSP, 3, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 3; SSP(3) among peers needs 5 or more");
    p->j.shared_params = 1;
    CHECK_STATUS(create(r, p, HPC_ASYNC, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("shared_params needs BSP: under ASYNC each worker has parameters of its own step");
    CHECK_STATUS(create(r, p, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("shared_params needs servers: each peer has parameters of its own");
    p->j.shared_params = 0, p->j.eager = 1;
    CHECK_STATUS(create(r, p, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("eager needs servers: a peer may push for the next step");
    p->j.eager = 0, p->j.rule = "average";
    CHECK_STATUS(create(r, p, HPC_SSP, 1, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule average, which needs the updates of all workers at once");
    hpc_plan_free(p->plan);
    free(p);
}

/* With two slots ASYNC would be BSP. */
static void refused_without_slots(rank *r) {
    peers *p = peers_new(r);
    hpc_exchange *e = NULL;
    CHECK_STATUS(create(r, p, HPC_ASYNC, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 2; ASYNC among peers needs 3 or more");
    hpc_plan_free(p->plan);
    free(p);
}

/* Plans that no planner makes. */
static void ways_refused(rank *r) {
    peers *p = peers_new(r);
    hpc_exchange *e = NULL;
    hpc_row *rows = (hpc_row *)(uintptr_t)p->plan->rows;
    const int core = rows[1].core;
    rows[1].core = 1 - core;
    CHECK_STATUS(create(r, p, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("of the same elements have cores");
    rows[1].core = core;
    rows[1].in = (hpc_edge *)memcpy(malloc((size_t)rows[1].n_in * sizeof(hpc_edge)), rows[1].in,
                                    (size_t)rows[1].n_in * sizeof(hpc_edge));
    ((hpc_edge *)(uintptr_t)rows[1].in)[4].row = -2 - 3; /* of rank 4 by way of rank 3, which gets it from rank 1 */
    ((hpc_edge *)(uintptr_t)rows[3].in)[4].row = -2 - 1;
    CHECK_STATUS(create(r, p, HPC_BSP, 0, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("takes pushes of rank 4 by way of rank");
    free((void *)(uintptr_t)rows[1].in);
    hpc_plan_free(p->plan);
    free(p);
}

static void factors_refused(rank *r) {
    peers *p = peers_new(r);
    hpc_exchange *e = peers_open(r, p);
    hpc_factors f;
    uint64_t ticket;
    float u[16] = {0}, v[COLUMNS] = {0};
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
    CHECK(hpc_exchange_params(e, 0)[at] == job_initial(&p->j, 0, at) - 2 * (float)r->size);
    end(e, p);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "whole_threads", .size = 3, .run = whole, .arg = THREADS | HALF},
        {.name = "whole_shallow", .size = 3, .run = whole, .arg = SHALLOW, .sleepy = true},
        {.name = "whole_factors", .size = 4, .run = whole, .arg = FACTORS},
        {.name = "whole_factors_partial", .size = 5, .run = whole, .arg = FACTORS | PARTIAL | THREADS},
        {.name = "whole_alone", .size = 1, .run = whole, .arg = FACTORS},
        {.name = "whole_relay_hosts", .size = 6, .run = whole, .arg = FACTORS | RELAY, .per_host = 2},
        {.name = "whole_hosts", .size = 5, .run = whole, .arg = FACTORS | HOSTS, .per_host = 2},
        {.name = "whole_hosts_shallow", .size = 6, .run = whole, .arg = HOSTS | SHALLOW | THREADS},
        {.name = "totals_relay", .size = 5, .run = totals, .arg = FACTORS | RELAY | 2},
        {.name = "totals_factors", .size = 4, .run = totals, .arg = FACTORS | THREADS | 3},
        {.name = "totals_partial", .size = 5, .run = totals, .arg = PARTIAL | FACTORS | 2},
        {.name = "totals_most_stale", .size = 3, .run = totals, .arg = 30},
        {.name = "stands_on_the_way", .size = 5, .run = waits_behind, .arg = RELAY, .where = RANKS_TCP},
        {.name = "settles_behind", .size = 5, .run = settles_behind, .arg = RELAY | 1, .where = RANKS_SHM},
        {.name = "refused", .size = 3, .run = refused, .arg = 1},
        {.name = "ways_refused", .size = 5, .run = ways_refused, .arg = RELAY},
        {.name = "refused_without_slots", .size = 3, .run = refused_without_slots, .arg = 0},
        {.name = "factors_refused", .size = 3, .run = factors_refused, .arg = FACTORS},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
