/* The order in which a rank sends: pushes, answers and parameters begin with the rank after it and end with itself, so
 * that no rank is everybody's first. */
#include "exchange_plans.h"

#include "engine/layout/layout.h"
#include "inside.h"

/* ranks: those that this rank sends to, in order; all, or all but itself. */
static void check_order(const rank *r, const int *ranks, int n, int all) {
    CHECK_EQ(n, all);
    for (int i = 0; i < n; i++) CHECK_EQ(ranks[i], (r->rank + 1 + i) % r->size);
}

static void check_engine(const rank *r, const hpc_scheme *sc) {
    int owners[RANKS_MAX], readers[RANKS_MAX], n_own = 0;
    for (int i = 0; i < sc->keys[0].n_shares; i++) owners[i] = sc->layout.shares[sc->keys[0].shares[i]].owner;
    check_order(r, owners, sc->keys[0].n_shares, r->size);
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner == r->rank) check_order(r, share->members, share->n_members, r->size), n_own++;
    }
    CHECK_EQ(n_own, 1);
    CHECK_EQ(sc->n_work, 1);
    for (int o = 0; o < sc->work[0].n_outputs; o++) readers[o] = sc->work[0].outputs[o].rank;
    check_order(r, readers, sc->work[0].n_outputs, r->size - 1); /* its own parameters are the master */
}

static void begins_with_the_next_rank(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.n_keys = 1;
    j.keys[0].count = j.chunk / sizeof(float) * (uint64_t)r->size; /* a row for each rank */
    hpc_exchange *e = job_open(r, &j);
    check_engine(r, inside(e));
    reference_init(&ref, &j);
    job_push_pull(r, &j, e, 0, 0);
    reference_step(&ref, 0);
    reference_check(&ref, r, e, 0);
    reference_free(&ref);
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "next_rank", .size = 4, .run = begins_with_the_next_rank},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
