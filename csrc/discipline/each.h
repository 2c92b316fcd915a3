/* Steps that ASYNC and SSP on servers share: each update is applied by itself, as it comes. */
#ifndef HPC_EACH_H
#define HPC_EACH_H

#include "discipline/discipline.h"

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

/* A core's own, where answers may be parked: calls to which an answer has to wait for updates of others. */
typedef struct hpc_parking {
    int n_parked; /* of all its shares */
    int n_closed; /* ranks that had closed when the core looked last */
} hpc_parking;

/* As hpc_discipline.work: a rank that has closed may have been the one that answers waited for. After each closing
 * calls wake for the core's shares with a state of the discipline's; wake returns how many answers it has sent. */
typedef int hpc_each_wake(hpc_core *core, hpc_share *share);
int hpc_each_work(hpc_core *core, hpc_each_wake *wake);

/* Publish: tells all ranks the pushes of each, into last[key * size + rank]. */
int hpc_each_learn_pushes(hpc_engine *en, uint64_t *last, const char *op, double deadline);

#endif
