/* Fold and apply as two calls, where a row keeps its inputs in their slots until they are applied or skipped. No mean
 * of a whole row is stored. */
#ifndef HPC_KEPT_H
#define HPC_KEPT_H

#include "engine/owner/row.h"

/* Applies the rule to scale times the fold of inputs (at least one), and sends the parameters.
 * This and the next function return nonzero when the exchange has failed. */
int hpc_row_apply_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double scale);
/* Writes the fold of inputs to the array to, and its sum of squares to *squares; either may be NULL. The inputs stay
 * unchanged and can be read again. */
int hpc_row_read_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, float *to, double *squares);
/* Returns whether a row keeps its inputs, if fold and apply are two calls. */
int hpc_row_keeps_inputs(const hpc_work *w);
/* Writes the mean of inputs, or zeroes if inputs is empty, into w->mean. The memory is allocated at the first call. */
int hpc_row_keep_mean(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);

/* hpc_row_kind.scaled and read, for rows that take arrays. */
int hpc_blocks_scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale);
int hpc_blocks_read(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                    double *squares);

#endif
