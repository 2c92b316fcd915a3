/* Steps that the disciplines of peers share (peers.c). */
#ifndef HPC_DISCIPLINE_PEERS_H
#define HPC_DISCIPLINE_PEERS_H

#include "discipline/clocks.h"

/* HPC_OK if every row is a peer's, else an error that names the first one that is not. */
int hpc_peers_check(const hpc_context *context, const hpc_exchange_config *config);

/* The in-edge by which the row of owner, of the same elements as row, takes the pushes of rank; NULL: no such edge. */
const hpc_edge *hpc_peers_find_push(const hpc_plan *plan, int row, int owner, int rank);

/* Notes that an input of a push was used. */
void hpc_peers_note_used(const hpc_scheme *sc, const hpc_share *share, int input, uint64_t push);
/* Notes that an input is there, with bytes or (how) without, and counts the inputs of its rank that are there without
 * a gap: direct pushes and pushes that other ranks pass on may overtake each other. 0: it has no slot. */
int hpc_peers_note_came(const hpc_scheme *sc, const hpc_share *share, int input, int slot, int how);

/* hpc_discipline's slots. Under BSP: each push needs as many of every rank that sends to this one; a wait names the
 * ranks that have not sent their updates, or have not answered. */
int hpc_peers_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

#endif
