/* Rows that fold pieces a part at a time. */
#ifndef HPC_KIND_PARTS_H
#define HPC_KIND_PARTS_H

#include "engine/kind.h"

/* hpc_row_kind.room and work. */
hpc_row_room hpc_parts_room(const hpc_scheme *sc, const hpc_row *row);
int hpc_parts_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args);
/* hpc_row_kind.scaled and read. */
int hpc_parts_scaled(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, double scale);
int hpc_parts_read(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, const double *args, float *to,
                   double *squares);

#endif
