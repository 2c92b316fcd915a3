/* Parameters that are encoded on their way to workers. If an owner maps a worker's memory, it writes rounded values
 * into the worker's params. Any other owner puts the encoded bytes into a separate place in the worker's part, and the
 * worker decodes them. So all workers' params have the same bits, whatever the transport.
 *
 * Order: the owner's puts come before its answer (a release). The worker decodes after all answers (an acquire), in the
 * call that finds its newest push or pull done. The owner's next puts come after the worker's next push (under ASYNC:
 * its next pull), which the same thread makes after it has decoded. While a newer push or pull is pending nothing is
 * decoded, because its puts may be arriving; the end of the newer one decodes. */
#ifndef HPC_PARAMS_H
#define HPC_PARAMS_H

#include "engine/scheme.h"

/* hpc_params_take_place, called after hpc_layout_make, finds the keys and rows that come encoded, and allots space for
 * them in this rank's part. hpc_params_learn then tells all ranks the offset of that space; it is collective if
 * sc->layout.encodes. */
int hpc_params_take_place(hpc_scheme *sc, const char *op);
int hpc_params_learn(hpc_scheme *sc, double deadline);
/* Returns the offset of a row's encoded parameters in rank's part. */
size_t hpc_params_encoded_at(const hpc_scheme *sc, int rank, const hpc_row *row);

/* Returns the ticket (number of a wait) of the last push of key; with HPC_PULLS, of the last pull of key. */
uint64_t hpc_params_newest(const hpc_scheme *sc, int key);
/* Called when a ticket of key is done: decodes its parameters, unless they are decoded or a newer ticket is pending. */
void hpc_params_came(hpc_scheme *sc, int key, uint64_t ticket);
/* Returns whether the ticket's parameters are decoded, or need no decoding. */
static inline int hpc_params_are_decoded(const hpc_scheme *sc, int key, uint64_t ticket) {
    return sc->keys[key].encoded.n_rows == 0 || sc->keys[key].encoded.decoded == ticket;
}
/* Decodes the parameters of all keys, which owners have put while no rank had a call pending. */
void hpc_params_were_sent(hpc_scheme *sc);

#endif
