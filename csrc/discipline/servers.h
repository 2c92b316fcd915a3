/* ASYNC and SSP(s) on servers, where each update is applied by itself as it comes (servers_owner.c); and the worker's
 * side, which ends a pull without asking the owners if its copy is fresh enough (servers_worker.c). */
#ifndef HPC_SERVERS_H
#define HPC_SERVERS_H

#include "discipline/discipline.h"
#include "discipline/clocks.h"

/* Returns HPC_OK if this configuration allows each update to be applied by itself; otherwise an error with the
 * reason. */
int hpc_each_check(const hpc_exchange_config *config);

/* For receivers and peers: sets the staleness under ASYNC, and opens the counts of steps. Updates wait in slots until a
 * worker takes them, and SSP(s) needs s + 2 slots. Under ASYNC only the slots limit how far ranks drift apart, so the
 * staleness is set to depth - 2, but at least 1, because 0 would be BSP. */
static inline int hpc_slots_open(hpc_scheme *sc, const char *op) {
    if (sc->asked.consistency == HPC_ASYNC) sc->asked.staleness = sc->layout.depth - 2;
    return hpc_open_begun(sc, op);
}
/* Returns HPC_OK if the plan has the slots that hpc_slots_open needs. where: a phrase for the error. */
int hpc_slots_check(const hpc_exchange_config *config, const char *where);

/* ---- servers_worker.c: slots of SSP where workers pull ---- */

int hpc_fresh_plan(hpc_scheme *sc, const char *op);
int hpc_fresh_open(hpc_scheme *sc, const char *op);
/* Returns the offset in rank's part at which a share's owner writes the minimum, after the parameters. */
size_t hpc_fresh_told_at(const hpc_scheme *sc, int rank, int share);
int hpc_fresh_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
int hpc_fresh_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
int hpc_fresh_ends_pull(hpc_scheme *sc, int key);
int hpc_fresh_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

#endif
