/* Plans whose rows of one key, core and action come by different ways, and rows that send on more ways than one. */
#include <sched.h>

#include "exchange_plans.h"

enum { CHAIN = 1 };

static hpc_edge *edge(hand_plan *h, hpc_edge e) {
    h->edges[h->n_edges] = e;
    return &h->edges[h->n_edges++];
}

static hpc_row *row(hand_plan *h, int owner, int action, uint64_t from, uint64_t count) {
    hpc_row *r = &h->rows[h->plan.n_rows++];
    *r = (hpc_row){.owner = owner, .action = action, .offset = from, .count = count, .depth = 1};
    return r;
}

static void in(hand_plan *h, hpc_row *r, int rank, int from) {
    const hpc_edge *at = edge(h, (hpc_edge){rank, from, 1});
    if (!r->n_in++) r->in = at;
    r->quorum = r->n_in;
}

static void out(hand_plan *h, hpc_row *r, int rank, int to) {
    const hpc_edge *at = edge(h, (hpc_edge){rank, to, 1});
    if (!r->n_out++) r->out = at;
}

static void start(hand_plan *h, job *j, uint64_t count) {
    memset(h, 0, sizeof *h);
    j->n_keys = 1;
    j->keys[0].count = count;
    h->plan = (hpc_plan){.n_keys = 1, .keys = j->keys, .rows = h->rows};
    j->plan = &h->plan;
}

/* Rank 0 sums for all, and forwards to a rule of its own and one of rank 1, which is rank 2's too. */
static void two_rules(hand_plan *h, job *j, int pieces) {
    start(h, j, 16u * (unsigned)pieces);
    for (int p = 0; p < pieces; p++) {
        int base = h->plan.n_rows;
        uint64_t from = 16u * (unsigned)p;
        hpc_row *sum = row(h, 0, HPC_FORWARD, from, 16), *own = row(h, 0, HPC_APPLY, from, 16),
                *other = row(h, 1, HPC_APPLY, from, 16);
        for (int r = 0; r < 3; r++) in(h, sum, r, -1);
        out(h, sum, 0, base + 1);
        out(h, sum, 1, base + 2);
        in(h, own, 0, base);
        out(h, own, 0, -1);
        in(h, other, 0, base);
        out(h, other, 1, -1);
        out(h, other, 2, -1);
    }
}

static void new_rates(rank *r) {
    job j;
    hand_plan *h = hand_new();
    reference ref;
    job_init(&j, r);
    hand_hosts(h, &j, r->size, r->arg / 2, r->arg & CHAIN, 512);
    j.plan = &h->plan;
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 6; step++) {
        j.args[1] = step % 2 ? 0.25 : 0.5;
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_set_args(e, key, j.args));
        for (int key = 0; key < j.n_keys; key++) {
            job_push_pull(r, &j, e, key, step);
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    }
    job_close(e, &ref, h);
}

/* The same by the planner: a ring of hosts of one rank, or two racks of two hosts of two. */
static void planned_rates(rank *r) {
    job j;
    hpc_hosts hosts;
    hpc_plan *plan = NULL;
    reference ref;
    int groups[2][RANKS_MAX];
    job_init(&j, r);
    j.n_keys = 1, j.keys[0].count = 16 * 64;
    hpc_plan_args_init("hosts", &hosts, sizeof hosts);
    for (int who = 0; who < r->size; who++) groups[0][who] = r->arg ? who / 2 : who, groups[1][who] = who / 4;
    hosts.keys = j.keys, hosts.n_keys = 1, hosts.workers = j.workers, hosts.n_workers = r->size;
    hosts.groups = groups[0], hosts.sum = 1, hosts.chunk = 64;
    if (r->arg) {
        int flat[2 * RANKS_MAX];
        for (int who = 0; who < r->size; who++) flat[who] = groups[0][who], flat[r->size + who] = groups[1][who];
        hosts.groups = flat, hosts.n_levels = 2;
        CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
    } else {
        hosts.top = HPC_TOP_RING;
        CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
    }
    j.plan = plan;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 4; step++) {
        j.args[1] = step % 2 ? 0.25 : 0.5;
        CHECK_OK(hpc_exchange_set_args(e, 0, j.args));
        job_push_pull(r, &j, e, 0, step);
        reference_step(&ref, 0);
        reference_check(&ref, r, e, 0);
    }
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* Rank 0 has its own parameters while sums for rank 1 wait for room in its ring. */
static void closes_before_sums_left(rank *r) {
    job j;
    hand_plan *h = hand_new();
    reference ref;
    uint64_t ticket;
    job_init(&j, r);
    two_rules(h, &j, 600);
    CHECK(600 > HPC_NOTIFY_DEPTH);
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    ticket = job_start(r, &j, e, 0, 0, HPC_PUSH | HPC_PULL, false);
    if (r->rank == 1) rank_await(r, 0, 1);
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, 5));
    reference_step(&ref, 0);
    reference_check(&ref, r, e, 0);
    if (r->rank == 0) rank_set(r, 0, 1);
    CHECK_OK(hpc_exchange_close(e, 5));
    reference_free(&ref);
    hpc_exchange_free(e);
    free(h);
}

