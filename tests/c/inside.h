/* The inside of an exchange that has one configuration, for tests that look at it. */
#ifndef HPC_TEST_INSIDE_H
#define HPC_TEST_INSIDE_H

#include "discipline/quorum_state.h"
#include "exchange/exchange.h"

static inline hpc_scheme *inside(const hpc_exchange *e) {
    return e->schemes[0];
}

/* Gives the folds of this rank's own shares another grace, in seconds. A test so ends a grace, or makes the next one
 * endless, without a look at the clock. */
static inline void inside_set_grace(const hpc_exchange *e, double seconds) {
    const hpc_scheme *sc = inside(e);
    for (int s = 0; s < sc->layout.n_shares; s++) {
        hpc_intake *in = hpc_intake_of(&sc->layout.shares[s]);
        if (in != NULL) atomic_store(&in->grace, seconds);
    }
    hpc_bell_ring(sc->context->group.bell);
}

#endif
