/* The CPUs that ranks of one kernel have, and how they are dealt. Every choice of threads, pins and waiting asks here.
 *
 * Ranks share CPUs if they run on one kernel and their affinity masks overlap, or one quota limits them, directly or
 * through other ranks. Namespaces make no difference: a CPU has the same number in all of them. The facts lie in the
 * addresses of the ranks, so equal questions have equal answers on all ranks. */
#ifndef HPC_CPUS_H
#define HPC_CPUS_H

#include "context/context.h"

/* The CPUs that a rank needs: one for each thread that it computes with, and one for each of its cores. */
typedef struct hpc_cpu_need {
    int threads, cores;
} hpc_cpu_need;

/* The answer, about the ranks that share CPUs with one rank, itself included. */
typedef struct hpc_cpu_deal {
    int ranks, threads, cores; /* how many ranks, and the threads and cores of them all */
    int cpus;                  /* that they have, cut by quotas */
    int each;                  /* the threads of each rank, if they are equally many; else 0 */
    int enough;                /* every thread and every core gets a CPU to itself */
} hpc_cpu_deal;

/* Deals the CPUs. needs: by rank. affinity: of the plan, for the NUMA nodes of NICs (hpc_affinity). chosen gets the CPU
 * of each core of the rank, or -1 if there are not enough; NULL: only count. */
int hpc_cpus_deal(const hpc_context *c, int rank, const hpc_cpu_need *needs, int affinity, hpc_cpu_deal *deal,
                  int *chosen, const char *op);

/* Chooses a CPU for each of n cores. A core gets a CPU of the node that it wants (-1: any) while that node has one
 * left, and the next free CPU otherwise. No CPU is chosen twice. n_cpus is n or more; nodes[k] is the node of cpus[k].
 * Equal arguments give equal choices on all ranks. */
void hpc_deal_cpus(const int *cpus, const int *nodes, int n_cpus, const int *wanted, int n, int *chosen);

#endif
