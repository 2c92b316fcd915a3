/* New arguments of the rules: they travel with the next pushes (engine/args.h). */
#include "engine/args.h"

#include <string.h>

#include "exchange/exchange.h"

/* Writes the arguments into the places of a rank that only serves, from which its folds take them. */
static void write_places(hpc_scheme *sc, int key, const double *args) {
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank || share->key != key) continue;
        hpc_core_pause(&sc->cores[share->core]);
        for (int r = 0; r < sc->context->group.size && !sc->own_args; r++)
            for (int slot = 0; slot < sc->layout.depth; slot++)
                memcpy(hpc_own_part(sc) + hpc_args_at(sc, share, r, slot), args, HPC_ARGS_BYTES);
        hpc_core_resume(&sc->cores[share->core]);
    }
}

static int check_new(hpc_scheme *sc, int key, const double *args, const char *op) {
    int status = sc->life.closed ? hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange is closed", op) : HPC_OK;
    if (status == HPC_OK) status = hpc_scheme_check(sc, op);
    if (status == HPC_OK) status = hpc_rule_check_args(sc->rules[key].name, args, op);
    return status == HPC_OK ? hpc_args_check_change(sc, key, op) : status;
}

static void take_new(hpc_scheme *sc, int key, const double *args) {
    int cut_short = sc->keys[key].brings != 0; /* a push that is sent in part keeps the old ones */
    memcpy(sc->rules[key].rule.args + 1, args + 1, HPC_ARGS_BYTES - sizeof *args);
    if (sc->use == NULL) sc->keys[key].news = (unsigned char)(sc->layout.depth + cut_short);
    if (!sc->layout.places[sc->context->group.rank].worker) write_places(sc, key, sc->rules[key].rule.args);
}

int hpc_exchange_set_args(hpc_exchange *ex, int key, const double *args) {
    static const char op[] = "set_args";
    int at = key < 0 ? 0 : key, status = HPC_OK;
    hpc_scheme *sc = key < -1 ? NULL : hpc_scheme_at(ex, &at);
    if (sc == NULL) return hpc_fail_key(ex, key, op);
    HPC_SPAN(sc->context->group.timeline, op, key < 0 ? NULL : sc->plan->keys[at].name);
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: args is NULL", op);
    const int first = key < 0 ? 0 : key, last = key < 0 ? ex->n_keys : key + 1;
    for (int k = first; k < last && status == HPC_OK; k++)
        status = check_new(ex->keys[k].scheme, ex->keys[k].key, args, op);
    for (int k = first; k < last && status == HPC_OK; k++) take_new(ex->keys[k].scheme, ex->keys[k].key, args);
    return status;
}

int hpc_exchange_get_args(hpc_exchange *ex, int key, double *args) {
    static const char op[] = "get_args";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: args is NULL", op);
    memcpy(args, sc->rules[key].rule.args, HPC_ARGS_BYTES);
    for (int s = 0; s < sc->layout.n_shares && !sc->layout.places[sc->context->group.rank].worker; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank || share->key != key) continue;
        hpc_core_pause(&sc->cores[share->core]);
        memcpy(args, hpc_args_of(sc, share, share->args_from, share->args_slot), HPC_ARGS_BYTES);
        hpc_core_resume(&sc->cores[share->core]);
        break;
    }
    args[0] = 0;
    return HPC_OK;
}
