/* The counts of a scheme, and the thresholds of its encoders. Pushes are counted by the thread that pushes, and sends
 * of a core by that core. Functions named add take the counts as they are: the caller has called the discipline's note
 * with HPC_ON_HEAR before. */
#ifndef HPC_COUNTS_H
#define HPC_COUNTS_H

#include "engine/layout/layout.h"

int hpc_counts_open(hpc_scheme *sc, const char *op);
/* Sets the counts of received bytes and of the cores' sent bytes to 0. No core may be at work. */
void hpc_counts_forget(hpc_scheme *sc);

/* Returns how many bytes this rank has sent to rank (0 if rank is itself): in one stage; in all stages that end at
 * rows; and, of a key, to all ranks in all stages. */
uint64_t hpc_sent_to(const hpc_scheme *sc, int rank, hpc_traffic_stage stage);
uint64_t hpc_sent_to_rows(const hpc_scheme *sc, int rank);
uint64_t hpc_sent_of_key(const hpc_scheme *sc, int key);

void hpc_counts_add(const hpc_scheme *sc, hpc_exchange_stats *stats);
void hpc_counts_add_peer(const hpc_scheme *sc, int rank, hpc_exchange_peer *peer);
void hpc_counts_of_key(const hpc_scheme *sc, int key, hpc_key_stats *stats);
/* hpc_exchange_get_histogram. */
int hpc_counts_add_inputs(const hpc_scheme *sc, uint64_t *counts, int cap);
int hpc_counts_add_staleness(const hpc_scheme *sc, uint64_t *counts, int cap);

/* has returns whether the key's codec has a threshold, its delta. check returns HPC_OK if a user may set it. set sets
 * it for pushes or for folds, as the flags in of say (hpc_exchange_set_delta). */
int hpc_has_delta(const hpc_scheme *sc, int key);
int hpc_check_delta(const hpc_scheme *sc, int key, const char *op);
void hpc_scheme_set_delta(hpc_scheme *sc, int key, int of, double delta);

/* Allocates the counts of steps by staleness (HPC_STEPS_BY_STALENESS). */
int hpc_open_begun(hpc_scheme *sc, const char *op);

/* Counts a step by how many steps its parameters are behind. A step beyond the asked staleness is not counted. */
static inline void hpc_count_begun(const hpc_scheme *sc, uint64_t behind) {
    if (behind <= (uint64_t)sc->asked.staleness) sc->begun[behind]++;
}

#endif
