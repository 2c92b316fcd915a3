/* Fold and apply in two calls, where a row keeps its inputs in their slots until it is said what becomes of them: no
 * mean is ever made of a whole row. */
#ifndef HPC_KEPT_H
#define HPC_KEPT_H

#include "engine/row.h"

/* Applies the rule to scale times the fold of inputs, one or more, and sends the parameters. Nonzero when the exchange
 * has failed; so does the next one. */
int hpc_row_apply_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double scale);
/* Writes the fold of inputs to to, unless that is NULL, and its sum of squares to squares, unless that is NULL. It may
 * be read again. */
int hpc_row_read_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, float *to, double *squares);

/* hpc_row_kind.scaled and read of rows that take arrays. */
int hpc_blocks_scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale);
int hpc_blocks_read(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                    double *squares);

#endif
