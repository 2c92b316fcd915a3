/* Fold and apply in two calls: what a worker asks of owners that keep a fold. */
#include <math.h>

#include "engine/send.h"
#include "exchange/exchange.h"

/* The check before every call here. *ticket is looked at now: nothing may be left half set by a refused call. */
static int check_call(hpc_exchange *ex, int key, const void *out, const char *op) {
    int status = hpc_worker_check_call(ex, key, op);
    if (status != HPC_OK) return status;
    if (out == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: the place for the result is NULL", op);
    if (ex->discipline->split != NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange was made without split: its pushes are applied at once", op);
}

int hpc_exchange_fold_nothing(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    static const char op[] = "fold";
    HPC_IN_CALL(ex, key, op);
    int status = check_call(ex, key, ticket, op);
    if (status != HPC_OK) return status;
    return hpc_worker_start(ex, key, HPC_PUSH, 1, NULL, &(hpc_limit){timeout, 0}, ticket, op);
}

static int use(hpc_exchange *ex, int key, hpc_use what, double scale, double timeout, uint64_t *ticket,
               const char *op) {
    HPC_IN_CALL(ex, key, op);
    int status = check_call(ex, key, ticket, op);
    if (status == HPC_OK) status = ex->discipline->split->set_use(ex, key, what, scale, op);
    return status == HPC_OK ? hpc_worker_start(ex, key, HPC_PULL, 0, NULL, &(hpc_limit){timeout, 0}, ticket, op)
                            : status;
}

int hpc_exchange_apply(hpc_exchange *ex, int key, double scale, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_APPLY, scale, timeout, ticket, "apply");
}

int hpc_exchange_skip(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_SKIP, 1, timeout, ticket, "skip");
}

int hpc_exchange_set_unit(hpc_exchange *ex, int key, double unit) {
    static const char op[] = "set_unit";
    HPC_IN_CALL(ex, key, op);
    int status = check_call(ex, key, &unit, op);
    if (status != HPC_OK) return status;
    if (!(unit > 0 && isfinite(unit)))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the unit of key %s is %g; it must be positive and finite", op,
                        ex->plan->keys[key].name, unit);
    ex->discipline->split->set_unit(ex, key, unit);
    return HPC_OK;
}

int hpc_exchange_gather(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_GATHER, 1, timeout, ticket, "gather");
}

const float *hpc_exchange_gathered(const hpc_exchange *ex, int key) {
    if (ex == NULL || key < 0 || key >= ex->plan->n_keys || ex->discipline->split == NULL) return NULL;
    const int me = ex->context->group.rank;
    if (!ex->layout.places[me].gives) return NULL;
    return (const float *)(const void *)(hpc_own_part(ex) + hpc_gathered_at(ex, me, key));
}

int hpc_exchange_squares(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_SQUARES, 1, timeout, ticket, "squares");
}

int hpc_exchange_get_squares(hpc_exchange *ex, int key, double *sum) {
    static const char op[] = "get_squares";
    int status = check_call(ex, key, sum, op);
    if (status == HPC_OK) *sum = ex->discipline->split->squares(ex, key);
    return status;
}
