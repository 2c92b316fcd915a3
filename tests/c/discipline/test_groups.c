/* ASYNC, SSP(s) and quorums between hosts: plans by hand, whom waits name there, and what is refused. */
#include <math.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

enum { PER_HOST = 2, QUORUM = 32 };

static hpc_plan *by_hosts(job *j, const rank *r, int apart) {
    hpc_hosts h;
    hpc_plan *plan = NULL;
    int groups[RANKS_MAX];
    job_init(j, r);
    j->cores = 2;
    for (int who = 0; who < r->size; who++) groups[who] = who / PER_HOST;
    hpc_plan_args_init("hosts", &h, sizeof h);
    h.keys = j->keys, h.n_keys = j->n_keys, h.workers = j->workers, h.n_workers = j->n_workers;
    h.n_levels = 1, h.groups = groups, h.cores = j->cores, h.chunk = 1024, h.sum = 1, h.apart = apart;
    CHECK_OK(hpc_plan_make("hosts", &h, &plan));
    j->plan = plan;
    return plan;
}

static int create(const rank *r, const job *j, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = r->arg ? HPC_SSP : HPC_ASYNC, c.staleness = r->arg, c.progress = j->progress;
    c.shared_params = j->shared_params;
    c.grace = j->grace;
    if (j->quorum > 0) c.quorum = j->quorum, c.staleness = 0, c.consistency = j->each ? HPC_ASYNC : HPC_BSP;
    return job_create_with(r, j, &c, -1, e);
}

static hpc_exchange *open_all(const rank *r, const job *j) {
    hpc_exchange *e = NULL;
    CHECK_OK(create(r, j, &e));
    return e;
}

