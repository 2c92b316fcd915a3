/* Folds that wait for all their inputs: the steps of BSP on servers, which rows that forward share wherever they are
 * (on graphs: graph_bsp.c). */
#ifndef HPC_WHOLE_H
#define HPC_WHOLE_H

#include "engine/args.h"
#include "engine/scheme.h"
#include "engine/owner/row.h"
#include "engine/worker/ticket.h"

/* hpc_discipline's slot. */
int hpc_whole_row_came(hpc_core *core, hpc_work *w, int input, int slot);
/* An input has come without an update: its worker, or its group, has skipped a step. */
void hpc_whole_empty_came(hpc_core *core, hpc_work *w, int input);

/* hpc_pace.is_late: each push needs as many of every rank. */
static inline int hpc_whole_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    (void)sc, (void)rank, (void)key;
    return !(ticket & HPC_PULL_TICKET) && pushes < ticket / 2;
}

/* The next version of a share begins: all its rows are folded. */
static inline void hpc_whole_begin_next(hpc_share *share) {
    share->version++;
    share->left = share->n_rows;
    share->args_came = 0;
}

/* Works a row off. Nonzero when a user's kernel has failed, or arguments differ: then nothing is answered, so that no
 * rank takes an update for applied that is not. */
static inline int hpc_whole_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    if (w->share->args_came && !hpc_args_agree(core, w, (int)inputs->slot, -1, w->share->version + 1)) return -1;
    return hpc_row_work(core, w, inputs);
}

/* The slot of the push of a ticket. */
int hpc_whole_slot(const hpc_scheme *sc, uint64_t ticket);
/* Adds the ranks that have not sent inputs to a slot of a share of this rank's own; returns the number of ranks. fold:
 * the number of the fold that waits for them; rows that have made it are left out. UINT64_MAX: no row is. */
int hpc_whole_missing(const hpc_scheme *sc, const hpc_share *share, int slot, uint64_t fold, int *ranks, int n);
/* hpc_gate.missing of a push to servers. */
int hpc_whole_missing_in(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found);

#endif
