/* The arguments of the rules, such as a learning rate. They travel with the pushes.
 *
 * An owner keeps arguments for each of its shares, in one place for each worker and each slot of that worker's pushes.
 * A worker whose arguments have changed puts them into the place of its next push's slot, by the push's lane and before
 * the push. It does so once for every slot. A fold takes the arguments that lie beside its inputs, so arguments change
 * from one step to the next without a wait. On a graph a rank's arguments are for its own parameters: the rank writes
 * them into its own part of the window and sends nothing.
 *
 * Order: the put comes before the push's event (a release), and the core reads the arguments after it polled the event.
 * The worker writes the place again for the next push in this slot, which it makes after the answer to this one. A push
 * that passes other stages before the rule is applied could overtake its arguments. So before such a push the worker
 * waits until the owner has seen them. */
#ifndef HPC_ARGS_H
#define HPC_ARGS_H

#include "engine/scheme.h"

/* Fills this rank's places with the rules' arguments, before any push. */
int hpc_args_open(hpc_scheme *sc, const char *op);
void hpc_args_free(hpc_scheme *sc);

/* ---- the core ---- */

/* Notes that a share's newest arguments are those from rank, in slot. */
static inline void hpc_args_note(hpc_share *share, int rank, int slot) {
    share->args_from = rank, share->args_slot = slot;
}
/* Takes notice of arguments that rank has put. Returns 0 if the event is wrong. */
int hpc_args_came(hpc_core *core, hpc_share *share, int rank, int slot);
/* Returns the arguments that rank gave for its push in slot. */
const double *hpc_args_of(const hpc_scheme *sc, const hpc_share *share, int rank, int slot);
/* Ends the exchange because two ranks gave different values for argument arg of a row's rule, in push number push. */
void hpc_args_differ(hpc_scheme *sc, const hpc_work *w, int arg, uint64_t push, const int ranks[2],
                     const double values[2]);
/* Compares the arguments that ranks gave for push number push, in slot: of all ranks whose updates reach the row, or
 * only of the ranks in its input number only (-1: all). If they differ, returns 0 and ends the exchange. */
int hpc_args_agree(hpc_core *core, const hpc_work *w, int slot, int only, uint64_t push);

/* Returns the offset, in the owner's part, of the arguments that rank gave for its push in slot. */
static inline size_t hpc_args_at(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    size_t at = sc->own_args ? (size_t)share->at : (size_t)share->at * (size_t)sc->context->group.size + (size_t)rank;
    return sc->layout.places[share->owner].args + (at * (size_t)sc->layout.depth + (size_t)slot) * HPC_ARGS_BYTES;
}

/* ---- the worker ---- */

/* Returns HPC_OK if the arguments of key may change, otherwise HPC_ERR_UNSUPPORTED. If a row applies this rank's
 * updates but sends this rank nothing, it may be one step behind. New arguments then need another slot, so the plan
 * needs a depth of 2. */
int hpc_args_check_change(const hpc_scheme *sc, int key, const char *op);

/* With fold and apply as two calls: the arguments of a pull. The core knows the step's number, so args[0] holds a
 * factor instead. The memory is the source of the put until the pull is answered. */
static inline double *hpc_args_of_pull(const hpc_scheme *sc, int key) {
    return sc->rules[key].out[0];
}
double *hpc_args_fill_pull(const hpc_scheme *sc, int key, double factor);

/* Copies the rule's present arguments for the next push of key, which is in slot. */
void hpc_args_begin_push(hpc_scheme *sc, int key, int slot);
/* Sends these arguments to the owners of all shares of key, before any part of the push. After a timeout the next call
 * continues. */
int hpc_args_bring(hpc_scheme *sc, int key, int slot, hpc_limit *l);

#endif
