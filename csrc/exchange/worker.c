/* The calls of a trainer on a gradient, and on a ticket. */
#include "exchange/exchange.h"

int hpc_exchange_gradient(hpc_exchange *ex, int key, double timeout, void **gradient) {
    static const char op[] = "gradient";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(sc, key, op);
    return hpc_worker_gradient(sc, key, timeout, gradient, op);
}

int hpc_exchange_ready(hpc_exchange *ex, int key) {
    hpc_scheme *sc = hpc_scheme_of(ex, &key, "ready");
    return sc == NULL ? HPC_ERR_INVALID : hpc_worker_ready(sc, key, "ready");
}

float *hpc_exchange_params(const hpc_exchange *ex, int key) {
    const hpc_scheme *sc = hpc_scheme_at(ex, &key);
    return sc == NULL ? NULL : hpc_worker_params(sc, key);
}

int hpc_exchange_test(hpc_exchange *ex, int key, uint64_t ticket) {
    static const char op[] = "test";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    int status = hpc_worker_check_call(sc, key, op);
    return status == HPC_OK ? hpc_ticket_test(sc, key, ticket, op) : status;
}

int hpc_exchange_wait(hpc_exchange *ex, int key, uint64_t ticket, double timeout) {
    static const char op[] = "wait";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(sc, key, op);
    int status = hpc_worker_check_call(sc, key, op);
    if (status == HPC_OK) status = hpc_ticket_wait(sc, key, ticket, timeout, op);
    return status == HPC_OK ? hpc_ticket_end(sc, key, ticket, op) : status;
}
