/* The arguments of the rules, such as a learning rate. They travel with the pushes.
 *
 * For each of its shares an owner has one place for arguments for each worker and each slot of that worker's pushes.
 * When a worker's arguments have changed, the worker puts the new ones into the place of its next push's slot. The put
 * goes by the push's lane, before the push. The worker does so once for every slot. A fold uses the arguments in the
 * places of its inputs' slots, so arguments change from one step to the next without a wait. On a graph a rank's
 * arguments are for its own parameters: the rank writes them into its own part of the window and sends nothing.
 *
 * Order: the put comes before the push's event (a release), and the core reads the arguments after it polled the event.
 * The worker writes the place again only for its next push in this slot, after this push is answered. A push that
 * passes other stages before the rule is applied could overtake its arguments. So before such a push the worker waits
 * until the owner has seen the arguments. */
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
/* Handles HPC_OP_ARGS: rank has put new arguments for its push in slot. Returns 0 if the event is wrong, otherwise
 * 1. */
int hpc_args_came(hpc_core *core, hpc_share *share, int rank, int slot);
/* Returns the arguments that rank gave for its push in slot. */
const double *hpc_args_of(const hpc_scheme *sc, const hpc_share *share, int rank, int slot);
/* Ends the exchange with an error: two ranks gave different values for argument number arg of a row's rule, in the push
 * whose number is push. */
void hpc_args_differ(hpc_scheme *sc, const hpc_work *w, int arg, uint64_t push, const int ranks[2],
                     const double values[2]);
/* Compares the arguments that ranks gave for one push, whose number is push and which is in slot. Only ranks whose
 * updates come in the row's input number only are compared; if only is -1, all ranks whose updates reach the row.
 * Returns 1 if the arguments agree; otherwise ends the exchange and returns 0. */
int hpc_args_agree(hpc_core *core, const hpc_work *w, int slot, int only, uint64_t push);

/* Returns the offset, in the owner's part of the window, of the arguments that rank gave for its push in slot. */
static inline size_t hpc_args_at(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    size_t at = sc->own_args ? (size_t)share->at : (size_t)share->at * (size_t)sc->context->group.size + (size_t)rank;
    return sc->layout.places[share->owner].args + (at * (size_t)sc->layout.depth + (size_t)slot) * HPC_ARGS_BYTES;
}

/* ---- the worker ---- */

/* Returns HPC_OK if the arguments of key may change, otherwise HPC_ERR_UNSUPPORTED. They may not change with a plan of
 * depth 1 if a row applies this rank's updates but sends this rank nothing: such a row may be one step behind, so new
 * arguments need a second slot. */
int hpc_args_check_change(const hpc_scheme *sc, int key, const char *op);

/* Returns the array of arguments that a pull sends, if fold and apply are two calls. The core knows the step's number,
 * so args[0] holds a factor instead. The array must not change until the pull is answered, since a put may still read
 * it. */
static inline double *hpc_args_of_pull(const hpc_scheme *sc, int key) {
    return sc->rules[key].out[0];
}
double *hpc_args_fill_pull(const hpc_scheme *sc, int key, double factor);

/* Copies the rule's present arguments for the next push of key, which is in slot. */
void hpc_args_begin_push(hpc_scheme *sc, int key, int slot);
/* Sends the arguments copied by hpc_args_begin_push to the owners of all shares of key. Called before any part of the
 * push is sent. After a timeout the next call continues where this one stopped. */
int hpc_args_bring(hpc_scheme *sc, int key, int slot, hpc_limit *l);

#endif
