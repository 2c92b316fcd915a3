/* The rows that this rank owns, and its cores. */
#ifndef HPC_ROWS_H
#define HPC_ROWS_H

#include "engine/scheme.h"

/* Opens this rank's rows. Called when the cores are chosen and the window exists. */
int hpc_rows_open(hpc_scheme *sc, const char *op);
void hpc_rows_free(hpc_scheme *sc);

/* Sets the field lowest of each output of this rank's rows that apply to the lowest rank of the output's group, even if
 * that rank gets its parameters by another output. */
void hpc_rows_name_groups(hpc_scheme *sc);

#endif
