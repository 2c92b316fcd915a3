/* The counts of a scheme, and the thresholds of its encoders. The thread that pushes counts the pushes, and each core
 * counts its own sends. Functions named hpc_counts_add* do not bring counts up to date first: the caller has called the
 * discipline's note with HPC_ON_HEAR before. */
#ifndef HPC_COUNTS_H
#define HPC_COUNTS_H

#include "engine/layout/layout.h"

int hpc_counts_open(hpc_scheme *sc, const char *op);
/* Sets the counts of received bytes and of the cores' sent bytes to 0. The caller must have paused all cores. */
void hpc_counts_forget(hpc_scheme *sc);

/* hpc_sent_to returns how many bytes this rank has sent to rank in one stage, hpc_sent_to_rows in all stages that end
 * at rows; both return 0 if rank is this rank. hpc_sent_of_key returns how many bytes of a key this rank has sent to
 * all ranks in all stages. */
uint64_t hpc_sent_to(const hpc_scheme *sc, int rank, hpc_traffic_stage stage);
uint64_t hpc_sent_to_rows(const hpc_scheme *sc, int rank);
uint64_t hpc_sent_of_key(const hpc_scheme *sc, int key);

void hpc_counts_add(const hpc_scheme *sc, hpc_exchange_stats *stats);
void hpc_counts_add_peer(const hpc_scheme *sc, int rank, hpc_exchange_peer *peer);
void hpc_counts_of_key(const hpc_scheme *sc, int key, hpc_key_stats *stats);
/* hpc_exchange_get_histogram. */
int hpc_counts_add_inputs(const hpc_scheme *sc, uint64_t *counts, int cap);
int hpc_counts_add_staleness(const hpc_scheme *sc, uint64_t *counts, int cap);

/* hpc_has_delta returns whether the key's codec has a threshold (delta). hpc_check_delta returns HPC_OK if a user may
 * set the threshold, otherwise an error. hpc_scheme_set_delta sets it for pushes, folds or both, by the flags in the
 * argument of (hpc_exchange_set_delta). */
int hpc_has_delta(const hpc_scheme *sc, int key);
int hpc_check_delta(const hpc_scheme *sc, int key, const char *op);
void hpc_scheme_set_delta(hpc_scheme *sc, int key, int of, double delta);

/* Allocates the counts of steps by staleness (HPC_STEPS_BY_STALENESS). */
int hpc_open_begun(hpc_scheme *sc, const char *op);

/* Counts a step that begins with parameters that are behind by this many steps. Steps behind by more than the user's
 * staleness are not counted. */
static inline void hpc_count_begun(const hpc_scheme *sc, uint64_t behind) {
    if (behind <= (uint64_t)sc->asked.staleness) sc->begun[behind]++;
}

#endif
