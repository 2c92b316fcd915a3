/* Holders: the ranks in whose part of the window the parameters of workers lie, and the ranks that may write them. */
#ifndef HPC_HOLDERS_H
#define HPC_HOLDERS_H

#include "engine/scheme.h"

/* Finds the holders, when the workers are known. */
int hpc_holders_find(hpc_scheme *sc, const char *op);
int hpc_holders_check(const hpc_scheme *sc, const char *op); /* with shared_params: each copy has one writer */
/* The rank whose part has parameters that the row makes, and that are read on its owner's host; -1: no rank. */
int hpc_row_home(const hpc_scheme *sc, const hpc_row *row);

#endif
