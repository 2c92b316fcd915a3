/* Forwards of a core: a receiver that takes none delays nobody else's, and pushes do not keep them waiting. */
#include <sched.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL, VALUES = 16, MOST = 300 };

/* Keys that one worker pushes and gets back, each by one row that applies them. */
typedef struct relayed {
    hpc_plan plan;
    hpc_row rows[2 * MOST];
    hpc_edge edges[4 * MOST];
    hpc_key keys[MOST];
    int n_edges;
} relayed;

static const hpc_edge *edge(relayed *p, int rank, int row) {
    p->edges[p->n_edges] = (hpc_edge){rank, row, 1};
    return &p->edges[p->n_edges++];
}

static void add_row(relayed *p, int action, int owner, const hpc_edge *in, const hpc_edge *out) {
    int key = p->plan.n_keys;
    p->rows[p->plan.n_rows++] = (hpc_row){.key = key,
                                          .owner = owner,
                                          .action = action,
                                          .count = p->keys[key].count,
                                          .depth = 1,
                                          .quorum = 1,
                                          .codec_in = HPC_F32,
                                          .codec_out = HPC_F32,
                                          .n_in = 1,
                                          .n_out = 1,
                                          .in = in,
                                          .out = out};
}

/* The next key: worker pushes it, by forwards it goes from there to owner (by < 0: the worker pushes it there). */
static void add_key(relayed *p, int worker, int by, int owner, uint64_t count) {
    int first = p->plan.n_rows;
    p->plan.keys = p->keys;
    p->plan.rows = p->rows;
    p->keys[p->plan.n_keys] = (hpc_key){job_key_name(p->plan.n_keys), count, 0};
    if (by >= 0) add_row(p, HPC_FORWARD, by, edge(p, worker, -1), edge(p, owner, first + 1));
    add_row(p, HPC_APPLY, owner, by < 0 ? edge(p, worker, -1) : edge(p, by, first), edge(p, worker, -1));
    p->plan.n_keys++;
}

static hpc_exchange *open_plan(const rank *r, job *j, relayed *p, const hpc_rule *rule) {
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    job_init(j, r);
    memcpy(j->keys, p->keys, sizeof p->keys);
    j->n_keys = p->plan.n_keys, j->plan = &p->plan;
    j->n_workers = 1; /* whose gradients count */
    hpc_exchange_config_init(&c);
    c.progress = HPC_PROGRESS_INLINE, c.rule = rule;
    CHECK_OK(job_create_with(r, j, &c, -1, &e));
    return e;
}

/* Rank 1 takes nothing, and its ring runs full; what rank 0 forwards to rank 2 gets there all the same. */
static void one_takes_nothing(rank *r) {
    relayed *p = calloc(1, sizeof *p);
    reference ref;
    job j;
    uint64_t tickets[MOST];
    while (p->plan.n_keys < MOST - 1) add_key(p, 0, 0, 1, VALUES);
    add_key(p, 0, 0, 2, VALUES);
    int last = MOST - 1;
    CHECK(last > HPC_NOTIFY_DEPTH);
    hpc_exchange *e = open_plan(r, &j, p, NULL);
    if (r->rank == 0) {
        reference_init(&ref, &j);
        for (int step = 0; step < 2; step++) {
            for (int key = 0; key < last; key++) tickets[key] = job_start(r, &j, e, key, step, BOTH, false);
            job_push_pull(r, &j, e, last, step);
            CHECK_EQ(hpc_exchange_test(e, last - 1, tickets[last - 1]), HPC_IN_PROGRESS);
            rank_set(r, 0, (uint64_t)step + 1);
            for (int key = 0; key < last; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            for (int key = 0; key < MOST; key++) {
                reference_step(&ref, key);
                reference_check(&ref, r, e, key);
            }
            rank_set(r, 1, (uint64_t)step + 1);
        }
        reference_free(&ref);
        CHECK_OK(hpc_exchange_close(e, -1));
    } else {
        for (uint64_t step = 1; r->rank == 1 && step <= 2; step++) {
            rank_await(r, 0, step);
            progress_until(r, e, 1, step);
        }
        CHECK_OK(hpc_exchange_serve(e, -1));
    }
    hpc_exchange_free(e);
    free(p);
}

/* How many rows rank 0 has applied, and which of them was the forwarded one, which is longer than the others. */
static int applied, forwarded;

static int note_order(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)count, (void)state, (void)args;
    applied++;
    if (n > VALUES) forwarded = applied;
    for (int64_t i = 0; i < n; i++) param[i] += acc[i];
    return 0;
}

/* A forward of rank 1 and many pushes are there when rank 0 looks: the forward is not the last. */
static void looked_at_by_turns(rank *r) {
    enum { PUSHES = 100 };
    const hpc_rule rule = {.name = "note order", .apply = note_order};
    relayed *p = calloc(1, sizeof *p);
    job j;
    uint64_t tickets[PUSHES + 1];
    hpc_exchange_stats stats = {0};
    for (int key = 0; key < PUSHES; key++) add_key(p, 1, -1, 0, VALUES);
    add_key(p, 1, 1, 0, 2 * VALUES);
    hpc_exchange *e = open_plan(r, &j, p, &rule);
    if (r->rank == 1) {
        for (int key = 0; key < PUSHES; key++) tickets[key] = job_start(r, &j, e, key, 0, BOTH, false);
        tickets[PUSHES] = job_start(r, &j, e, PUSHES, 0, BOTH, false);
        while (stats.applied == 0) {
            CHECK_OK(hpc_exchange_progress(e));
            CHECK_OK(hpc_exchange_get_stats(e, &stats));
        }
        rank_set(r, 0, 1);
        for (int key = 0; key <= PUSHES; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
        CHECK_OK(hpc_exchange_close(e, -1));
    } else {
        applied = forwarded = 0;
        rank_await(r, 0, 1);
        CHECK_OK(hpc_exchange_serve(e, -1));
        CHECK_EQ(applied, PUSHES + 1);
        CHECK(forwarded <= 2);
    }
    hpc_exchange_free(e);
    free(p);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "one_takes_nothing", .size = 3, .run = one_takes_nothing},
        {.name = "looked_at_by_turns", .size = 2, .run = looked_at_by_turns, .where = RANKS_SHM},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
