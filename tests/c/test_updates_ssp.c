/* SSP(s) where receivers apply the rule. All numbers are whole, so that a sum has the same bits in every order. */
#define _GNU_SOURCE
#include <sched.h>
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

/* ---- the bound ---- */

/* The version of the parameters that a wait has brought: the clock less what the last step was behind. */
static uint64_t version_of(hpc_exchange *e, uint64_t clock, uint64_t *counts) {
    uint64_t now[16] = {0}, behind = 16;
    const int most = hpc_exchange_get_staleness(e, now, 16);
    for (int d = 0; d <= most; d++) {
        if (now[d] == counts[d]) continue;
        CHECK_EQ(now[d], counts[d] + 1);
        CHECK_EQ(behind, 16);
        behind = (uint64_t)d;
        counts[d] = now[d];
    }
    CHECK(behind <= (uint64_t)most);
    return clock > behind ? clock - behind : 0;
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

/* Each worker counts its updates in elements of its own. No step begins without the updates that it must have, and with
 * none that has not been made; and all workers have the same bits for each version. None closes before all have made
 * their steps: a version may wait for a worker that has closed, and two versions of one row close at once then. */
static void bounded(rank *r) {
    enum { MADE = 32, BEGUN = 64, BITS = 128 };
    job j;
    const uint64_t s = (uint64_t)most_behind(r);
    const int steps = ranks_rounds(40);
    uint64_t random = 11 * (uint64_t)r->rank + r->mode->seed, counts[16] = {0};
    hpc_plan *plan = receiving(&j, r);
    hpc_plan *one = planned(&j, r, 1, 1, 1024, (int)s + 2); /* one core and one key: one version */
    j.plan = one, j.n_keys = 1, j.args[1] = 1;
    hpc_exchange *e = open_all(r, &j);
    const uint64_t count = j.keys[0].count, workers = (uint64_t)j.n_workers;
    float *own = calloc(count, sizeof *own);
    for (uint64_t i = (uint64_t)r->rank; i < count; i += workers) own[i] = 1;
    for (uint64_t step = 1; step <= (uint64_t)steps && job_works(&j, r->rank); step++) {
        uint64_t done[RANKS_MAX];
        delay(&random);
        rank_set(r, BEGUN + r->rank, step);
        CHECK_OK(hpc_exchange_push_pull(e, 0, own, -1));
        const float *params = hpc_exchange_params(e, 0);
        for (int who = 0; who < j.n_workers; who++) done[who] = rank_await(r, BEGUN + who, step > s ? step - s : 0);
        const uint64_t version = version_of(e, step, counts);
        CHECK(version + s >= step && version <= step + s + 1);
        for (uint64_t i = 0; i < count; i++) {
            const float seen = job_initial(&j, 0, i) - params[i];
            CHECK(seen >= (float)(step > s ? step - s : 0) && seen <= (float)done[i % workers]);
        }
        uint64_t bits = hash(params, count), before = 0;
        CHECK(version < RANKS_BOARD - BITS);
        if (!atomic_compare_exchange_strong(&r->board[BITS + version], &before, bits)) CHECK_EQ(before, bits);
    }
    meet(r, e, MADE);
    free(own);
    end(e, one);
    hpc_plan_free(plan);
}

/* With s = 0 it is BSP. */
static void nothing_stale(rank *r) {
    job j;
    reference ref;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 6; step++)
        for (int key = 0; key < j.n_keys; key++) {
            job_push_pull(r, &j, e, key, step);
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* A rank stands still s pushes ahead. The others go on until they are s steps ahead of it; one more step names it, and
 * nobody else. */
static void stands_still(rank *r) {
    const int still = r->size - 1, s = most_behind(r);
    job j;
    uint64_t ticket;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    if (r->rank == still) {
        train(r, &j, e, 0, s);
        rank_set(r, 1, 1);
        rank_await(r, 0, (uint64_t)still); /* makes no progress: what is sent here waits in rings and lanes */
        train(r, &j, e, s, 3 * s + 1);
    } else {
        progress_until(r, e, 1, 1);
        train(r, &j, e, 0, 2 * s);
        ticket = start(r, &j, e, 0, 2 * s);
        CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, 0.3), HPC_ERR_TIMEOUT);
        CHECK_EQ(hpc_last_error()->n_culprits, 1);
        CHECK_EQ(hpc_last_error()->culprits[0].rank, still);
        atomic_fetch_add(&r->board[0], 1);
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        for (int key = 1; key < j.n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, start(r, &j, e, key, 2 * s), -1));
        train(r, &j, e, 2 * s + 1, 3 * s + 1);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    for (int key = 0; key < j.n_keys; key++)
        for (uint64_t i = 0; i < j.keys[key].count; i++) {
            double sum = 0;
            for (int who = 0; who < r->size; who++)
                for (int step = 0; step < 3 * s + 1; step++) sum += element(who, step, i);
            CHECK(hpc_exchange_params(e, key)[i] == (float)(job_initial(&j, key, i) - 0.5 * sum));
        }
    end(e, plan);
}

