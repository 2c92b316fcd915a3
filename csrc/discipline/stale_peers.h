/* The slots of the disciplines of peers under SSP, and their own state: stale_peers.c says how it works. */
#ifndef HPC_DISCIPLINE_STALE_PEERS_H
#define HPC_DISCIPLINE_STALE_PEERS_H

#include "discipline/passing.h"

int hpc_stale_peers_check(const hpc_context *context, const hpc_exchange_config *config);
int hpc_stale_peers_open(hpc_engine *en, const char *op);
int hpc_stale_peers_share_came(hpc_core *core, hpc_share *share, int rank, int slot);
int hpc_stale_peers_row_came(hpc_core *core, hpc_work *w, int input, int slot);
int hpc_stale_peers_work(hpc_core *core);
int hpc_stale_peers_awaited(const hpc_engine *en, int key, uint64_t ticket, int for_slot, int *ranks);
int hpc_stale_peers_ended(hpc_engine *en, int key, const char *op);
int hpc_stale_peers_finish(hpc_engine *en, int key, hpc_limit *l, const char *op);
int hpc_stale_peers_settle(hpc_engine *en, int key, hpc_limit *l, const char *op);
int hpc_stale_peers_level(hpc_engine *en, const char *op, double deadline);

/* The ways of updates that pass from peer to peer; NULL: they do not. */
void hpc_stale_peers_pass(hpc_engine *en, hpc_ways *passing);
hpc_ways *hpc_stale_peers_passing(const hpc_engine *en);

#endif
