/* Parameters that travel encoded. An owner that maps a worker's memory writes rounded values into its params. Any other
 * owner puts the bytes of its encoding into a separate place in the worker's part, and the worker decodes them. So
 * params have the same bits at all workers, by whatever transport they came.
 *
 * Order: the owner's puts come before its answer (a release), and the worker decodes after all answers (an acquire), in
 * the call that finds its newest push or pull done. The next puts come after the worker's next push, or pull under
 * ASYNC: the same thread makes it after it has decoded. While a newer one is sent or pending nothing is decoded, for
 * its puts may be coming; its own end decodes. */
#ifndef HPC_PARAMS_H
#define HPC_PARAMS_H

#include "engine/scheme.h"

/* After hpc_layout_make: finds which keys and rows come encoded, and takes this rank's place for them. hpc_params_learn
 * then tells all ranks where it is; it is collective where sc->layout.encodes. */
int hpc_params_take_place(hpc_scheme *sc, const char *op);
int hpc_params_learn(hpc_scheme *sc, double deadline);
/* Bytes from the start of rank's part to the encoded parameters of a row. */
size_t hpc_params_encoded_at(const hpc_scheme *sc, int rank, const hpc_row *row);

/* The ticket of the last push of key, or of the last pull where pulls ask for parameters. */
uint64_t hpc_params_newest(const hpc_scheme *sc, int key);
/* A ticket of key is done: decodes its parameters, unless a newer one is pending or they were decoded before. */
void hpc_params_came(hpc_scheme *sc, int key, uint64_t ticket);
/* Whether they are, or come as they are. */
static inline int hpc_params_are_decoded(const hpc_scheme *sc, int key, uint64_t ticket) {
    return sc->keys[key].encoded.n_rows == 0 || sc->keys[key].encoded.decoded == ticket;
}
/* Owners have put parameters of all keys, while no rank has a call pending: decodes them. */
void hpc_params_were_sent(hpc_scheme *sc);

#endif
