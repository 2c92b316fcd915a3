/* What ASYNC and SSP on servers have in common: each update is applied by itself, as it comes. */
#ifndef HPC_EACH_H
#define HPC_EACH_H

#include "discipline/discipline.h"

enum { HPC_MOST_STALENESS = 64 };

/* Whether updates may be applied by themselves with this configuration. */
int hpc_each_check(const hpc_exchange_config *config);

/* Applies an input of a row, and returns whether all rows of the share have now applied that push of its rank. done:
 * by the lowest rank of an input, the rows that have; 0 between pushes. */
int hpc_each_apply(hpc_core *core, hpc_work *w, int slot, int input, int *done);

/* Calls came for the inputs of rank in all rows of a share. Returns 1, as hpc_discipline.share_came. */
typedef void hpc_each_came(hpc_core *core, hpc_work *w, int slot, int input);
int hpc_each_share_came(hpc_core *core, hpc_share *share, int rank, int slot, hpc_each_came *came);

/* Holds a pull up while the parameters of the worker's last pull may still be on their way: the next pull writes the
 * copy that they are sent from. */
int hpc_each_holds_up(hpc_core *core, const hpc_event *event);

#endif