/* Rank 1 relays for rank 2, and gets its own parameters from the owner. */
static void relays_for_others(rank *r) {
    job j;
    hand_plan *h = hand_new();
    uint64_t ticket;
    job_init(&j, r);
    start(h, &j, 1001);
    hpc_row *rule = row(h, 0, HPC_APPLY, 0, 1001), *relay = row(h, 1, HPC_RELAY, 0, 1001);
    for (int who = 0; who < 3; who++) in(h, rule, who, -1);
    out(h, rule, 0, -1);
    out(h, rule, 1, -1);
    out(h, rule, 1, 1);
    in(h, relay, 0, 0);
    out(h, relay, 2, -1);
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    hpc_exchange *e = job_open(r, &j);
    ticket = job_start(r, &j, e, 0, 0, HPC_PUSH | HPC_PULL, false);
    if (r->rank == 1) rank_await(r, 0, 1);
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, 5));
    if (r->rank == 0) rank_set(r, 0, 1);
    CHECK_OK(hpc_exchange_close(e, 5));
    hpc_exchange_free(e);
    free(h);
}

/* Rank 2 pushes to the second row of a share alone, and has no gradient. */
static void nothing_for_one_row(rank *r) {
    job j;
    hand_plan *h = hand_new();
    uint64_t ticket;
    job_init(&j, r);
    j.split = 1;
    start(h, &j, 32);
    hpc_row *sum0 = row(h, 1, HPC_FORWARD, 0, 16), *rule0 = row(h, 0, HPC_APPLY, 0, 16);
    hpc_row *sum1 = row(h, 1, HPC_FORWARD, 16, 16), *rule1 = row(h, 0, HPC_APPLY, 16, 16);
    in(h, sum0, 1, -1);
    out(h, sum0, 0, 1);
    in(h, rule0, 0, -1);
    in(h, rule0, 2, -1);
    in(h, rule0, 1, 0);
    for (int who = 0; who < 3; who++) out(h, rule0, who, -1);
    in(h, sum1, 1, -1);
    in(h, sum1, 2, -1);
    out(h, sum1, 0, 3);
    in(h, rule1, 0, -1);
    in(h, rule1, 1, 2);
    for (int who = 0; who < 3; who++) out(h, rule1, who, -1);
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 2)
        CHECK_OK(hpc_exchange_fold_nothing(e, 0, 5, &ticket));
    else
        ticket = job_start(r, &j, e, 0, 0, HPC_PUSH, false);
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, 5));
    CHECK_OK(hpc_exchange_apply(e, 0, 1, 5, &ticket));
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, 5));
    CHECK_OK(hpc_exchange_close(e, 5));
    hpc_exchange_free(e);
    free(h);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "new_rates_chain_of_4", .size = 4, .run = new_rates, .arg = 2 * 1 + CHAIN},
        {.name = "new_rates_star_of_4", .size = 4, .run = new_rates, .arg = 2 * 1},
        {.name = "planned_ring", .size = 4, .run = planned_rates, .arg = 0},
        {.name = "planned_racks", .size = 8, .run = planned_rates, .arg = 1},
        {.name = "closes_before_sums_left", .size = 3, .run = closes_before_sums_left, .where = RANKS_UNSEEDED},
        {.name = "relays_for_others", .size = 3, .run = relays_for_others, .where = RANKS_UNSEEDED, .apart = true},
        {.name = "nothing_for_one_row", .size = 3, .run = nothing_for_one_row},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
