/* Plans of many stages: who feeds a row is found once, however many paths there are and however long they get. */
#include "exchange_plans.h"

enum { STEPS = 3 };

/* The last rank only serves: it is asked of every row whether it feeds it, and no path says yes. */
static void one_key(job *j, const rank *r, uint64_t count) {
    job_init(j, r);
    j->n_keys = 1;
    j->keys[0].count = count;
    j->n_workers = r->size - 1;
}

static void train(const rank *r, const job *j, int steps) {
    reference ref;
    hpc_exchange *e = job_open(r, j);
    reference_init(&ref, j);
    if (!job_works(j, r->rank)) CHECK_OK(hpc_exchange_serve(e, -1));
    for (int step = 0; step < steps && job_works(j, r->rank); step++) {
        job_push_pull(r, j, e, 0, step);
        reference_step(&ref, 0);
        reference_check(&ref, r, e, 0);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Each row of a layer is fed by all of the one before it: as many paths as rows of a layer to the power of layers. */
static void layers(rank *r) {
    job j;
    hand_plan *h = malloc(sizeof *h);
    CHECK(h);
    one_key(&j, r, 33);
    hand_layers(h, &j, r->size, r->arg);
    j.plan = &h->plan;
    train(r, &j, STEPS);
    free(h);
}

/* Each row is fed by the one before it, all of rank 0: a path as long as there are rows. */
static void chain(rank *r) {
    enum { LENGTH = 200000 };
    job j;
    hpc_row *rows = calloc(LENGTH, sizeof *rows);
    hpc_edge *edges = calloc(2 * LENGTH, sizeof *edges), pushes[RANKS_MAX], pulls[RANKS_MAX];
    CHECK(rows && edges);
    one_key(&j, r, 16);
    for (int who = 0; who < j.n_workers; who++) pushes[who] = pulls[who] = (hpc_edge){who, -1, 1};
    for (int i = 0; i < LENGTH; i++) {
        rows[i] = (hpc_row){.action = HPC_FORWARD, .count = 16, .depth = 1, .quorum = 1, .n_in = 1, .n_out = 1};
        rows[i].in = &edges[2 * i], rows[i].out = &edges[2 * i + 1];
        edges[2 * i] = (hpc_edge){0, i - 1, 1}, edges[2 * i + 1] = (hpc_edge){0, i + 1, 1};
    }
    rows[0].in = pushes, rows[0].n_in = rows[0].quorum = j.n_workers;
    rows[LENGTH - 1].action = HPC_APPLY, rows[LENGTH - 1].out = pulls, rows[LENGTH - 1].n_out = j.n_workers;
    const hpc_plan plan = {.n_keys = 1, .n_rows = LENGTH, .keys = j.keys, .rows = rows};
    j.plan = &plan;
    train(r, &j, 1);
    free(rows);
    free(edges);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "two_layers", .size = 2, .run = layers, .arg = 2},
        {.name = "many_layers", .size = 4, .run = layers, .arg = 40},
        {.name = "chain", .size = 2, .run = chain, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
