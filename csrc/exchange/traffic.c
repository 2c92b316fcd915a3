/* Counts of bytes that this rank has sent: the thread that pushes counts pushes, and each core its own sends. */
#include "engine/scheme.h"
#include "exchange/exchange.h"

uint64_t hpc_sent_to(const hpc_scheme *sc, int rank, hpc_traffic_stage stage) {
    uint64_t bytes = 0;
    if (rank == sc->context->group.rank) return 0;
    if (stage == HPC_TRAFFIC_PUSH) return atomic_load_explicit(&sc->peers.pushed[rank], memory_order_relaxed);
    for (int c = 0; c < sc->n_own_cores; c++)
        bytes += atomic_load_explicit(hpc_core_sent(&sc->cores[c], rank, stage), memory_order_relaxed);
    return bytes;
}

uint64_t hpc_sent_to_rows(const hpc_scheme *sc, int rank) {
    return hpc_sent_to(sc, rank, HPC_TRAFFIC_PUSH) + hpc_sent_to(sc, rank, HPC_TRAFFIC_FORWARD) +
           hpc_sent_to(sc, rank, HPC_TRAFFIC_RELAY);
}

/* Sets the counts to 0 while no core is at work. */
void hpc_forget_traffic(hpc_scheme *sc) {
    for (int r = 0; r < sc->context->group.size; r++) {
        atomic_store_explicit(&sc->peers.received[r], 0, memory_order_relaxed);
        for (int c = 0; c < sc->n_own_cores; c++)
            for (int s = 0; s < HPC_TRAFFIC_STAGES; s++)
                atomic_store_explicit(hpc_core_sent(&sc->cores[c], r, (hpc_traffic_stage)s), 0, memory_order_relaxed);
    }
    for (int c = 0; c < sc->n_own_cores; c++)
        for (int k = 0; k < sc->plan->n_keys; k++)
            atomic_store_explicit(&sc->cores[c].sent_of_key[k], 0, memory_order_relaxed);
}

int hpc_exchange_get_traffic(const hpc_exchange *ex, hpc_traffic *traffic, int cap) {
    int n = 0;
    if (ex == NULL || cap < 0 || (traffic == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or traffic is NULL, or cap is negative");
    const hpc_context *c = ex->schemes[0]->context;
    for (int r = 0; r < c->group.size; r++)
        for (int s = 0; s < HPC_TRAFFIC_STAGES; s++) {
            uint64_t bytes = 0;
            for (int i = 0; i < ex->n_schemes; i++) bytes += hpc_sent_to(ex->schemes[i], r, (hpc_traffic_stage)s);
            if (bytes == 0) continue;
            if (n < cap) traffic[n] = (hpc_traffic){r, (hpc_traffic_stage)s, c->transports[r]->name, bytes};
            n++;
        }
    return n;
}

uint64_t hpc_sent_of_key(const hpc_scheme *sc, int key) {
    uint64_t bytes = atomic_load_explicit(&sc->peers.pushed_of_key[key], memory_order_relaxed);
    for (int c = 0; c < sc->n_own_cores; c++)
        bytes += atomic_load_explicit(&sc->cores[c].sent_of_key[key], memory_order_relaxed);
    return bytes;
}
