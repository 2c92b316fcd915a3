/* The ways of updates that pass from rank to rank unopened, among peers. */
#ifndef HPC_PASSING_H
#define HPC_PASSING_H

#include "engine/scheme.h"

/* Finds the ranks to which the inputs of this rank's rows are sent on; none where the plan has no ways. */
int hpc_passing_open(hpc_scheme *sc, const char *op);
/* How many inputs that a core sends on can wait for room in a ring. */
size_t hpc_passing_room(const hpc_scheme *sc, const hpc_core *core);

#endif
