/* The worker's side of a quorum: what it has sent to the owners of shares, and what became of it. */
#ifndef HPC_QUORUM_OUTLET_H
#define HPC_QUORUM_OUTLET_H

#include "discipline/quorum.h"

/* Counts a push of key that is about to be sent, where each share has one answer for each. */
void hpc_outlet_begin(hpc_engine *en, int key);
/* Takes note of the answers to pushes of key that have come: what was left out as pieces is in the residual then. */
int hpc_outlet_hear(hpc_engine *en, int key);
/* Whether an update to share s has no answer yet. */
int hpc_outlet_is_unanswered(const hpc_engine *en, int s);
/* Sends the pending pushes whose slots are free by now. */
int hpc_outlet_send_all(hpc_engine *en);
int hpc_outlet_send_key(hpc_engine *en, int key);
/* Drops the pushes to a share up to n that are not sent, so that their slots are free. */
void hpc_outlet_drop(hpc_engine *en, const hpc_share *share, uint64_t n);
/* Collective: writes the largest number of any rank. */
int hpc_outlet_newest(hpc_engine *en, const char *op, double deadline, uint64_t own, uint64_t *newest);
/* The newest version that the owners of a key have told this rank, or all ranks when a state was loaded: on servers the
 * version of its parameters. */
uint64_t hpc_outlet_told(const hpc_engine *en, int key);
/* The version of this rank's copy of a share's parameters, as its owner has told; 0 where the share answers others. */
uint64_t hpc_outlet_heard(const hpc_engine *en, int s);
/* The version of this rank's next step, on servers. */
uint64_t hpc_outlet_next_version(const hpc_engine *en);
/* How many shares of the last push of key were left out. */
int hpc_outlet_late(const hpc_engine *en, int key);
/* hpc_facts: counts of updates that were left out. */
void hpc_outlet_count(const hpc_engine *en, hpc_exchange_stats *stats);
void hpc_outlet_count_peer(const hpc_engine *en, int rank, hpc_exchange_peer *peer);

#endif
