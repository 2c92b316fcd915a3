/* New arguments of the rules: they travel with the next pushes (engine/args.h). */
#include "engine/args.h"

#include <string.h>

#include "exchange/exchange.h"

static int check_key(const hpc_exchange *ex, int key, int lowest, const double *args, const char *op) {
    if (ex == NULL || args == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %s is NULL", op, ex == NULL ? "exchange" : "args");
    if (key >= lowest && key < ex->plan->n_keys) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: key %d is out of range; the exchange has %d", op, key, ex->plan->n_keys);
}

/* On a rank that only serves: writes the arguments into its places, from where its folds take them. */
static void write_places(hpc_exchange *ex, int key, const double *args) {
    for (int s = 0; s < ex->layout.n_shares; s++) {
        const hpc_share *share = &ex->layout.shares[s];
        if (share->owner != ex->context->group.rank || share->key != key) continue;
        hpc_core_pause(&ex->cores[share->core]);
        for (int r = 0; r < ex->context->group.size && !ex->own_args; r++)
            for (int slot = 0; slot < ex->layout.depth; slot++)
                memcpy(hpc_own_part(ex) + hpc_args_at(ex, share, r, slot), args, HPC_ARGS_BYTES);
        hpc_core_resume(&ex->cores[share->core]);
    }
}

int hpc_exchange_set_args(hpc_exchange *ex, int key, const double *args) {
    static const char op[] = "set_args";
    HPC_IN_CALL(ex, key, op);
    int status = check_key(ex, key, -1, args, op);
    if (status == HPC_OK && ex->life.closed) status = hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange is closed", op);
    if (status == HPC_OK) status = hpc_exchange_check(ex, op);
    if (status != HPC_OK) return status;
    int first = key < 0 ? 0 : key, last = key < 0 ? ex->plan->n_keys : key + 1;
    for (int k = first; k < last && status == HPC_OK; k++) {
        status = hpc_rule_check_args(ex->rules[k].name, args, op);
        if (status == HPC_OK) status = hpc_args_check_change(ex, k, op);
    }
    for (int k = first; k < last && status == HPC_OK; k++) {
        int cut_short = ex->keys[k].brings != 0; /* a push that is sent in part keeps the old ones */
        memcpy(ex->rules[k].rule.args + 1, args + 1, HPC_ARGS_BYTES - sizeof *args);
        if (ex->discipline->split == NULL) ex->keys[k].news = (unsigned char)(ex->layout.depth + cut_short);
        if (!ex->layout.places[ex->context->group.rank].worker) write_places(ex, k, ex->rules[k].rule.args);
    }
    return status;
}

int hpc_exchange_get_args(hpc_exchange *ex, int key, double *args) {
    static const char op[] = "get_args";
    int status = check_key(ex, key, 0, args, op);
    if (status != HPC_OK) return status;
    memcpy(args, ex->rules[key].rule.args, HPC_ARGS_BYTES);
    for (int s = 0; s < ex->layout.n_shares && !ex->layout.places[ex->context->group.rank].worker; s++) {
        const hpc_share *share = &ex->layout.shares[s];
        if (share->owner != ex->context->group.rank || share->key != key) continue;
        hpc_core_pause(&ex->cores[share->core]);
        memcpy(args, hpc_args_of(ex, share, share->args_from, share->args_slot), HPC_ARGS_BYTES);
        hpc_core_resume(&ex->cores[share->core]);
        break;
    }
    args[0] = 0;
    return HPC_OK;
}
