/* Holders: the ranks whose part of the window has the parameters that workers read. With shared_params one copy serves
 * a host. */
#ifndef HPC_HOLDERS_H
#define HPC_HOLDERS_H

#include "engine/scheme.h"

/* Finds the holder of each rank. Called when the layout knows which ranks are workers. */
int hpc_holders_find(hpc_scheme *sc, const char *op);
/* With shared_params: checks that each copy has one writer. */
int hpc_holders_check(const hpc_scheme *sc, const char *op);
/* Returns the rank whose part has the parameters that a row makes for workers on its owner's host; -1 if it makes none
 * for them. */
int hpc_row_home(const hpc_scheme *sc, const hpc_row *row);

#endif
