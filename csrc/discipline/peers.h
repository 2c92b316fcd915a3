/* Steps that the disciplines of peers share (peers.c). */
#ifndef HPC_DISCIPLINE_PEERS_H
#define HPC_DISCIPLINE_PEERS_H

#include "discipline/clocks.h"

/* Returns HPC_OK if every row is a valid row of a peer; otherwise an error that names the first invalid row. */
int hpc_peers_check(const hpc_context *context, const hpc_exchange_config *config);

/* Finds owner's row with the same elements as row. Returns its in-edge for the pushes of rank; NULL if it has no such
 * edge. */
const hpc_edge *hpc_peers_find_push(const hpc_plan *plan, int row, int owner, int rank);

/* Notes that an input of a push was used. */
void hpc_peers_note_used(const hpc_scheme *sc, const hpc_share *share, int input, uint64_t push);
/* Notes that an input has come; how says whether with bytes. Counts how many inputs of its rank have come without a
 * gap, since direct pushes and pushes that other ranks pass on may overtake each other. Returns 0 if the input's slot
 * is not free, otherwise 1. */
int hpc_peers_note_came(const hpc_scheme *sc, const hpc_share *share, int input, int slot, int how);

/* hpc_pace.is_late under BSP: a rank that sends to this rank is late if it has made fewer pushes than this rank. */
int hpc_peers_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

#endif