static void end(hpc_exchange *e, hpc_plan *plan) {
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

/* Under ASYNC a host that is behind is not waited for. A rank of another host stands still, which owns rows and so owes
 * answers: the wait is for that one, and not for those who have pushed nothing either. */
static void names_silent(rank *r) {
    const int silent = PER_HOST;
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    uint64_t tickets[JOB_KEYS];
    int late = 0;
    if (r->rank < PER_HOST) {
        for (int key = 0; key < j.n_keys; key++) tickets[key] = job_start(r, &j, e, key, 0, BOTH, false);
        for (int key = 0; key < j.n_keys; key++) {
            int status = hpc_exchange_wait(e, key, tickets[key], 0.1);
            late += status == HPC_ERR_TIMEOUT;
            CHECK(status == HPC_OK || status == HPC_ERR_TIMEOUT);
            for (int i = 0; i < hpc_last_error()->n_culprits && status != HPC_OK; i++)
                CHECK(hpc_last_error()->culprits[i].rank <= silent);
        }
        CHECK(late > 0);
        for (int who = silent + 1; who < r->size; who++) {
            hpc_exchange_peer peer;
            CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
            CHECK(peer.wait == 0);
        }
        atomic_fetch_add(&r->board[0], 1);
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    } else if (r->rank == silent) {
        rank_await(r, 0, (uint64_t)silent);
    } else {
        progress_until(r, e, 0, (uint64_t)silent);
    }
    end(e, plan);
}

/* Plans whose groups differ from row to row, and settings that an update by itself cannot have. */
static void refused(rank *r) {
    job j;
    hpc_exchange *e = NULL;
    hpc_plan *plan = by_hosts(&j, r, 0); /* each owner's host brings its updates rank by rank */
    CHECK_STATUS(create(r, &j, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("each rank is in one group, which folds before all rows of a key");
    hpc_plan_free(plan);
    plan = by_hosts(&j, r, 1);
    j.rule = "average";
    CHECK_STATUS(create(r, &j, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule average, which needs the updates of all workers at once");
    hpc_plan_free(plan);
}

static void refuses(const rank *r, const job *j, int status, const char *why) {
    hpc_exchange *e = NULL;
    CHECK_STATUS(create(r, j, &e), status);
    CHECK_MESSAGE(why);
}

/* Plans whose groups are not those of one row, and settings that do not go with a quorum. */
static void quorum_refused(rank *r) {
    job j;
    hpc_plan *plan = by_hosts(&j, r, 0);
    j.quorum = 1; /* each owner's host brings its updates rank by rank */
    refuses(r, &j, HPC_ERR_CONFIG, "each rank is in one group, which folds before all rows of a key");
    hpc_plan_free(plan);
    plan = by_hosts(&j, r, 1);
    j.quorum = 4;
    refuses(r, &j, HPC_ERR_INVALID, "gets 3 updates a step, one from each host or rack");
    for (j.quorum = 1; j.quorum <= 3; j.quorum += 2) { /* all groups are refused alike */
        j.each = 1;
        refuses(r, &j, HPC_ERR_UNSUPPORTED, "a quorum with servers or peers does not go with consistency ASYNC");
        j.each = 0, j.shared_params = 1;
        refuses(r, &j, HPC_ERR_UNSUPPORTED, "a quorum with servers or peers does not go with shared_params");
        j.shared_params = 0;
    }
    hpc_plan_free(plan);
    hand_plan *h = hand_new();
    j.quorum = 1;
    j.plan = &h->plan;
    hand_relay(h, &j, r->size, 512);
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "apply the same elements; with a quorum they have one owner");
    hand_racks(h, &j, r->size, HPC_F32, 512);
    h->rows[0].in++, h->rows[0].n_in = h->rows[0].quorum = 1;
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "forwards to a row that applies, and has one input");
    hand_racks(h, &j, r->size, HPC_F32, 512);
    h->rows[0].owner = 3; /* what ranks 0 and 1 push */
    ((hpc_edge *)h->rows[h->rows[0].out[0].row].in)->rank = 3;
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "row 0 forwards to a row that applies, and its owner does not push to it");
    hand_racks(h, &j, r->size, HPC_F32, 512);
    ((hpc_edge *)h->rows[0].in)->weight = -1;
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "row 0 emits, or has a weight of 0 or less, or a quorum of its own");
    free(h);
}

/* A plan by hand, of one key: ranks 0 and 1 are a group, and so are 2 and 3. Rank 4 owns. Rank 5 folds for the
 * first one and passes parameters on to it; two others do so for the second one. */
static void boxes(job *j, const rank *r, hand_plan *h, int folds, int relays) {
    job_init(j, r);
    j->n_keys = 1, j->n_workers = 4;
    const uint64_t count = j->keys[0].count;
    const hpc_edge edges[] = {{0, -1, 1}, {1, -1, 1},    {2, -1, 1}, {3, -1, 1},    {4, 0, 1},
                              {5, 1, 1},  {folds, 2, 1}, {5, 3, 1},  {relays, 4, 1}};
    memcpy(h->edges, edges, sizeof edges);
    const hpc_row rows[] = {
        {.owner = 4, .action = HPC_APPLY, .quorum = 2, .n_in = 2, .in = h->edges + 5, .n_out = 2, .out = h->edges + 7},
        {.owner = 5, .action = HPC_FORWARD, .quorum = 2, .n_in = 2, .in = h->edges, .n_out = 1, .out = h->edges + 4},
        {.owner = folds,
         .action = HPC_FORWARD,
         .quorum = 2,
         .n_in = 2,
         .in = h->edges + 2,
         .n_out = 1,
         .out = h->edges + 4},
        {.owner = 5, .action = HPC_RELAY, .quorum = 1, .n_in = 1, .in = h->edges + 4, .n_out = 2, .out = h->edges},
        {.owner = relays,
         .action = HPC_RELAY,
         .quorum = 1,
         .n_in = 1,
         .in = h->edges + 4,
         .n_out = 2,
         .out = h->edges + 2}};
    memcpy(h->rows, rows, sizeof rows);
    for (int i = 0; i < 5; i++) h->rows[i].count = count, h->rows[i].depth = 1;
    h->plan = (hpc_plan){.n_keys = 1, .n_rows = 5, .keys = j->keys, .rows = h->rows};
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    j->plan = &h->plan;
}

/* A group's folds and relays may be at ranks outside of it, but not two groups' at one core: there one would wait for
 * the other's. */
static void boxed(rank *r) {
    job j;
    hpc_exchange *e = NULL;
    hand_plan *h = hand_new();
    boxes(&j, r, h, 4, 5);
    CHECK_STATUS(create(r, &j, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rows 3 and 4, of core 0 of rank 5, fold or relay for two groups");
    boxes(&j, r, h, 4, 4);
    e = open_all(r, &j);
    float *one = calloc(j.keys[0].count, sizeof *one);
    if (r->rank < 2) {
        for (int step = 0; step < 5; step++) CHECK_OK(hpc_exchange_push_pull(e, 0, one, -1));
        rank_set(r, r->rank, 1);
    } else if (r->rank < 4) {
        for (int who = 0; who < 2; who++) progress_until(r, e, who, 1);
    }
    free(one);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    free(h);
}

/* Rank 0 folds for the other group, which has pushed nothing. Under ASYNC nobody waits for that group, but for the
 * owner, which stands still, and for the relay behind it. */
static void folds_for_others(rank *r) {
    job j;
    hand_plan *h = hand_new();
    boxes(&j, r, h, 0, 4);
    hpc_exchange *e = open_all(r, &j);
    float *one = calloc(j.keys[0].count, sizeof *one);
    uint64_t ticket;
    if (r->rank < 2) {
        CHECK_OK(hpc_exchange_start(e, 0, BOTH, one, -1, &ticket));
        CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, 0.1), HPC_ERR_TIMEOUT);
        for (int i = 0; i < hpc_last_error()->n_culprits; i++) CHECK(hpc_last_error()->culprits[i].rank >= 4);
        for (int who = 2; who < 4; who++) {
            hpc_exchange_peer peer;
            CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
            CHECK(peer.wait == 0);
        }
        atomic_fetch_add(&r->board[0], 1);
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    } else if (r->rank == 4) {
        rank_await(r, 0, 2);
    } else {
        progress_until(r, e, 0, 2);
    }
    free(one);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    free(h);
}

/* The owner's own group is folded by a rank outside of it, which stands still: the owner waits for that one. */
static void folded_elsewhere(rank *r) {
    enum { FOLDS = 2 };
    job j;
    job_init(&j, r);
    j.n_keys = 1, j.n_workers = 2;
    const uint64_t count = j.keys[0].count;
    const hpc_edge group[] = {{0, -1, 1}, {1, -1, 1}}, fold = {FOLDS, 1, 1}, to = {0, 0, 1};
    hpc_row rows[] = {{.owner = 0, .action = HPC_APPLY, .quorum = 1, .n_in = 1, .in = &fold, .n_out = 2, .out = group},
                      {.owner = FOLDS, .action = HPC_FORWARD, .quorum = 2, .n_in = 2, .in = group, .n_out = 1}};
    rows[0].depth = rows[1].depth = 1, rows[0].count = rows[1].count = count;
    rows[1].out = &to;
    const hpc_plan plan = {.n_keys = 1, .n_rows = 2, .keys = j.keys, .rows = rows};
    j.plan = &plan;
    hpc_exchange *e = open_all(r, &j);
    uint64_t ticket;
    if (r->rank == FOLDS) {
        rank_await(r, 0, 1);
    } else {
        ticket = job_start(r, &j, e, 0, 0, BOTH, false);
        if (r->rank == 0) {
            CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, 0.1), HPC_ERR_TIMEOUT);
            CHECK(ranks_error_waits_for(FOLDS) && !ranks_error_waits_for(0));
            rank_set(r, 0, 1);
        }
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    }
    end(e, NULL);
}

