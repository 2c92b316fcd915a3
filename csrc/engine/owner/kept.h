/* Fold and apply in two calls, where a row keeps its inputs in their slots until they are applied or skipped: no mean
 * of a whole row is ever made. */
#ifndef HPC_KEPT_H
#define HPC_KEPT_H

#include "engine/owner/row.h"

/* Applies the rule to scale times the fold of inputs, one or more, and sends the parameters. Nonzero when the exchange
 * has failed; so does the next one. */
int hpc_row_apply_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double scale);
/* Writes the fold of inputs to to, unless that is NULL, and its sum of squares to squares, unless that is NULL. It may
 * be read again. */
int hpc_row_read_kept(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, float *to, double *squares);
/* Whether a row of a discipline with split keeps its inputs. */
int hpc_row_keeps_inputs(const hpc_work *w);
/* Makes w->mean of inputs, zeros if there are no inputs, in memory that the row takes when this is first called. */
int hpc_row_keep_mean(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);

/* hpc_row_kind.scaled and read of rows that take arrays. */
int hpc_blocks_scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale);
int hpc_blocks_read(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                    double *squares);

#endif
