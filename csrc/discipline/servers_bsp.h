/* Folds that wait for all their inputs: the steps of BSP on servers. Rows that forward use them under every discipline
 * except on graphs (graph_bsp.c). */
#ifndef HPC_WHOLE_H
#define HPC_WHOLE_H

#include "engine/args.h"
#include "engine/scheme.h"
#include "engine/owner/row.h"
#include "engine/worker/waits.h"

/* Slot of hpc_discipline. */
int hpc_whole_row_came(hpc_core *core, hpc_work *w, int input, int slot);
/* Counts an input that has come without an update: its worker, or its group, has skipped a step. */
void hpc_whole_empty_came(hpc_core *core, hpc_work *w, int input);

/* hpc_pace.is_late: a rank is late if it has made fewer pushes than this rank. */
static inline int hpc_whole_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes) {
    (void)sc, (void)rank, (void)key;
    return !(ticket & HPC_PULL_TICKET) && pushes < ticket / 2;
}

/* Begins the next version of a share whose rows are all folded. */
static inline void hpc_whole_begin_next(hpc_share *share) {
    share->version++;
    share->left = share->n_rows;
    share->args_came = 0;
}

/* Does a row's work. Returns nonzero if a user's rule or fold has failed, or if the workers' arguments differ. The
 * caller then answers no rank, so that no rank believes that its update was applied. */
static inline int hpc_whole_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs) {
    if (w->share->args_came && !hpc_args_agree(core, w, (int)inputs->slot, -1, w->share->version + 1)) return -1;
    return hpc_row_work(core, w, inputs);
}

/* Returns the slot of the push for which a ticket waits. */
int hpc_whole_slot(const hpc_scheme *sc, uint64_t ticket);
/* Adds the ranks that have not sent their inputs to a slot of a share that this rank owns; returns the number of ranks.
 * fold: the number of the fold that waits for these inputs. Rows that have made this fold are skipped; UINT64_MAX: no
 * row is skipped. */
int hpc_whole_missing(const hpc_scheme *sc, const hpc_share *share, int slot, uint64_t fold, int *ranks, int n);
/* hpc_gate.missing for a push to servers. */
int hpc_whole_missing_in(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found);

#endif
