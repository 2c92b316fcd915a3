/* Steps that forwards of arrays and of pieces share. */
#ifndef HPC_KIND_FORWARD_H
#define HPC_KIND_FORWARD_H

#include "engine/owner/kind.h"

/* hpc_row_kind.room and leaving of forwards; and leaving of forwards whose sums the discipline keeps. */
hpc_row_room hpc_forward_room(const hpc_scheme *sc, const hpc_row *row);
const void *hpc_fold_leaving(const hpc_work *w, int slot);
const void *hpc_sum_leaving(const hpc_work *w, int slot);

#endif
