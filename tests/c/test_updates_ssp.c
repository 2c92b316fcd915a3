/* SSP(s) where receivers apply the rule. All numbers are whole, so that a sum has the same bits in every order. */
#define _GNU_SOURCE
#include <time.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* Parts of a case's arg: s and flags. */
enum {
    THREADS = 32,
    KEEPS = 64,
    HALF_IN = 128,
    HALF_OUT = 256,
    SERVERS = 512,
    FEW = 1024,
    MOMENTUM = 2048,
    DEEP = 4096,
    CHAIN = 8192,
    TREE = 16384,
    AROUND = 32768, /* a chain the other way around: the last worker first */
    HOSTS = 65536,  /* of two ranks each, whose updates are folded first */
    RACKS = 131072  /* of two hosts each */
};

static int most_behind(const rank *r) {
    return r->arg % 32;
}

static void plant(hpc_hub *hub, const job *j, const rank *r, int *parents) {
    if (!(r->arg & (CHAIN | TREE | AROUND))) return;
    job_trees(j, r->arg & TREE ? 2 : 1, parents);
    for (int i = 0, n = j->n_workers; i < hub->n_servers * n && r->arg & AROUND; i++) /* the servers are workers */
        parents[i] = i % n == i / n || i % n == (i / n + n - 1) % n ? -1 : (i % n + 1) % n;
    hub->parents = parents, hub->n_parents = hub->n_servers * hub->n_workers;
}

/* The plan of some of the keys. Ranks of a host have rows of their own that apply. */
static hpc_plan *planned(const job *j, const rank *r, int n_keys, int cores, uint64_t chunk, int depth) {
    hpc_plan *plan = NULL;
    int parents[RANKS_MAX * RANKS_MAX], groups[2 * RANKS_MAX];
    static const int first_leads[RANKS_MAX] = {1, 0, 1, 0, 1, 0};
    if (r->arg & HOSTS) {
        hpc_hosts hosts;
        hpc_hosts_init(&hosts);
        for (int who = 0; who < r->size; who++) groups[who] = who / 2, groups[r->size + who] = who / 4;
        hosts.keys = j->keys, hosts.n_keys = n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
        hosts.groups = groups, hosts.n_levels = r->arg & RACKS ? 2 : 1, hosts.cores = cores, hosts.chunk = chunk;
        hosts.sum = 1, hosts.wire = j->wire, hosts.codec_out = j->codec_out, hosts.depth = depth;
        if (r->arg & FEW) hosts.leads = first_leads;
        hosts.apart = 1, hosts.apply_at = HPC_AT_RECEIVERS;
        CHECK_OK(hpc_plan_hosts(&hosts, &plan));
        return plan;
    }
    hpc_hub hub;
    hpc_hub_init(&hub);
    hub.keys = j->keys, hub.n_keys = n_keys, hub.workers = j->workers, hub.n_workers = j->n_workers;
    hub.servers = j->servers, hub.n_servers = j->n_servers, hub.cores = cores, hub.chunk = chunk, hub.sum = 1;
    hub.wire = j->wire, hub.codec_out = j->codec_out, hub.depth = depth;
    hub.apply_at = r->arg & KEEPS ? HPC_AT_BOTH : HPC_AT_RECEIVERS;
    plant(&hub, j, r, parents);
    CHECK_OK(hpc_plan_hub(&hub, &plan));
    return plan;
}

/* SERVERS: the last rank only serves. FEW: the first rank, or the first one of each host, alone serves, and works too.
 */
static hpc_plan *receiving(job *j, const rank *r) {
    job_init(j, r);
    j->rule = r->arg & MOMENTUM ? "momentum" : "sgd", j->args[3] = 0.5;
    j->progress = r->arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (r->arg & HALF_IN) j->wire = HPC_F16;
    if (r->arg & HALF_OUT) j->codec_out = HPC_F16;
    if (r->arg & SERVERS) j->n_workers--, j->servers[0] = r->size - 1, j->n_servers = 1;
    if (r->arg & FEW) j->n_servers = 1;
    hpc_plan *plan = planned(j, r, j->n_keys, 2, 2048, most_behind(r) + 2 + (r->arg & DEEP ? 1 : 0));
    CHECK_OK(hpc_plan_check(plan, r->size));
    j->plan = plan;
    return plan;
}

static int create(const rank *r, const job *j, int staleness, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = HPC_SSP, c.staleness = staleness, c.progress = j->progress, c.eager = j->eager, c.split = j->split;
    return job_create_with(r, j, &c, -1, e);
}

static hpc_exchange *open_all(const rank *r, const job *j) {
    hpc_exchange *e = NULL;
    CHECK_OK(create(r, j, most_behind(r), &e));
    return e;
}

