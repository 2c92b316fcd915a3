/* SSP(s) where receivers apply the rule: who closes and stands still, and what is refused. All numbers are whole, so
 * that a sum has the same bits in every order. */
#define _GNU_SOURCE
#include <time.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

enum { AROUND = 32, HOSTS = 64 }; /* beside s: a chain, the last worker first; hosts of two ranks each */

static int most_behind(const rank *r) {
    return r->arg % AROUND;
}

static hpc_plan *by_hosts(const job *j, const rank *r, int apart) {
    hpc_plan *plan = NULL;
    int groups[RANKS_MAX];
    hpc_hosts hosts;
    hpc_plan_args_init("hosts", &hosts, sizeof hosts);
    for (int who = 0; who < r->size; who++) groups[who] = who / 2;
    hosts.keys = j->keys, hosts.n_keys = j->n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
    hosts.groups = groups, hosts.n_levels = 1, hosts.chunk = 2048, hosts.depth = 4, hosts.apart = apart;
    hosts.apply_at = HPC_AT_RECEIVERS;
    CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
    return plan;
}

/* The first rank serves alone, and works too. */
static hpc_plan *by_server(job *j, const rank *r) {
    hpc_plan *plan = NULL;
    hpc_hub hub;
    int parents[RANKS_MAX];
    const int n = j->n_workers;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j->keys, hub.n_keys = j->n_keys, hub.workers = j->workers, hub.n_workers = n;
    hub.servers = j->servers, hub.n_servers = j->n_servers = 1, hub.cores = 2, hub.chunk = 2048, hub.sum = 1;
    hub.depth = most_behind(r) + 2, hub.apply_at = HPC_AT_RECEIVERS;
    for (int i = 0; i < n; i++) parents[i] = i == 0 || i == n - 1 ? -1 : i + 1;
    if (r->arg & AROUND) hub.parents = parents, hub.n_parents = n;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    return plan;
}

static hpc_plan *receiving(job *j, const rank *r) {
    job_init(j, r);
    hpc_plan *plan = r->arg & HOSTS ? by_hosts(j, r, 1) : by_server(j, r);
    CHECK_OK(hpc_plan_check(plan, r->size));
    j->plan = plan;
    return plan;
}

static int create(const rank *r, const job *j, int staleness, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = HPC_SSP, c.staleness = staleness, c.progress = j->progress, c.split = j->split;
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
    j.rule = "average";
    CHECK_STATUS(create(r, &j, 2, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule average, which needs the updates of all workers at once");
    hpc_plan_free(plan);
    job_init(&j, r);
    plan = by_hosts(&j, r, 0);
    j.plan = plan;
    CHECK_STATUS(create(r, &j, 2, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("SSP where receivers apply needs a plan of parameter servers or of hosts");
    CHECK_MESSAGE("(hpc_hosts: with apart)");
    hpc_plan_free(plan);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "closes_and_stands", .size = 4, .run = closes_and_stands, .arg = 2, .where = RANKS_UNSEEDED},
        {.name = "names_slowest", .size = 4, .run = names_slowest, .arg = 2, .where = RANKS_UNSEEDED},
        {.name = "hosts_names_slowest", .size = 4, .run = names_slowest, .arg = HOSTS | 2, .where = RANKS_UNSEEDED},
        {.name = "chain_stands", .size = 3, .run = closes_and_stands, .arg = AROUND | 2, .where = RANKS_UNSEEDED},
        {.name = "hosts_uneven", .size = 4, .run = uneven, .arg = HOSTS | 2, .apart = true},
        {.name = "refused", .size = 4, .run = refused, .arg = 2},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
