/* The layout of an exchange's window (the memory of each rank that all others may write), and the number of its
 * signals. All ranks derive the same layout from the plan and the discipline. */
#ifndef HPC_LAYOUT_H
#define HPC_LAYOUT_H

#include "engine/owner/signals.h"
#include "engine/discipline.h"

/* Finds shares, places and offsets from sc->plan. */
int hpc_layout_make(hpc_scheme *sc, const char *op);
int hpc_layout_slots(hpc_scheme *sc); /* places this rank's receive slots and fills in its part of slot_base */
void hpc_layout_free(hpc_scheme *sc);
/* Allots nbytes at the end of a part, on separate pages, so that a core's memory can be placed on its NUMA node.
 * Returns their offset. */
size_t hpc_layout_take(hpc_place *place, size_t nbytes);
/* Allots the discipline's area (hpc_place.own) in each rank's part. The function part returns how many bytes a rank's
 * area has. */
void hpc_layout_take_own(hpc_scheme *sc, size_t (*part)(const hpc_scheme *sc, int rank));

/* Returns the offset in rank's part where a mean of key is gathered (hpc_mean_use): in the push's slot if the slot is
 * float32, otherwise in hpc_place.dense. */
size_t hpc_gathered_at(const hpc_scheme *sc, int rank, int key);
/* Returns the offset in rank's part of its parameters of key. They move if models rotate, so the offset depends on how
 * often the rank has pushed key. */
size_t hpc_params_at(const hpc_scheme *sc, int rank, int key, uint64_t pushes);

/* Calls visit for every in-edge whose input comes into receive slots: of all rows of owner (then sender is -1), or of
 * all inputs from sender (then owner is -1). offset is the distance of the edge's slot 0 from slot_base[owner * size +
 * sender]. */
typedef void hpc_visit(void *arg, int row, int edge, size_t offset);
int hpc_layout_walk(const hpc_scheme *sc, int owner, int sender, hpc_visit *visit, void *arg);

/* Returns how many slots a sender has for an input. */
static inline int hpc_slot_depth(const hpc_scheme *sc) {
    return (sc->discipline->traits & HPC_ONE_SLOT) ? 1 : sc->layout.depth;
}

/* Returns how many signals a part has. */
static inline int hpc_signals(const hpc_scheme *sc) {
    return hpc_signal_applied(sc, 0) +
           sc->layout.n_shares * (sc->discipline->traits & (HPC_PULLS | HPC_DECIDES) ? 2 : 1);
}

#endif