static void end(hpc_exchange *e, hpc_plan *plan) {
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

static void meet(rank *r, hpc_exchange *e, int word) {
    rank_set(r, word + r->rank, 1);
    for (int who = 0; who < r->size; who++) progress_until(r, e, word + who, 1);
}

static void delay(uint64_t *random) {
    if (ranks_random(random) % 4) return;
    struct timespec t = {0, (long)(ranks_random(random) % 3000) * 1000};
    nanosleep(&t, NULL);
}

/* ---- what comes out ---- */

static float element(int worker, int step, uint64_t i) {
    return (float)(worker + 1 + step % 3 + (int)(i % 5));
}

static void fill(const job *j, int worker, int step, int key, float *to) {
    for (uint64_t i = 0; i < j->keys[key].count; i++) to[i] = element(worker, step, i);
}

static uint64_t start(const rank *r, const job *j, hpc_exchange *e, int key, int step) {
    uint64_t ticket;
    float *values = malloc(j->keys[key].count * sizeof *values);
    fill(j, r->rank, step, key, values);
    CHECK_OK(hpc_exchange_start(e, key, BOTH, values, -1, &ticket));
    free(values);
    return ticket;
}

static void train(rank *r, const job *j, hpc_exchange *e, int from, int to) {
    uint64_t random = 5 * (uint64_t)r->rank + r->mode->seed, tickets[JOB_KEYS];
    for (int step = from; step < to; step++) {
        delay(&random);
        for (int key = 0; key < j->n_keys; key++) tickets[key] = start(r, j, e, key, step);
        for (int key = j->n_keys; key-- > 0;) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    }
}

/* A rank's own number of steps: not all are equal, and none is more than s ahead for ever. Those of a host are equal.
 */
static int steps_of(const rank *r, int who, int steps) {
    const int sender = r->arg & RACKS ? who / 4 : r->arg & HOSTS ? who / 2 : who;
    return steps + sender % (most_behind(r) + 1);
}

static float expected(const rank *r, const job *j, int key, uint64_t i, int rounds, int steps) {
    double sum = 0;
    for (int who = 0; who < j->n_workers; who++)
        for (int step = 0; step < rounds * steps_of(r, j->workers[who], steps); step++)
            sum += element(j->workers[who], step, i);
    return (float)(job_initial(j, key, i) - 0.5 * sum);
}

static void check_all(const rank *r, const job *j, hpc_exchange *e, int rounds, int steps) {
    for (int key = 0; key < j->n_keys && job_works(j, r->rank) && !(r->arg & HALF_OUT); key++) {
        const float *params = hpc_exchange_params(e, key);
        for (uint64_t i = 0; i < j->keys[key].count; i++) CHECK(params[i] == expected(r, j, key, i, rounds, steps));
    }
    for (int i = 0; i < j->plan->n_rows; i++) {
        const hpc_row *row = &j->plan->rows[i];
        if (row->owner != r->rank || row->action != HPC_APPLY) continue;
        float *params = calloc(row->count, sizeof *params);
        CHECK_OK(hpc_exchange_get_row(e, i, NULL, params, NULL));
        for (uint64_t k = 0; k < row->count; k++)
            CHECK(params[k] == expected(r, j, row->key, row->offset + k, rounds, steps));
        free(params);
    }
}

/* After a publish everything is in all parameters, and all go on from one clock; and so it is after a close. */
static void totals(rank *r) {
    job j;
    const int steps = ranks_rounds(9);
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    const int own = job_works(&j, r->rank) ? steps_of(r, r->rank, steps) : 0;
    for (int round = 0; round < 2; round++) {
        train(r, &j, e, round * own, (round + 1) * own);
        meet(r, e, 32 * round);
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_OK(hpc_exchange_publish(e, -1));
        check_all(r, &j, e, round + 1, steps);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    train(r, &j, e, 2 * own, 3 * own);
    CHECK_OK(hpc_exchange_close(e, -1));
    for (int key = 0; key < j.n_keys && own > 0 && !(r->arg & HALF_OUT); key++)
        for (uint64_t i = 0; i < j.keys[key].count; i++)
            CHECK(hpc_exchange_params(e, key)[i] == expected(r, &j, key, i, 3, steps));
    end(e, plan);
}

static uint64_t hash(const float *at, uint64_t n) {
    uint64_t found = 1469598103934665603u;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &at[i], sizeof bits);
        found = (found ^ bits) * 1099511628211u;
    }
    return found | 1;
}

/* ---- close ---- */

