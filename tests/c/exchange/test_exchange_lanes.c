/* The rails of an exchange's lanes: a chunk's updates and its parameters take the same one, that of the chunk's core or
 * that of the pair of ranks. The results of a step are the same either way. */
#include "exchange_plans.h"

#include "engine/layout/layout.h"
#include "inside.h"
#include "context/context.h"

enum { CORES = 5, STEPS = 3 };

static void check_rails(const hpc_exchange *e, int affinity) {
    CHECK_EQ(inside(e)->n_lanes, CORES);
    for (int i = 0; i < CORES; i++) {
        CHECK_EQ(inside(e)->in_lanes[i]->rail, affinity == HPC_KEY_BY_CORE ? i : HPC_RAIL_BY_WORKER);
        CHECK_EQ(inside(e)->out_lanes[i]->rail, inside(e)->in_lanes[i]->rail);
    }
    for (int i = 0; i < inside(e)->n_own_cores; i++) {
        CHECK(inside(e)->cores[i].in == inside(e)->in_lanes[i]);
        CHECK(inside(e)->cores[i].out == inside(e)->out_lanes[i]);
    }
}

static void same_rail_back(rank *r) {
    for (int interfaces = 0; interfaces <= 3; interfaces++) {
        job j;
        reference ref;
        job_init(&j, r);
        j.cores = CORES, j.affinity = r->arg, j.interfaces = interfaces;
        hpc_exchange *e = job_open(r, &j);
        CHECK_EQ(inside(e)->plan->affinity, r->arg);
        check_rails(e, r->arg);
        reference_init(&ref, &j);
        for (int step = 0; step < STEPS; step++)
            for (int key = 0; key < j.n_keys; key++) {
                job_push_pull(r, &j, e, key, step);
                reference_step(&ref, key);
                reference_check(&ref, r, e, key);
            }
        reference_free(&ref);
        hpc_exchange_free(e);
    }
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "key_by_core", .size = 3, .run = same_rail_back, .arg = HPC_KEY_BY_CORE},
        {.name = "worker_by_interface", .size = 3, .run = same_rail_back, .arg = HPC_WORKER_BY_INTERFACE},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
