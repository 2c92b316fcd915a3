/* The prox of a rule maps parameters in whole rows of the key's matrix, after the update is applied and before they are
 * sent. Without a prox, a row is written as it is. A kind calls one of two functions:
 *
 *   hpc_block_finish   after each block that the kind applies, in order; also writes the blocks that are final
 *   hpc_prox_row       after it has applied the whole row; the kind then writes the parameters */
#ifndef HPC_ENGINE_PROX_H
#define HPC_ENGINE_PROX_H

#include "engine/owner/row.h"
#include "kernel/rule.h"

/* Returns the array that sgd changes: the parameters, or Z if the rule has a dual. */
static inline float *hpc_row_target(const hpc_work *w) {
    return w->rule->rule.dual ? w->state : w->param;
}

/* Both end the exchange and return nonzero if the prox fails or leaves a NaN. */
int hpc_prox_row(hpc_core *core, const hpc_work *w, const double *args);
int hpc_block_finish(hpc_core *core, const hpc_work *w, hpc_receivers to, const double *args, size_t from, size_t n);

#endif
