/* The owner's side of a quorum on a graph: a fold is of this rank's own push, which leads it, and of the neighbours'
 * updates for its version or a newer one. */
#ifndef HPC_GRAPH_INTAKE_H
#define HPC_GRAPH_INTAKE_H

#include "discipline/quorum_intake.h"

/* hpc_discipline's slots. */
int hpc_graph_intake_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_graph_intake_work(hpc_core *core);

#endif
