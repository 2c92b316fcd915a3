/* The prox of a rule: parameters are mapped, in whole rows of the key's matrix, after the update was applied and before
 * they go out. A row whose rule has none is written as it is. A kind calls either of two functions:
 *
 *   hpc_block_finish   after each block that it applies, first to last: also writes the blocks that are final
 *   hpc_prox_row       after it has applied the whole row: the kind writes the parameters then */
#ifndef HPC_ENGINE_PROX_H
#define HPC_ENGINE_PROX_H

#include "engine/owner/row.h"
#include "kernel/rule.h"

/* The array that an update of the whole row is applied to, where the rule is sgd: parameters, or Z. */
static inline float *hpc_row_target(const hpc_work *w) {
    return w->rule->rule.dual ? w->state : w->param;
}

/* Both return nonzero when the exchange has failed, as the prox did or has left a NaN. */
int hpc_prox_row(hpc_core *core, const hpc_work *w, const double *args);
int hpc_block_finish(hpc_core *core, const hpc_work *w, hpc_receivers to, const double *args, size_t from, size_t n);

#endif
