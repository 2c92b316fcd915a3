#include "base/calls.h"

_Alignas(64) _Atomic uint64_t hpc_calls[HPC_CALLS];

void hpc_calls_read(uint64_t counts[HPC_CALLS]) {
    for (int i = 0; i < HPC_CALLS; i++) counts[i] = atomic_load_explicit(&hpc_calls[i], memory_order_relaxed);
}
