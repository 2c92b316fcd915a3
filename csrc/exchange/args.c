/* New arguments of the rules: they travel with the next pushes (engine/args.h). */
#include "engine/state.h"
#include "exchange/exchange.h"

int hpc_exchange_set_args(hpc_exchange *ex, int key, const double *args) {
    static const char op[] = "set_args";
    int at = key < 0 ? 0 : key, status = HPC_OK;
    hpc_scheme *sc = key < -1 ? NULL : hpc_scheme_at(ex, &at);
    if (sc == NULL) return hpc_fail_key(ex, key, op);
    HPC_SPAN(sc->context->group.timeline, op, key < 0 ? NULL : sc->plan->keys[at].name);
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: args is NULL", op);
    const int first = key < 0 ? 0 : key, last = key < 0 ? ex->n_keys : key + 1;
    for (int k = first; k < last && status == HPC_OK; k++)
        status = hpc_args_check_new(ex->keys[k].scheme, ex->keys[k].key, args, op);
    for (int k = first; k < last && status == HPC_OK; k++) hpc_args_take_new(ex->keys[k].scheme, ex->keys[k].key, args);
    return status;
}

int hpc_exchange_get_args(hpc_exchange *ex, int key, double *args) {
    static const char op[] = "get_args";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: args is NULL", op);
    hpc_args_get(sc, key, args);
    return HPC_OK;
}
