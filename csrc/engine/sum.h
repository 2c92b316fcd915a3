/* Folds that lie in a row's accumulator. */
#ifndef HPC_SUM_H
#define HPC_SUM_H

#include "engine/row.h"

/* Adds arrays to the accumulator, or begins it with the first: hpc_row_kind.add. */
int hpc_blocks_add(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins);
/* Applies the sum in the accumulator, block by block, and writes the parameters. */
int hpc_blocks_apply_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args);

#endif