/* When all have made as many steps, settle brings all of them to all. */
static void settled(rank *r) {
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    const int steps = 4;
    for (int round = 0; round < 3; round++) {
        train(r, &j, e, round * steps, (round + 1) * steps);
        CHECK_OK(hpc_exchange_settle(e, -1));
        for (int key = 0; key < j.n_keys; key++)
            for (uint64_t i = 0; i < j.keys[key].count; i++) {
                double sum = 0;
                for (int who = 0; who < r->size; who++)
                    for (int step = 0; step < (round + 1) * steps; step++) sum += element(who, step, i);
                CHECK(hpc_exchange_params(e, key)[i] == (float)(job_initial(&j, key, i) - 0.5 * sum));
            }
    }
    end(e, plan);
}

/* A worker that has closed stands still. The others go on until its slots are full; then the server waits for it alone.
 */
static void closes_and_stands(rank *r) {
    enum { STILL = 1, STEPS = 20 };
    const int s = most_behind(r), others = r->size - 1;
    job j;
    uint64_t ticket;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    train(r, &j, e, 0, 2);
    if (r->rank == STILL) {
        CHECK_STATUS(hpc_exchange_close(e, 0.05), HPC_ERR_TIMEOUT);
        CHECK(!ranks_error_waits_for(STILL));
        rank_set(r, 0, 1);
        rank_await(r, 1, (uint64_t)others); /* applies nothing meanwhile */
    } else {
        int step = 2, status = HPC_OK;
        progress_until(r, e, 0, 1);
        for (; status == HPC_OK && step < STEPS; step++) {
            ticket = start(r, &j, e, 0, step);
            status = hpc_exchange_wait(e, 0, ticket, 0.3);
        }
        CHECK_STATUS(status, HPC_ERR_TIMEOUT);
        const double limit = ranks_now() + ranks_patience(10);
        while (r->rank == 0 && strstr(hpc_last_error()->message, "nothing came from rank 1 in") == NULL) {
            CHECK(ranks_now() < limit); /* the others may be on their way here */
            CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, 0.05), HPC_ERR_TIMEOUT);
        }
        CHECK(step > 2 + s && step <= 2 + 2 * s + 4); /* so many slots, and s steps ahead of them */
        atomic_fetch_add(&r->board[1], 1);
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        for (; step < STEPS; step++) CHECK_OK(hpc_exchange_wait(e, 0, start(r, &j, e, 0, step), -1));
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    for (uint64_t i = 0; i < j.keys[0].count; i++) {
        double sum = 0;
        for (int who = 0; who < r->size; who++)
            for (int step = 0; step < (who == STILL ? 2 : STEPS); step++) sum += element(who, step, i);
        CHECK(hpc_exchange_params(e, 0)[i] == (float)(job_initial(&j, 0, i) - 0.5 * sum));
    }
    end(e, plan);
}

/* A worker that is too far behind is waited for by name, and nobody else is, where its pushes can be seen. */
static void names_slowest(rank *r) {
    enum { SLOW = 1 };
    const int s = most_behind(r), others = r->size - 1;
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    train(r, &j, e, 0, 2);
    if (r->rank == SLOW) {
        progress_until(r, e, 1, (uint64_t)others);
        train(r, &j, e, 2, 3 + s);
    } else {
        uint64_t tickets[JOB_KEYS];
        train(r, &j, e, 2, 2 + s);
        for (int key = 0; key < j.n_keys; key++) tickets[key] = start(r, &j, e, key, 2 + s);
        atomic_fetch_add(&r->board[0], 1);
        progress_until(r, e, 0, (uint64_t)others); /* all others have pushed as often */
        CHECK_STATUS(hpc_exchange_wait(e, 0, tickets[0], 0.1), HPC_ERR_TIMEOUT);
        if (strcmp(r->mode->transports, "shm") == 0) {
            CHECK_EQ(hpc_last_error()->n_waiting, 1);
            CHECK(ranks_error_waits_for(SLOW));
        }
        atomic_fetch_add(&r->board[1], 1);
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    }
    end(e, plan);
}

/* ---- rates ---- */

/* Rates that change with each step, without a wait: all workers have the same bits. */
static void many_rates(rank *r) {
    enum { BITS = 64 };
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    double args[HPC_RULE_ARGS];
    memcpy(args, j.args, sizeof args);
    const int steps = ranks_rounds(20) + r->rank % 2;
    for (int step = 0; step < steps; step++) {
        args[1] = step % 2 ? 0.25 : 0.5;
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_set_args(e, key, args));
        train(r, &j, e, step, step + 1);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    for (int key = 0; key < j.n_keys; key++) {
        uint64_t bits = hash(hpc_exchange_params(e, key), j.keys[key].count);
        rank_set(r, BITS + RANKS_MAX * key + r->rank, bits);
        for (int who = 0; who < r->size; who++) CHECK_EQ(rank_await(r, BITS + RANKS_MAX * key + who, 1), bits);
    }
    end(e, plan);
}

