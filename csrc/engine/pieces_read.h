/* The last pieces that this rank has made, decoded. */
#ifndef HPC_PIECES_READ_H
#define HPC_PIECES_READ_H

#include "engine/pieces.h"

/* Write the elements of the pieces of push number n of key, or of the last piece that a row has forwarded; 0 where the
 * encoder keeps no residual. Nonzero: the codec's status. Cores have stopped. */
int hpc_pieces_read_push(hpc_scheme *sc, int key, uint64_t n, float *to);
int hpc_pieces_read_fold(hpc_scheme *sc, const hpc_work *w, float *to);

#endif
