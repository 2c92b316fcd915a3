/* The layout of an exchange's window, and the number of its signals. All ranks derive the same layout from the plan
 * and the discipline. */
#ifndef HPC_LAYOUT_H
#define HPC_LAYOUT_H

#include "engine/owner/answer.h"
#include "engine/discipline.h"

/* Shares, places and offsets from sc->plan. */
int hpc_layout_make(hpc_scheme *sc, const char *op);
int hpc_layout_slots(hpc_scheme *sc); /* places this rank's receive slots and fills in its part of slot_base */
void hpc_layout_free(hpc_scheme *sc);
/* Takes nbytes at the end of a part, on separate pages: a core's memory can be placed on its node. */
size_t hpc_layout_take(hpc_place *place, size_t nbytes);
/* Takes hpc_place.own in the part of each rank: so many bytes as part says. */
void hpc_layout_take_own(hpc_scheme *sc, size_t (*part)(const hpc_scheme *sc, int rank));

/* Bytes from the start of rank's part to the place where a mean of key is gathered (hpc_mean_use): the slot of its
 * pushes where that is float32. */
size_t hpc_gathered_at(const hpc_scheme *sc, int rank, int key);
/* Bytes from the start of rank's part to its parameters of a key, after so many of its pushes. */
size_t hpc_params_at(const hpc_scheme *sc, int rank, int key, uint64_t pushes);

/* Calls visit for every in-edge whose input comes by receive slots: for the rows of owner, or for inputs of sender (the
 * other one is -1). offset is the distance of the edge's slot 0 from the pair's slot_base. */
typedef void hpc_visit(void *arg, int row, int edge, size_t offset);
int hpc_layout_walk(const hpc_scheme *sc, int owner, int sender, hpc_visit *visit, void *arg);

/* The number of slots that a sender has for an input. */
static inline int hpc_slot_depth(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_ONE_SLOT) ? 1 : sc->layout.depth;
}

/* The number of signals in a part. */
static inline int hpc_signals(const hpc_scheme *sc) {
    return hpc_signal_applied(sc, 0) +
           sc->layout.n_shares * (sc->discipline->traits & (HPC_PULLS | HPC_DECIDES) ? 2 : 1);
}

#endif