/* ---- close ---- */

/* The last worker closes after one step, while another one waits for its second. The others go on by many steps, and
 * in the end it has them all. Rules with a state have the same bits at all workers. */
static void closes_early(rank *r) {
    enum { BITS = 64 };
    const int last = r->size - 1, steps = ranks_rounds(12) + 6;
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    if (r->rank == last) {
        train(r, &j, e, 0, 1);
        progress_until(r, e, 0, 1); /* another one waits */
    } else if (r->rank == 0) {
        train(r, &j, e, 0, most_behind(r) + 1);
        uint64_t ticket = start(r, &j, e, 2, most_behind(r) + 1);
        CHECK_STATUS(hpc_exchange_wait(e, 2, ticket, 0.02), HPC_ERR_TIMEOUT);
        rank_set(r, 0, 1);
        CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
        for (int key = 0; key < 2; key++)
            CHECK_OK(hpc_exchange_wait(e, key, start(r, &j, e, key, most_behind(r) + 1), -1));
        train(r, &j, e, most_behind(r) + 2, steps);
    } else {
        train(r, &j, e, 0, steps + r->rank);
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    for (int key = 0; key < j.n_keys; key++) {
        const float *params = hpc_exchange_params(e, key);
        rank_set(r, BITS + RANKS_MAX * key + r->rank, hash(params, j.keys[key].count));
        for (int who = 0; who < r->size; who++)
            CHECK_EQ(rank_await(r, BITS + RANKS_MAX * key + who, 1), hash(params, j.keys[key].count));
        for (uint64_t i = 0; i < j.keys[key].count && !(r->arg & MOMENTUM); i++) {
            double sum = element(last, 0, i);
            for (int who = 0; who < last; who++)
                for (int step = 0; step < (who == 0 ? steps : steps + who); step++) sum += element(who, step, i);
            CHECK(params[i] == (float)(job_initial(&j, key, i) - 0.5 * sum));
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

/* ---- rates ---- */

/* A step's rate is that of the version with its number, which has all updates of it where all make equal steps and wait
 * for them. */
static void rates(rank *r) {
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    double args[HPC_RULE_ARGS] = {0}, moved[5] = {0};
    memcpy(args, j.args, sizeof args);
    for (int step = 0; step < 12; step++) {
        args[1] = step % 3 == 0 ? 0.5 : step % 3 == 1 ? 0.25 : 1;
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_set_args(e, key, args));
        train(r, &j, e, step, step + 1);
        CHECK_OK(hpc_exchange_settle(e, -1));
        for (uint64_t i = 0; i < 5; i++)
            for (int who = 0; who < j.n_workers; who++) moved[i] += args[1] * (double)element(who, step, i);
        for (int key = 0; key < j.n_keys; key++)
            for (uint64_t i = 0; i < j.keys[key].count; i++)
                CHECK(hpc_exchange_params(e, key)[i] == (float)(job_initial(&j, key, i) - moved[i % 5]));
    }
    end(e, plan);
}

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

static void rates_differ(rank *r) {
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    double args[HPC_RULE_ARGS] = {0, r->rank == 1 ? 7 : 3};
    float *one = calloc(j.keys[0].count, sizeof *one);
    CHECK_OK(hpc_exchange_set_args(e, 0, args));
    int status = hpc_exchange_push_pull(e, 0, one, -1);
    for (int step = 0; step < 1000 && status == HPC_OK; step++) status = hpc_exchange_push_pull(e, 0, one, -1);
    CHECK(status == HPC_ERR_CONFIG || status == HPC_ERR_PEER);
    if (status == HPC_ERR_CONFIG)
        CHECK_MESSAGE(
            "lr is 7 on rank 1 and 3 on rank 0, for push 1 of key k0 by rule sgd: give the same lr on every rank");
    free(one);
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

/* ---- the rest ---- */

/* Rows that are set have what was set after the publish, and not updates that were open before. */
static void restored(rank *r) {
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    train(r, &j, e, 0, steps_of(r, r->rank, 2));
    meet(r, e, 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->owner != r->rank || row->action != HPC_APPLY) continue;
        float *values = malloc(row->count * sizeof *values);
        for (uint64_t k = 0; k < row->count; k++) values[k] = (float)((row->offset + k) % 61);
        CHECK_OK(hpc_exchange_set_row(e, i, 2, values, NULL));
        free(values);
    }
    CHECK_OK(hpc_exchange_publish(e, -1));
    for (int key = 0; key < j.n_keys; key++)
        for (uint64_t k = 0; k < j.keys[key].count; k++) CHECK(hpc_exchange_params(e, key)[k] == (float)(k % 61));
    CHECK_OK(hpc_barrier(r->context, -1));
    train(r, &j, e, 0, 3);
    CHECK_OK(hpc_exchange_settle(e, -1));
    for (int key = 0; key < j.n_keys; key++)
        for (uint64_t i = 0; i < j.keys[key].count; i++) {
            double sum = 0;
            for (int who = 0; who < r->size; who++)
                for (int step = 0; step < 3; step++) sum += element(who, step, i);
            CHECK(hpc_exchange_params(e, key)[i] == (float)((double)(i % 61) - 0.5 * sum));
        }
    end(e, plan);
}

static void dies(rank *r) {
    const int victim = r->size - 1;
    job j;
    hpc_plan *plan = receiving(&j, r);
    hpc_exchange *e = open_all(r, &j);
    float *one = calloc(j.keys[2].count, sizeof *one);
    CHECK_OK(hpc_exchange_push_pull(e, 2, one, -1));
    meet(r, e, 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    rank_meet(r); /* nobody is in that barrier any more */
    if (r->rank == victim) {
        free(one);
        rank_die(r);
        hpc_exchange_free(e);
        hpc_plan_free(plan);
        return;
    }
    int status = HPC_OK;
    double begin = ranks_now();
    while (status == HPC_OK && ranks_now() < begin + 10) status = hpc_exchange_push_pull(e, 2, one, -1);
    CHECK_STATUS(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(victim));
    free(one);
    rank_set(r, 100 + r->rank, 1);
    for (int who = 0; who < victim; who++) rank_await(r, 100 + who, 1);
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

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
    j.eager = 0, j.split = 1;
    CHECK_STATUS(create(r, &j, 2, &e), HPC_ERR_UNSUPPORTED);
    CHECK_MESSAGE("split needs BSP with servers");
    j.split = 0, j.rule = "average";
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
        {.name = "totals", .size = 3, .run = totals, .arg = 1},
        {.name = "totals_threads", .size = 4, .run = totals, .arg = THREADS | 3},
        {.name = "totals_half", .size = 3, .run = totals, .arg = HALF_IN | DEEP | 2, .sleepy = true},
        {.name = "totals_rounded", .size = 3, .run = totals, .arg = HALF_OUT | THREADS | 1},
        {.name = "totals_server", .size = 4, .run = totals, .arg = SERVERS | 2},
        {.name = "totals_master", .size = 4, .run = totals, .arg = SERVERS | KEEPS | THREADS | 1},
        {.name = "settled_alone", .size = 1, .run = settled, .arg = FEW | 2}, /* of one stage: server_ssp.c */
        {.name = "totals_most_stale", .size = 3, .run = totals, .arg = FEW | 30},
        {.name = "settled", .size = 3, .run = settled, .arg = THREADS | 2},
        {.name = "settled_few", .size = 4, .run = settled, .arg = FEW | 3},
        {.name = "bounded", .size = 3, .run = bounded, .arg = 1},
        {.name = "bounded_threads", .size = 4, .run = bounded, .arg = THREADS | 3},
        {.name = "bounded_server", .size = 4, .run = bounded, .arg = SERVERS | THREADS | 2},
        {.name = "nothing_stale", .size = 3, .run = nothing_stale},
        {.name = "stands_still", .size = 4, .run = stands_still, .arg = FEW | 2, .where = RANKS_UNSEEDED},
        {.name = "closes_early", .size = 3, .run = closes_early, .arg = 1},
        {.name = "closes_early_threads", .size = 4, .run = closes_early, .arg = THREADS | MOMENTUM | 2},
        {.name = "closes_and_stands", .size = 4, .run = closes_and_stands, .arg = FEW | 2, .where = RANKS_UNSEEDED},
        {.name = "rates", .size = 3, .run = rates, .arg = 2},
        {.name = "many_rates", .size = 3, .run = many_rates, .arg = MOMENTUM | THREADS | 2},
        {.name = "rates_differ", .size = 3, .run = rates_differ, .arg = 2, .apart = true},
        {.name = "restored", .size = 3, .run = restored, .arg = THREADS | 2},
        {.name = "dies", .size = 3, .run = dies, .arg = 2, .victims = 4, .timeout = 30},
        {.name = "chain", .size = 4, .run = totals, .arg = CHAIN | THREADS | 2},
        {.name = "chain_keeps", .size = 4, .run = totals, .arg = CHAIN | KEEPS | SERVERS | HALF_OUT | 1},
        {.name = "tree", .size = 5, .run = totals, .arg = TREE | HALF_IN | 3},
        {.name = "tree_settled", .size = 5, .run = settled, .arg = TREE | FEW | THREADS | 2},
        {.name = "tree_bounded", .size = 5, .run = bounded, .arg = TREE | 3},
        {.name = "tree_closes_early", .size = 5, .run = closes_early, .arg = TREE | THREADS | 2},
        {.name = "chain_stands", .size = 3, .run = closes_and_stands, .arg = AROUND | FEW | 2, .where = RANKS_UNSEEDED},
        {.name = "chain_dies", .size = 4, .run = dies, .arg = CHAIN | 2, .victims = 8, .timeout = 30},
        {.name = "hosts", .size = 4, .run = totals, .arg = HOSTS | 2},
        {.name = "hosts_threads", .size = 6, .run = totals, .arg = HOSTS | THREADS | 3},
        {.name = "hosts_of_one", .size = 5, .run = totals, .arg = HOSTS | HALF_IN | THREADS | 1},
        {.name = "hosts_settled", .size = 4, .run = settled, .arg = HOSTS | THREADS | 2},
        {.name = "hosts_bounded", .size = 5, .run = bounded, .arg = HOSTS | 2},
        {.name = "hosts_bounded_threads", .size = 6, .run = bounded, .arg = HOSTS | THREADS | 3},
        {.name = "hosts_most_stale", .size = 4, .run = totals, .arg = HOSTS | 30},
        {.name = "hosts_alone", .size = 2, .run = totals, .arg = HOSTS | 2},
        {.name = "racks", .size = 6, .run = totals, .arg = HOSTS | RACKS | 2},
        {.name = "racks_bounded", .size = 6, .run = bounded, .arg = HOSTS | RACKS | THREADS | 2},
        {.name = "hosts_rates", .size = 4, .run = rates, .arg = HOSTS | 2},
        {.name = "hosts_rates_differ", .size = 4, .run = rates_differ, .arg = HOSTS | 2, .apart = true},
        {.name = "hosts_restored", .size = 4, .run = restored, .arg = HOSTS | THREADS | 2},
        {.name = "hosts_die", .size = 4, .run = dies, .arg = HOSTS | 2, .victims = 8, .timeout = 30},
        {.name = "hosts_uneven", .size = 4, .run = uneven, .arg = HOSTS | 2, .apart = true},
        {.name = "hosts_still", .size = 4, .run = stands_still, .arg = HOSTS | FEW | 2, .where = RANKS_UNSEEDED},
        {.name = "refused", .size = 4, .run = refused, .arg = 2},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
