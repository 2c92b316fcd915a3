/* stages.c - a fold and a rule that do nothing, for an exchange that only moves bytes: gradients cross as usual, and
 * parameters come back unchanged. Their types are hpc_rule's. */
#define _GNU_SOURCE
#include "bench.h"

static _Atomic uint64_t taken;

/* Counts the values of an update without reading them. */
BENCH_API int bench_take(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    (void)acc, (void)in, (void)nbytes, (void)weight, (void)args;
    atomic_fetch_add_explicit(&taken, (uint64_t)n, memory_order_relaxed);
    return 0;
}

/* Leaves the parameters as they are. */
BENCH_API int bench_keep(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)param, (void)acc, (void)count, (void)state, (void)args, (void)n;
    return 0;
}

/* Returns how many values this rank has taken since the last call. */
BENCH_API uint64_t bench_taken(void) {
    return atomic_exchange(&taken, 0);
}
