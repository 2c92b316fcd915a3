/* How ranks wait that have cores of their own, or share one. */
#define _GNU_SOURCE
#include <string.h>

#include "context.h"
#include "host.h"
#include "ranks.h"

static int shares_cores(const hpc_context *c) {
    const char *note;
    for (int i = 0; (note = hpc_context_note(c, i)) != NULL; i++)
        if (strstr(note, "ranks share")) return 1;
    return 0;
}

/* As mpirun binds them by default: a core each, and none of a rank's own beside it. */
static void bound_apart(rank *r) {
    int cpus[2];
    if (hpc_host_cpus(cpus, 2) < 2) ranks_skip("one CPU");
    CHECK_EQ(hpc_host_pin(cpus[r->rank]), 0);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK_EQ(hpc_core_count(), 1);
    CHECK(!shares_cores(r->context));
    CHECK(r->context->group.spin > 0);
}

static void bound_together(rank *r) {
    int cpu;
    CHECK(hpc_host_cpus(&cpu, 1) > 0);
    CHECK_EQ(hpc_host_pin(cpu), 0);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK(shares_cores(r->context));
    CHECK(r->context->group.spin == 0);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "bound_apart", .size = 2, .run = bound_apart, .where = RANKS_PROCESSES, .bare = true},
        {.name = "bound_together", .size = 2, .run = bound_together, .where = RANKS_PROCESSES, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
