/* The owner's side of a quorum on servers, of ranks or of groups: a fold takes the updates for just its version. */
#ifndef HPC_SERVER_INTAKE_H
#define HPC_SERVER_INTAKE_H

#include "discipline/quorum_intake.h"

/* hpc_discipline's slots. */
int hpc_server_intake_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_server_intake_work(hpc_core *core);
/* A group's fold has come to a row that applies. Only plans of several stages have such events. */
int hpc_server_intake_row_came(hpc_core *core, hpc_work *w, int input, int slot);
/* hpc_facts.after_publish: tells the senders to this rank's shares which version was folded last. Nothing may be under
 * way anywhere. */
int hpc_server_intake_tell(hpc_engine *en);

#endif
