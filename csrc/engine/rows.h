/* The rows that this rank owns, and its cores. */
#ifndef HPC_ROWS_H
#define HPC_ROWS_H

#include "engine/engine.h"

/* choose comes before the window is there, open after. */
int hpc_rows_choose_cores(hpc_engine *en, int progress, int *threads, const char *op);
int hpc_rows_open(hpc_engine *en, const char *op);
void hpc_rows_free(hpc_engine *en);

#endif