/* ---- the rest ---- */

/* Ranks of a host that have not pushed equally often are told so in a publish, all of them. */
static void uneven(rank *r) {
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    train(r, &j, e, 0, r->rank == 1 ? 3 : 2);
    meet(r, e, 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_STATUS(hpc_exchange_publish(e, -1), HPC_ERR_INVALID);
    CHECK_MESSAGE("rank 0 has pushed key k0 2 times and rank 1 3 times: ranks of a host push equally often");
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

static void refused(rank *r) {
    job j;
    hpc_exchange *e = NULL;
    hpc_plan *plan = receiving(&j, r);
    CHECK_STATUS(create(r, &j, 31, &e), HPC_ERR_INVALID);
    CHECK_MESSAGE("staleness is 31; 0 to 30 are possible where receivers apply the rule");
    CHECK_STATUS(create(r, &j, 3, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("the plan has depth 4; SSP(3) where receivers apply the rule needs 5 or more");
    j.eager = 1;
    CHECK_STATUS(create(r, &j, 2, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("eager needs BSP");
    j.eager = 0, j.rule = "average";
    CHECK_STATUS(create(r, &j, 2, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule average, which needs the updates of all workers at once");
    hpc_plan_free(plan);
    int groups[RANKS_MAX];
    hpc_hosts hosts;
    hpc_hosts_init(&hosts);
    job_init(&j, r);
    for (int who = 0; who < r->size; who++) groups[who] = who / 2;
    hosts.keys = j.keys, hosts.n_keys = j.n_keys, hosts.workers = j.workers, hosts.n_workers = j.n_workers;
    hosts.groups = groups, hosts.n_levels = 1, hosts.chunk = 2048, hosts.depth = 4, hosts.apply_at = HPC_AT_RECEIVERS;
    CHECK_OK(hpc_plan_hosts(&hosts, &plan));
    j.plan = plan;
    CHECK_STATUS(create(r, &j, 2, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("SSP where receivers apply needs a plan of parameter servers or of hosts");
    CHECK_MESSAGE("(hpc_hosts: with apart)");
    hpc_plan_free(plan);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "totals_half", .size = 3, .run = totals, .arg = HALF_IN | DEEP | 2, .sleepy = true},
        {.name = "totals_rounded", .size = 3, .run = totals, .arg = HALF_OUT | THREADS | 1},
        {.name = "totals_master", .size = 4, .run = totals, .arg = SERVERS | KEEPS | THREADS | 1},
        {.name = "settled_alone", .size = 1, .run = settled, .arg = FEW | 2}, /* of one stage: server_ssp.c */
        {.name = "totals_most_stale", .size = 3, .run = totals, .arg = FEW | 30},
        {.name = "closes_and_stands", .size = 4, .run = closes_and_stands, .arg = FEW | 2, .where = RANKS_UNSEEDED},
        {.name = "names_slowest", .size = 4, .run = names_slowest, .arg = 2, .where = RANKS_UNSEEDED},
        {.name = "hosts_names_slowest", .size = 4, .run = names_slowest, .arg = HOSTS | 2, .where = RANKS_UNSEEDED},
        {.name = "many_rates", .size = 3, .run = many_rates, .arg = MOMENTUM | THREADS | 2},
        {.name = "chain_keeps", .size = 4, .run = totals, .arg = CHAIN | KEEPS | SERVERS | HALF_OUT | 1},
        {.name = "tree", .size = 5, .run = totals, .arg = TREE | HALF_IN | 3},
        {.name = "chain_stands", .size = 3, .run = closes_and_stands, .arg = AROUND | FEW | 2, .where = RANKS_UNSEEDED},
        {.name = "hosts", .size = 4, .run = totals, .arg = HOSTS | 2},
        {.name = "hosts_threads", .size = 6, .run = totals, .arg = HOSTS | THREADS | 3},
        {.name = "hosts_of_one", .size = 5, .run = totals, .arg = HOSTS | HALF_IN | THREADS | 1},
        {.name = "hosts_settled", .size = 4, .run = settled, .arg = HOSTS | THREADS | 2},
        {.name = "hosts_most_stale", .size = 4, .run = totals, .arg = HOSTS | 30},
        {.name = "hosts_alone", .size = 2, .run = totals, .arg = HOSTS | 2},
        {.name = "racks", .size = 6, .run = totals, .arg = HOSTS | RACKS | 2},
        {.name = "hosts_uneven", .size = 4, .run = uneven, .arg = HOSTS | 2, .apart = true},
        {.name = "refused", .size = 4, .run = refused, .arg = 2},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
