/* A negative timeout is the context's, or with patience a multiple of how long pushes usually take (ASAP, section
 * 5). */
#include <math.h>

#include "context/context.h"
#include "exchange_plans.h"

enum { STEPS = 12, LATE = 1, MAY_COME = 8 };

typedef enum expected { WAITS, ENDS } expected;

/* Steps in which no rank is late, from which the timeout is learned. */
static void learn(const rank *r, const job *j, hpc_exchange *e, double patience, reference *ref) {
    hpc_exchange_stats stats;
    const double most = r->context->group.timeout;
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK(stats.usual == 0 && stats.timeout == most);
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < j->n_keys; k++) {
            job_push_pull(r, j, e, k, step);
            reference_step(ref, k);
        }
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK(stats.usual > 0);
    CHECK(stats.timeout == (patience == 0 ? most : fmin(most, fmax(1, patience * stats.usual))));
}

/* The other rank comes when this one has pushed and, where its wait ends, has told so. */
static void await_late(rank *r, const job *j, hpc_exchange *e, expected expected) {
    const uint64_t ticket = job_start(r, j, e, 0, STEPS, HPC_PUSH | HPC_PULL, false);
    if (expected == ENDS) {
        CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, -1), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(LATE) && hpc_last_error()->n_waiting == 1);
    }
    rank_set(r, MAY_COME, 1);
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, expected == ENDS ? 60 : -1));
}

static void late_rank(rank *r, double patience, expected expected) {
    job j;
    reference ref;
    hpc_exchange *e = NULL;
    hpc_exchange_config config;
    job_init(&j, r);
    reference_init(&ref, &j);
    hpc_exchange_config_init(&config);
    job_settings(&config, &j);
    CHECK(config.patience == 0);
    config.patience = patience;
    CHECK_OK(job_create_with(r, &j, &config, -1, &e));
    learn(r, &j, e, patience, &ref);
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == LATE) {
        rank_await(r, MAY_COME, 1);
        job_push_pull(r, &j, e, 0, STEPS);
    } else {
        await_late(r, &j, e, expected);
    }
    reference_step(&ref, 0);
    for (int k = 0; k < j.n_keys; k++) reference_check(&ref, r, e, k);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    reference_free(&ref);
}

static void without(rank *r) {
    late_rank(r, 0, WAITS);
}

static void short_patience(rank *r) {
    late_rank(r, 3, ENDS);
}

/* So long that the context's timeout counts. */
static void long_patience(rank *r) {
    late_rank(r, 1e9, WAITS);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "short_patience", .size = 2, .run = short_patience},
        {.name = "long_patience", .size = 2, .run = long_patience},
        {.name = "without", .size = 2, .run = without},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
