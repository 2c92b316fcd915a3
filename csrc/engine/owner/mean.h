/* Sums in a row's accumulator; and, with fold and apply as two calls, the mean that a row keeps until it is applied or
 * skipped. */
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

#endif
