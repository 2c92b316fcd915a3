/* The rows that this rank owns, and its cores. */
#ifndef HPC_ROWS_H
#define HPC_ROWS_H

#include "engine/engine.h"

/* choose comes before the window is there, open after. */
int hpc_rows_choose_cores(hpc_engine *en, int progress, int *threads, const char *op);
int hpc_rows_open(hpc_engine *en, const char *op);
void hpc_rows_free(hpc_engine *en);
/* Chooses a CPU for each of n cores: one of the node that the core wants (-1: any) while one is left, else the next; no
 * CPU twice. n_cpus is n or more; nodes[k] is the node of cpus[k]. Equal arguments give equal choices on all ranks. */
void hpc_deal_cpus(const int *cpus, const int *nodes, int n_cpus, const int *wanted, int n, int *chosen);

#endif