static void check_moved(const job *j, const hpc_exchange *e, int key, int by) {
    for (uint64_t i = 0; i < j->keys[key].count; i++)
        CHECK_EQ(job_initial(j, key, i) - hpc_exchange_params(e, key)[i], by);
}

/* The owner answers all ranks of a group itself, by no relays. arg: s, or QUORUM. */
static void answers_straight(rank *r) {
    enum { STEPS = 3 };
    job j;
    hand_plan *h = hand_new();
    job_init(&j, r);
    hand_racks(h, &j, r->size, HPC_F32, 256); /* which applies half of a sum */
    j.plan = &h->plan, j.args[1] = 2;
    if (r->arg == QUORUM) j.quorum = 2, j.grace = INFINITY;
    hpc_exchange *e = open_all(r, &j);
    for (int step = 0; step < STEPS; step++)
        for (int key = 0; key < j.n_keys; key++) {
            float *one = malloc(j.keys[key].count * sizeof *one);
            for (uint64_t i = 0; i < j.keys[key].count; i++) one[i] = 1;
            CHECK_OK(hpc_exchange_push_pull(e, key, one, -1));
            free(one);
            if (r->arg == QUORUM) check_moved(&j, e, key, (step + 1) * r->size);
        }
    CHECK_OK(hpc_exchange_settle(e, -1));
    rank_set(r, r->rank, 1);
    for (int who = 0; who < r->size; who++) progress_until(r, e, who, 1);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_publish(e, -1));
    for (int key = 0; key < j.n_keys; key++) check_moved(&j, e, key, STEPS * r->size);
    end(e, NULL);
    free(h);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "names_silent", .size = 6, .run = names_silent, .arg = 0, .where = RANKS_UNSEEDED},
        {.name = "boxed", .size = 6, .run = boxed, .arg = 0},
        {.name = "folds_for_others", .size = 6, .run = folds_for_others, .arg = 0, .where = RANKS_UNSEEDED},
        {.name = "folded_elsewhere", .size = 3, .run = folded_elsewhere, .arg = 1, .where = RANKS_UNSEEDED},
        {.name = "refused", .size = 4, .run = refused, .arg = 1},
        {.name = "quorum_refused", .size = 6, .run = quorum_refused},
        {.name = "answers_straight", .size = 6, .run = answers_straight},
        {.name = "answers_straight_ssp", .size = 6, .run = answers_straight, .arg = 1},
        {.name = "answers_straight_quorum", .size = 6, .run = answers_straight, .arg = QUORUM},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
