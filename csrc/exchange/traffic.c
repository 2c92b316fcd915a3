/* Counts of what this rank has sent: pushes are counted by the thread that pushes, all else by the core that sends it.
 */
#include "engine/engine.h"
#include "exchange/exchange.h"

uint64_t hpc_sent_to(const hpc_exchange *ex, int rank, hpc_traffic_stage stage) {
    uint64_t bytes = 0;
    if (rank == ex->context->group.rank) return 0;
    if (stage == HPC_TRAFFIC_PUSH) return atomic_load_explicit(&ex->peers.pushed[rank], memory_order_relaxed);
    for (int c = 0; c < ex->n_own_cores; c++)
        bytes += atomic_load_explicit(hpc_core_sent(&ex->cores[c], rank, stage), memory_order_relaxed);
    return bytes;
}

uint64_t hpc_sent_to_rows(const hpc_exchange *ex, int rank) {
    return hpc_sent_to(ex, rank, HPC_TRAFFIC_PUSH) + hpc_sent_to(ex, rank, HPC_TRAFFIC_FORWARD) +
           hpc_sent_to(ex, rank, HPC_TRAFFIC_RELAY);
}

/* While no core is at work. */
void hpc_forget_traffic(hpc_exchange *ex) {
    for (int r = 0; r < ex->context->group.size; r++) {
        atomic_store_explicit(&ex->peers.received[r], 0, memory_order_relaxed);
        for (int c = 0; c < ex->n_own_cores; c++)
            for (int s = 0; s < HPC_TRAFFIC_STAGES; s++)
                atomic_store_explicit(hpc_core_sent(&ex->cores[c], r, (hpc_traffic_stage)s), 0, memory_order_relaxed);
    }
}

int hpc_exchange_get_traffic(const hpc_exchange *ex, hpc_traffic *traffic, int cap) {
    int n = 0;
    if (ex == NULL || cap < 0 || (traffic == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or traffic is NULL, or cap is negative");
    for (int r = 0; r < ex->context->group.size; r++)
        for (int s = 0; s < HPC_TRAFFIC_STAGES; s++) {
            const uint64_t bytes = hpc_sent_to(ex, r, (hpc_traffic_stage)s);
            if (bytes == 0) continue;
            if (n < cap) traffic[n] = (hpc_traffic){r, (hpc_traffic_stage)s, ex->context->transports[r]->name, bytes};
            n++;
        }
    return n;
}
