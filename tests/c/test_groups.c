/* ASYNC and SSP(s) between hosts: the ranks of a host are in step, hosts are not. */
#define _GNU_SOURCE
#include <sched.h>
#include <time.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* Parts of a case's arg: s (0: ASYNC), flags, and how many ranks a host has. */
enum { THREADS = 64, ROUNDED = 128, DEEP = 256, RACKS = 512, STATE = 1024, HOSTS_OF = 2048 };

static int per_host(const rank *r) {
    return r->arg / HOSTS_OF;
}

static int host_of(const rank *r, int who) {
    return who / per_host(r);
}

/* The outermost group of a rank: its host, or of two hosts the rack. */
static int group_of(const rank *r, int who) {
    return r->arg & RACKS ? host_of(r, who) / 2 : host_of(r, who);
}

static hpc_plan *by_hosts(job *j, const rank *r, int apart) {
    hpc_hosts h;
    hpc_plan *plan = NULL;
    int groups[2 * RANKS_MAX];
    job_init(j, r);
    j->cores = 2, j->depth = r->arg & DEEP ? 2 : 1, j->sum = r->size != 4 && r->size != 8;
    j->progress = r->arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (r->arg & ROUNDED) j->wire = HPC_F16, j->codec_out = HPC_F16;
    for (int who = 0; who < r->size; who++) groups[who] = host_of(r, who), groups[r->size + who] = host_of(r, who) / 2;
    hpc_hosts_init(&h);
    h.keys = j->keys, h.n_keys = j->n_keys, h.workers = j->workers, h.n_workers = j->n_workers;
    h.n_levels = r->arg & RACKS ? 2 : 1, h.groups = groups, h.cores = j->cores, h.chunk = 1024, h.depth = j->depth;
    h.sum = j->sum, h.wire = j->wire, h.codec_out = j->codec_out, h.apart = apart;
    CHECK_OK(hpc_plan_hosts(&h, &plan));
    j->plan = plan;
    return plan;
}

