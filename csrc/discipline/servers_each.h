/* ASYNC and SSP(s) on servers, where each update is applied by itself as it comes (servers_each.c); and the worker's
 * side of pulls that need not ask, as its copy is fresh enough (servers_ssp.c). */
#ifndef HPC_EACH_H
#define HPC_EACH_H

#include "discipline/discipline.h"
#include "discipline/clocks.h"

/* Whether updates may be applied by themselves with this configuration. */
int hpc_each_check(const hpc_exchange_config *config);

/* Updates to receivers and peers wait in slots until a worker takes them. SSP(s) needs s + 2 slots. Under ASYNC the
 * slots are the only bound: they set the staleness, 1 at least, as 0 would be BSP. Opens the counts. */
static inline int hpc_slots_open(hpc_scheme *sc, const char *op) {
    if (sc->asked.consistency == HPC_ASYNC) sc->asked.staleness = sc->layout.depth - 2;
    return hpc_open_begun(sc, op);
}
/* HPC_OK if the plan has these slots. where: for the error. */
int hpc_slots_check(const hpc_exchange_config *config, const char *where);

/* ---- servers_ssp.c: slots of SSP where workers pull ---- */

int hpc_fresh_plan(hpc_scheme *sc, const char *op);
int hpc_fresh_open(hpc_scheme *sc, const char *op);
/* The offset in rank's part of the minimum of a share, which its owner tells behind the parameters. */
size_t hpc_fresh_told_at(const hpc_scheme *sc, int rank, int share);
int hpc_fresh_wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op);
int hpc_fresh_note(hpc_scheme *sc, int key, hpc_moment moment, hpc_limit *l, const char *op);
int hpc_fresh_ends_pull(hpc_scheme *sc, int key);
int hpc_fresh_is_late(const hpc_scheme *sc, int rank, int key, uint64_t ticket, uint64_t pushes);

#endif
