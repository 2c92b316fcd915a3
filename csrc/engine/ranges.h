/* The ranges of a key's update that are encoded apart. */
#ifndef HPC_RANGES_H
#define HPC_RANGES_H

#include "engine/scheme.h"

/* For the layout: finds the ranges of a key's update that are encoded apart; an error if two of them overlap.
 * first: of the key's rows. */
int hpc_pieces_find(hpc_scheme *sc, int key, int first, const char *op);

#endif
