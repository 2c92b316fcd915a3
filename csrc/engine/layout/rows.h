/* The rows that this rank owns, and its cores. */
#ifndef HPC_ROWS_H
#define HPC_ROWS_H

#include "engine/scheme.h"

/* The cores have been chosen and the window is there. */
int hpc_rows_open(hpc_scheme *sc, const char *op);
void hpc_rows_free(hpc_scheme *sc);

/* Names the outputs of this rank's rows that apply by the groups that they are for: a group's lowest rank need not be
 * one that gets parameters by the output. */
void hpc_rows_name_groups(hpc_scheme *sc);

#endif
