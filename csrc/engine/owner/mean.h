/* Sums in a row's accumulator; and fold and apply in two calls: a row folds, and keeps the mean until it is applied or
 * skipped. */
#ifndef HPC_MEAN_H
#define HPC_MEAN_H

#include "engine/owner/row.h"

/* Adds arrays to the accumulator, or begins it with the first: hpc_row_kind.add. */
int hpc_blocks_add(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, int begins);
/* HPC_SUMS: a row's memory of sums and outputs, by slot; a sum of a slot begins; it is sent, as a fold of so many
 * updates (0: zeros), nonzero when the exchange has failed; an update of an input is counted; how many an input has
 * brought. */
int hpc_sum_open(hpc_scheme *sc, hpc_work *w, const char *op);
void hpc_sum_begin(hpc_work *w, uint64_t slot);
int hpc_sum_send(hpc_core *core, hpc_work *w, uint64_t slot, int n_updates, const double *args);
void hpc_sum_count(hpc_core *core, hpc_work *w, int input, int how);
static inline uint64_t hpc_sum_taken(const hpc_work *w, int input) {
    return w->taken == NULL ? 0 : atomic_load_explicit(&w->taken[input], memory_order_relaxed);
}

/* Applies the sum in the accumulator, block by block, and writes the parameters. */
int hpc_blocks_apply_sum(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args);

/* fold keeps the mean of inputs, one or more, and adds its sum of squares to *squares if that is not NULL. apply runs
 * the rule on it: args[0] is a factor of the mean, and the others are the rule's. to: that get the parameters. */
int hpc_row_fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares);
int hpc_row_apply(hpc_core *core, hpc_work *w, hpc_receivers to, const double *args);
double hpc_row_squares(const hpc_core *core, const hpc_work *w); /* of the mean */
/* Sends the mean, or zeros, as float32 to the workers of one sender of the row, or to all (hpc_gathered_at). */
void hpc_row_gather(hpc_core *core, hpc_work *w, int sender, int zero);

/* hpc_row_kind.fold of rows that take arrays. */
int hpc_blocks_mean(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double *squares);
/* hpc_row_kind.apply of rows that work block by block. */
int hpc_blocks_apply_mean(hpc_core *core, hpc_work *w, const hpc_inputs *mean, const double *args);

#endif
