/* Plans inside the library: their limits, a copy of one's own, and a number by which ranks agree on one. */
#ifndef HPC_PLAN_H
#define HPC_PLAN_H

#include "hpcomm/hpcomm.h"

enum {
    HPC_PLAN_NUMBERS = 1 << 24, /* keys, and rows: what an immediate can name */
    HPC_PLAN_CORES = 1 << 10,   /* of one rank */
    HPC_PLAN_DEPTH = 16,
    HPC_PLAN_ALIGN = 16 /* elements: every row but the last of its key ends on a cache line */
};

/* Elements of all keys together: no sum of sizes made from them overflows. */
#define HPC_PLAN_ELEMENTS ((uint64_t)1 << 48)

/* Makes a copy, names and edges included, that hpc_plan_free frees. The plan has passed hpc_plan_check. */
int hpc_plan_copy(const hpc_plan *plan, const char *op, hpc_plan **copy);

/* Equal for equal plans, wherever they lie: every field counts, no pointer does. The plan has passed hpc_plan_check. */
uint64_t hpc_plan_digest(const hpc_plan *plan);

/* The parts of hpc_plan_check that concern the keys, or the affinity, alone. */
int hpc_plan_check_keys(const hpc_key *keys, int n_keys);
int hpc_plan_check_affinity(int affinity);

#endif
