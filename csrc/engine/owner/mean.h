/* Sums in a row's accumulator. With fold and apply as two calls: the mean that a row keeps until it is applied or
 * skipped, or the inputs that it keeps in their slots instead; then no mean of a whole row is stored. */
#ifndef HPC_MEAN_H
#define HPC_MEAN_H

#include "engine/owner/row.h"

/* hpc_row_kind.add for arrays: adds them to the accumulator; if begins is set, first clears it. */
int hpc_blocks_add(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins);
/* Sums with HPC_SUMS. hpc_sum_open allocates a row's sums and outputs, by slot. hpc_sum_begin starts the sum of a slot.
 * hpc_sum_send sends it as a fold of n_updates updates (0: zeroes), and returns nonzero when the exchange has failed.
 * hpc_sum_count counts an update of an input. hpc_sum_taken returns how many updates of an input were counted. */
int hpc_sum_open(hpc_scheme *sc, hpc_work *w, const char *op);
void hpc_sum_begin(hpc_work *w, uint64_t slot);
int hpc_sum_send(hpc_core *core, hpc_work *w, uint64_t slot, int n_updates, const double *args);
void hpc_sum_count(hpc_core *core, hpc_work *w, int input, int how);
static inline uint64_t hpc_sum_taken(const hpc_work *w, int input) {
    return w->taken == NULL ? 0 : atomic_load_explicit(&w->taken[input], memory_order_relaxed);
}

/* Applies the sum in the accumulator, block by block, and writes the parameters. */
int hpc_blocks_apply_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args);

/* hpc_row_fold keeps the mean of inputs (at least one), and adds its sum of squares to *squares unless squares is NULL.
 * hpc_row_apply runs the rule on the mean: args[0] is a factor of the mean, and the others are the rule's arguments.
 * The workers in the set to get the parameters. */
int hpc_row_fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares);
int hpc_row_apply(hpc_core *core, hpc_work *w, hpc_receivers to, const double *args);
double hpc_row_squares(const hpc_core *core, const hpc_work *w); /* sum of squares of the mean */
/* Sends the mean, or zeroes, as float32 (hpc_gathered_at) to the workers of one sender of the row, or to all. */
void hpc_row_gather(hpc_core *core, hpc_work *w, int sender, int zero);

/* hpc_row_kind.fold of rows that take arrays. */
int hpc_blocks_mean(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double *squares);
/* hpc_row_kind.apply of rows that work block by block. */
int hpc_blocks_apply_mean(hpc_core *core, hpc_work *w, const hpc_inputs *mean, const double *args);

/* ---- fold and apply as two calls, where a row keeps its inputs ---- */

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