static int create(const rank *r, const job *j, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = r->arg % 64 ? HPC_SSP : HPC_ASYNC, c.staleness = r->arg % 64, c.progress = j->progress;
    c.eager = j->eager;
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

static void meet(rank *r, hpc_exchange *e, int word) {
    rank_set(r, word + r->rank, 1);
    for (int who = 0; who < r->size; who++) progress_until(r, e, word + who, 1);
}

static void delay(uint64_t *random) {
    if (ranks_random(random) % 4) return;
    struct timespec t = {0, (long)(ranks_random(random) % 3000) * 1000};
    nanosleep(&t, NULL);
}

/* With sgd the order does not matter: in the end the masters have each update once, with its weight; and so have all
 * workers after a publish. */
static void totals(rank *r) {
    job j;
    int steps = ranks_rounds(9);
    uint64_t random = 5 * (uint64_t)r->rank + r->mode->seed, tickets[JOB_KEYS];
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    for (int round = 0; round < 2; round++) {
        for (int step = round * steps; step < (round + 1) * steps; step++) {
            delay(&random);
            for (int key = 0; key < j.n_keys; key++)
                tickets[key] = job_start(r, &j, e, key, step, BOTH, (step + key) % 2);
            for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
        }
        CHECK_OK(hpc_exchange_settle(e, -1));
        meet(r, e, 32 * round);
        reference ref;
        reference_init(&ref, &j);
        for (int key = 0; key < j.n_keys; key++)
            for (int i = 0; i < (round + 1) * steps; i++) reference_step(&ref, key);
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            uint64_t step;
            if (row->owner != r->rank || row->action != HPC_APPLY) continue;
            float *values = malloc(row->count * sizeof *values);
            CHECK_OK(hpc_exchange_get_row(e, i, &step, values, NULL));
            CHECK_EQ(step, (uint64_t)((round + 1) * steps * row->n_in)); /* the rule ran once for each group */
            CHECK(same_floats(values, ref.params[row->key] + row->offset, row->count, "a master", r->rank, row->key));
            free(values);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        CHECK_OK(hpc_exchange_publish(e, -1));
        for (int key = 0; key < j.n_keys; key++) reference_check(&ref, r, e, key);
        CHECK_OK(hpc_barrier(r->context, -1));
        reference_free(&ref);
    }
    end(e, plan);
}

/* Elements of a key take turns: this one counts the updates of one worker. */
static int counted_by(const job *j, uint64_t i) {
    return j->workers[i % (uint64_t)j->n_workers];
}

enum { DONE = 0, BEGUN = 1024 }; /* words of the board, by key and rank */

static int word(const rank *r, int of, int key, int who) {
    return of + key * r->size + who;
}

/* A step of key has begun at clock: mates are in it too, other groups at most s apart, and the parameters have what
 * they must have: of each group all or nothing of an update. */
static void check_begun(const rank *r, const job *j, hpc_exchange *e, int key, uint64_t clock, uint64_t s) {
    const uint64_t least = clock > s ? clock - s : 0;
    const float *params = hpc_exchange_params(e, key);
    uint64_t done[RANKS_MAX];
    for (int who = 0; who < r->size; who++) {
        const int mate = group_of(r, who) == group_of(r, r->rank);
        done[who] = atomic_load(&r->board[word(r, DONE, key, who)]);
        CHECK(done[who] >= (mate ? clock : least));
        CHECK(atomic_load(&r->board[word(r, BEGUN, key, who)]) <= clock + (mate ? 0 : s));
    }
    for (int i = 0; i < j->plan->n_rows; i++) {
        const hpc_row *row = &j->plan->rows[i];
        uint64_t of_group[RANKS_MAX];
        memset(of_group, 255, sizeof of_group);
        for (uint64_t k = row->offset; k < row->offset + row->count && row->key == key && row->action == HPC_APPLY;
             k++) {
            const int who = counted_by(j, k), group = group_of(r, who);
            const uint64_t seen = (uint64_t)(job_initial(j, key, k) - params[k]);
            CHECK(group == group_of(r, r->rank) ? seen == clock : seen >= least && seen <= done[who]);
            CHECK(of_group[group] == UINT64_MAX || of_group[group] == seen);
            of_group[group] = seen;
        }
    }
}

/* Steps of random length. */
static void bounded(rank *r) {
    job j;
    int rounds = ranks_rounds(60);
    const uint64_t s = r->arg % 64 ? (uint64_t)(r->arg % 64) : 1 << 20;
    uint64_t random = 77 * (uint64_t)r->rank + r->mode->seed, tickets[JOB_KEYS];
    hpc_plan *plan = by_hosts(&j, r, 1);
    j.args[1] = 1;
    hpc_exchange *e = open_all(r, &j);
    float *grads[JOB_KEYS], *before[JOB_KEYS];
    for (int key = 0; key < j.n_keys; key++) {
        size_t nbytes = j.keys[key].count * sizeof(float);
        grads[key] = malloc(nbytes), before[key] = malloc(nbytes);
        for (uint64_t i = 0; i < j.keys[key].count; i++)
            grads[key][i] = counted_by(&j, i) == r->rank ? (float)(j.sum ? 1 : r->size) : 0;
        memcpy(before[key], hpc_exchange_params(e, key), nbytes);
    }
    for (uint64_t step = 1; step <= (uint64_t)rounds; step++) {
        delay(&random);
        for (int key = 0; key < j.n_keys; key++) {
            CHECK(!memcmp(before[key], hpc_exchange_params(e, key), j.keys[key].count * sizeof(float)));
            rank_set(r, word(r, DONE, key, r->rank), step);
            CHECK_OK(hpc_exchange_start(e, key, BOTH, grads[key], -1, &tickets[key]));
        }
        for (int key = 0; key < j.n_keys; key++) {
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            rank_set(r, word(r, BEGUN, key, r->rank), step);
            check_begun(r, &j, e, key, step, s);
            memcpy(before[key], hpc_exchange_params(e, key), j.keys[key].count * sizeof(float));
        }
    }
    for (int key = 0; key < j.n_keys; key++) free(grads[key]), free(before[key]);
    end(e, plan);
}

/* Each group may have a rate of its own, and it counts from the push on that brings it; in one group all give the same,
 * else the exchange ends with an error that says so. */
static void rates(rank *r) {
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    float *one = malloc(j.keys[0].count * sizeof *one);
    double args[HPC_RULE_ARGS] = {0}, moved = 0;
    for (uint64_t i = 0; i < j.keys[0].count; i++) one[i] = (float)(j.sum ? 1 : r->size);
    for (int step = 0; step < 6; step++) {
        args[1] = group_of(r, r->rank) + step;
        CHECK_OK(hpc_exchange_set_args(e, 0, args));
        CHECK_OK(hpc_exchange_push_pull(e, 0, one, -1));
        for (int who = 0; who < r->size; who++) moved += group_of(r, who) + step;
    }
    CHECK_OK(hpc_exchange_settle(e, -1));
    meet(r, e, 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_publish(e, -1));
    for (uint64_t i = 0; i < j.keys[0].count; i++)
        CHECK(job_initial(&j, 0, i) - hpc_exchange_params(e, 0)[i] == (float)moved);
    CHECK_OK(hpc_barrier(r->context, -1));
    free(one);
    end(e, plan);
}

static void rates_differ(rank *r) {
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
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

/* A host stands still: the others go on until they are s steps ahead, and those that wait name it in the end. */
static void names_slow(rank *r) {
    const int last = host_of(r, r->size - 1), staleness = r->arg % 64;
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    float *one = calloc(j.keys[2].count, sizeof *one);
    uint64_t ticket;
    if (host_of(r, r->rank) != last) {
        for (int step = 0; step < staleness; step++) CHECK_OK(hpc_exchange_push_pull(e, 2, one, -1));
        CHECK_OK(hpc_exchange_start(e, 2, BOTH, one, -1, &ticket));
        for (bool named = false; !named;) { /* at first another rank may not have pushed yet */
            CHECK_STATUS(hpc_exchange_wait(e, 2, ticket, 0.1), HPC_ERR_TIMEOUT);
            const hpc_error *error = hpc_last_error();
            named = error->n_culprits > 0;
            for (int i = 0; i < error->n_culprits; i++) named &= host_of(r, error->culprits[i].rank) == last;
        }
        atomic_fetch_add(&r->board[0], 1);
        CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
    } else {
        while (atomic_load(&r->board[0]) < (uint64_t)(last * per_host(r))) {
            CHECK_OK(hpc_exchange_progress(e));
            sched_yield();
        }
    }
    if (host_of(r, r->rank) == last)
        for (int step = 0; step <= staleness; step++) CHECK_OK(hpc_exchange_push_pull(e, 2, one, -1));
    free(one);
    end(e, plan);
}

/* A host stands still, and another one has done as many steps as it may without it. Whoever is ahead waits for the
 * first one alone, though the other one has parked its replies too. */
static void names_slowest(rank *r) {
    const int slow = host_of(r, r->size - 1) * per_host(r);
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    float *one = calloc(j.keys[2].count, sizeof *one);
    uint64_t ticket;
    if (r->rank < slow) CHECK_OK(hpc_exchange_push_pull(e, 2, one, -1));
    if (r->rank < per_host(r)) {
        CHECK_OK(hpc_exchange_start(e, 2, BOTH, one, -1, &ticket));
        for (int named = 1; named;) {
            CHECK_STATUS(hpc_exchange_wait(e, 2, ticket, 0.02), HPC_ERR_TIMEOUT);
            named = 0;
            for (int who = per_host(r); who < slow; who++) named |= ranks_error_waits_for(who);
        }
        atomic_fetch_add(&r->board[0], 1);
        CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
    } else {
        progress_until(r, e, 0, (uint64_t)per_host(r));
        if (r->rank >= slow) CHECK_OK(hpc_exchange_push_pull(e, 2, one, -1));
    }
    free(one);
    end(e, plan);
}

/* Under ASYNC a host that is behind is not waited for. A rank of another host stands still, which owns rows and so owes
 * answers: the wait is for that one, and not for those who have pushed nothing either. */
static void names_silent(rank *r) {
    const int silent = per_host(r);
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    uint64_t tickets[JOB_KEYS];
    int late = 0;
    if (host_of(r, r->rank) == 0) {
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

/* A host that has closed is not waited for: neither by replies that are parked, nor by later ones. */
static void closes(rank *r) {
    const int last = host_of(r, r->size - 1);
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    float *one = calloc(j.keys[2].count, sizeof *one);
    if (host_of(r, r->rank) == last) {
        progress_until(r, e, 0, 1); /* another one's reply is parked */
        CHECK_OK(hpc_exchange_push_pull(e, 2, one, -1));
    } else {
        for (int step = 0; step < 9; step++) {
            uint64_t ticket;
            CHECK_OK(hpc_exchange_start(e, 2, BOTH, one, -1, &ticket));
            if (step == 1 && r->rank == 0) {
                CHECK_STATUS(hpc_exchange_wait(e, 2, ticket, 0.02), HPC_ERR_TIMEOUT);
                rank_set(r, 0, 1);
            }
            CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
        }
    }
    free(one);
    end(e, plan);
}

/* A rank of the last host dies between two steps: all others say so. */
static void dies(rank *r) {
    const int victim = r->size - 1;
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
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
    while (status == HPC_OK) status = hpc_exchange_push_pull(e, 2, one, -1);
    CHECK_STATUS(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(victim));
    free(one);
    rank_set(r, 100 + r->rank, 1);
    for (int who = 0; who < victim; who++) rank_await(r, 100 + who, 1);
    hpc_exchange_free(e);
    hpc_plan_free(plan);
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
    j.eager = 1;
    CHECK_STATUS(create(r, &j, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("eager needs BSP");
    j.eager = 0;
    j.rule = "average";
    CHECK_STATUS(create(r, &j, &e), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rule average, which needs the updates of all workers at once");
    hpc_plan_free(plan);
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

#define HOSTS(n, what) ((n)*HOSTS_OF + (what))

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "totals_async", .size = 4, .run = totals, .arg = HOSTS(2, 0)},
        {.name = "totals_ssp", .size = 5, .run = totals, .arg = HOSTS(2, THREADS | 2)},
        {.name = "totals_racks", .size = 8, .run = totals, .arg = HOSTS(2, RACKS | ROUNDED | 1), .sleepy = true},
        {.name = "bounded_async", .size = 4, .run = bounded, .arg = HOSTS(2, THREADS)},
        {.name = "bounded_ssp", .size = 4, .run = bounded, .arg = HOSTS(2, DEEP | 1)},
        {.name = "bounded_ssp_threads", .size = 5, .run = bounded, .arg = HOSTS(2, THREADS | 3)},
        {.name = "bounded_racks", .size = 8, .run = bounded, .arg = HOSTS(2, RACKS | DEEP | 2)},
        {.name = "rates", .size = 4, .run = rates, .arg = HOSTS(2, 2)},
        {.name = "rates_differ", .size = 4, .run = rates_differ, .arg = HOSTS(2, 2), .apart = true},
        {.name = "names_slow", .size = 4, .run = names_slow, .arg = HOSTS(2, THREADS | 1), .where = RANKS_UNSEEDED},
        {.name = "names_slowest", .size = 6, .run = names_slowest, .arg = HOSTS(2, 1), .where = RANKS_UNSEEDED},
        {.name = "names_silent", .size = 6, .run = names_silent, .arg = HOSTS(2, 0), .where = RANKS_UNSEEDED},
        {.name = "boxed", .size = 6, .run = boxed, .arg = HOSTS(2, 0)},
        {.name = "folds_for_others", .size = 6, .run = folds_for_others, .arg = HOSTS(2, 0), .where = RANKS_UNSEEDED},
        {.name = "folded_elsewhere", .size = 3, .run = folded_elsewhere, .arg = HOSTS(2, 1), .where = RANKS_UNSEEDED},
        {.name = "closes", .size = 6, .run = closes, .arg = HOSTS(2, 1)},
        {.name = "dies", .size = 4, .run = dies, .arg = HOSTS(2, 2), .victims = 8, .timeout = 30},
        {.name = "refused", .size = 4, .run = refused, .arg = HOSTS(2, 1)},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
