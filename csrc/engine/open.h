/* A scheme is opened: its layout, its memory, its lanes, the first parameters. And it is left: pending calls end, the
 * other ranks hear of it, and rows serve until all have left. */
#ifndef HPC_OPEN_H
#define HPC_OPEN_H

#include "engine/discipline.h"

/* The handle of a scheme, which holds a copy of the plan and nothing else yet; then its own memory; then, collectively,
 * all of it. */
hpc_scheme *hpc_scheme_new(hpc_context *c, const hpc_exchange_config *config, const hpc_discipline *d, const char *op);
int hpc_scheme_prepare(hpc_scheme *sc, const hpc_exchange_config *config);
int hpc_scheme_open(hpc_scheme *sc, const hpc_exchange_config *config, double deadline);
/* Collective, while no rank has a call pending: every row's parameters go to its workers, from every owner. */
int hpc_scheme_send_params(hpc_scheme *sc, const char *op, double deadline);

/* leave ends all pending calls, and tells the other ranks; serve waits until they have left; free when all of this
 * rank's cores have stopped. */
int hpc_scheme_leave(hpc_scheme *sc, const char *op, double deadline);
int hpc_scheme_serve(hpc_scheme *sc, const char *op, double timeout);
void hpc_scheme_free(hpc_scheme *sc);

#endif
