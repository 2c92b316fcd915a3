/* Folds that wait for all their inputs: what BSP and NOTIFY-ACK have in common. */
#ifndef HPC_WHOLE_H
#define HPC_WHOLE_H

#include "discipline/graph.h"

/* hpc_discipline's slots. turns: the exchange is on a graph whose phases take turns. */
int hpc_whole_turns(const hpc_engine *en);
int hpc_whole_open(hpc_engine *en, const char *op);
int hpc_whole_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_whole_row_came(hpc_core *core, hpc_work *w, int input, int slot);

/* The slot of the push of a ticket. */
int hpc_whole_slot(const hpc_engine *en, uint64_t ticket);
/* Adds the ranks whose inputs to a slot of a share of this rank's own are missing; returns the number of ranks. fold:
 * the number of the fold that waits for them; rows that have made it are left out. UINT64_MAX: no row is. */
int hpc_whole_missing(const hpc_engine *en, const hpc_share *share, int slot, uint64_t fold, int *ranks, int n);
/* With several stages: writes the ranks whose inputs are missing for the folds of a ticket that this rank forwards, and
 * returns their number. What it waits for itself may wait for those folds: of all shares, or of those that matters says
 * yes to. */
typedef int hpc_whole_matters(const hpc_engine *en, const hpc_share *share);
int hpc_whole_missing_in_stages(const hpc_engine *en, int key, uint64_t ticket, hpc_whole_matters *matters, int *ranks);
/* hpc_discipline.awaited of a push to servers. */
int hpc_whole_awaited(const hpc_engine *en, int key, uint64_t ticket, int *ranks);
/* The same of the share's next fold on a graph (hpc_missing). */
int hpc_whole_missing_neighbours(const hpc_engine *en, int s, uint64_t n, int *ranks, int found);

#endif
