/* The arguments of the rules, which travel with the pushes.
 *
 * An owner has a place for the arguments of each of its shares, by worker and by slot of the worker's pushes. A worker
 * whose arguments have changed puts them into the place of its next push's slot before it sends that push, by the same
 * lane, and so for every slot once. A fold takes the arguments that lie beside its inputs. So they change from one step
 * to the next without a wait. On a graph a rank's arguments are for its own parameters: it writes them into its own
 * part, and nothing is sent.
 *
 * Order: the put comes before the push's event (a release); the core reads after it. The place is written again for the
 * push that uses the slot next, after this one was answered. Where a push passes other stages before the rule is
 * applied, the worker waits before it pushes until the owner has seen the arguments: its push could overtake them. */
#ifndef HPC_ARGS_H
#define HPC_ARGS_H

#include "engine/scheme.h"

int hpc_args_open(hpc_scheme *sc, const char *op); /* fills this rank's places, before any push */
void hpc_args_free(hpc_scheme *sc);

/* ---- the core ---- */

/* The last new arguments of a share are rank's, in a slot. */
static inline void hpc_args_note(hpc_share *share, int rank, int slot) {
    share->args_from = rank, share->args_slot = slot;
}
/* Arguments of rank have come. 0: the event is wrong. */
int hpc_args_came(hpc_core *core, hpc_share *share, int rank, int slot);
/* The arguments of rank for its push in a slot. */
const double *hpc_args_of(const hpc_scheme *sc, const hpc_share *share, int rank, int slot);
/* Ends the exchange: for argument arg of a row's rule, two ranks have given different values with push number push. */
void hpc_args_differ(hpc_scheme *sc, const hpc_work *w, int arg, uint64_t push, const int ranks[2],
                     const double values[2]);
/* Whether all ranks whose push number push is in a fold of slot (or in one input of it, only; -1: in all) gave the same
 * arguments; if not, the exchange fails. */
int hpc_args_agree(hpc_core *core, const hpc_work *w, int slot, int only, uint64_t push);

/* The offset in its owner's part of the arguments of rank for its push in a slot. */
static inline size_t hpc_args_at(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    size_t at = sc->own_args ? (size_t)share->at : (size_t)share->at * (size_t)sc->context->group.size + (size_t)rank;
    return sc->layout.places[share->owner].args + (at * (size_t)sc->layout.depth + (size_t)slot) * HPC_ARGS_BYTES;
}

/* ---- the worker ---- */

/* HPC_OK if the arguments of key may change. A row that applies this rank's updates, but sends this rank nothing, may
 * be one step behind: new arguments then need another slot, so a depth of 2. */
int hpc_args_check_change(const hpc_scheme *sc, int key, const char *op);

/* Fold and apply in two calls: the arguments of a pull, with a factor in the place of the step's number, which is the
 * core's. They are sent from there until the pull is answered. */
static inline double *hpc_args_of_pull(const hpc_scheme *sc, int key) {
    return sc->rules[key].out[0];
}
double *hpc_args_fill_pull(const hpc_scheme *sc, int key, double factor);

/* Takes the arguments for the next push of key, which is in slot. */
void hpc_args_begin_push(hpc_scheme *sc, int key, int slot);
/* Sends them to the owners of all shares of key, before any of the push; after a timeout the next call goes on. */
int hpc_args_bring(hpc_scheme *sc, int key, int slot, hpc_limit *l);

#endif
