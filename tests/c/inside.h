/* The inside of an exchange that has one configuration, for tests that look at it. */
#ifndef HPC_TEST_INSIDE_H
#define HPC_TEST_INSIDE_H

#include "exchange/exchange.h"

static inline hpc_engine *inside(const hpc_exchange *e) {
    return e->engines[0];
}

#endif
