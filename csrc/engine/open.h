/* Opens a scheme: makes its layout, memory, lanes and first parameters. Leaves it: ends pending calls, tells the other
 * ranks, and serves rows until all workers have closed. */
#ifndef HPC_OPEN_H
#define HPC_OPEN_H

#include "engine/discipline.h"

/* A scheme is opened in three steps. hpc_scheme_new returns a handle that holds only a copy of the plan.
 * hpc_scheme_prepare allocates this rank's memory. hpc_scheme_open, which is collective, does the rest. */
hpc_scheme *hpc_scheme_new(hpc_context *c, const hpc_exchange_config *config, const hpc_discipline *d, const char *op);
int hpc_scheme_prepare(hpc_scheme *sc, const hpc_exchange_config *config);
int hpc_scheme_open(hpc_scheme *sc, const hpc_exchange_config *config, double deadline);
/* Sends the parameters of every row from its owner to its workers. Collective; no rank may have a call pending. */
int hpc_scheme_send_params(hpc_scheme *sc, const char *op, double deadline);

/* hpc_scheme_leave ends all pending calls and tells the other ranks. hpc_scheme_serve waits until these have closed.
 * hpc_scheme_free may be called only when all cores of this rank have stopped. */
int hpc_scheme_leave(hpc_scheme *sc, const char *op, double deadline);
int hpc_scheme_serve(hpc_scheme *sc, const char *op, double timeout);
void hpc_scheme_free(hpc_scheme *sc);

#endif
