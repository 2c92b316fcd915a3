/* Calls that start a push or a pull; and fold and apply in two calls: what a worker asks of owners that keep a fold, or
 * of its own engine, where that holds the update (held.c). */
#include <math.h>

#include "engine/send.h"
#include "exchange/exchange.h"

int hpc_exchange_start(hpc_exchange *ex, int key, int flags, const void *src, double timeout, uint64_t *ticket) {
    hpc_engine *en = hpc_engine_of(ex, &key, "push");
    if (en == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(en, key, flags == HPC_PULL ? "pull" : flags == HPC_PUSH ? "push" : "push_pull");
    hpc_limit l = {timeout, 0};
    if (en->held != NULL) return hpc_held_start(en, key, flags, src, &l, ticket, "push");
    return hpc_worker_start(en, key, flags, 0, src, &l, ticket, "push");
}

int hpc_exchange_push_pull(hpc_exchange *ex, int key, const void *src, double timeout) {
    static const char op[] = "push_pull";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(en, key, op);
    hpc_limit l = {timeout, 0};
    uint64_t ticket = 0;
    int status = en->held != NULL ? hpc_held_start(en, key, HPC_PUSH | HPC_PULL, src, &l, &ticket, op)
                                  : hpc_worker_start(en, key, HPC_PUSH | HPC_PULL, 0, src, &l, &ticket, op);
    if (status != HPC_OK) return status;
    if (!hpc_ticket_is_done(en, key, ticket))
        status = hpc_ticket_wait(en, key, ticket, l.deadline == 0 ? timeout : hpc_limit_left(en, &l), op);
    return status == HPC_OK ? hpc_ticket_end(en, key, ticket, op) : status;
}

/* ---- in two calls ---- */

/* The check before every call here. *ticket is looked at now: nothing may be left half set by a refused call. */
static int check_call(hpc_engine *en, int key, const void *out, const char *op) {
    int status = hpc_worker_check_call(en, key, op);
    if (status != HPC_OK) return status;
    if (out == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: the place for the result is NULL", op);
    if (en->use != NULL || en->held != NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange was made without split: its pushes are applied at once", op);
}

int hpc_exchange_fold_nothing(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    static const char op[] = "fold";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(en, key, op);
    int status = check_call(en, key, ticket, op);
    if (status != HPC_OK) return status;
    hpc_limit l = {timeout, 0};
    return en->held != NULL ? hpc_held_fold(en, key, 1, NULL, &l, ticket, op)
                            : hpc_worker_start(en, key, HPC_PUSH, HPC_PUSH_EMPTY, NULL, &l, ticket, op);
}

static int use(hpc_exchange *ex, int key, hpc_use what, double scale, double timeout, uint64_t *ticket,
               const char *op) {
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(en, key, op);
    hpc_limit l = {timeout, 0};
    int status = check_call(en, key, ticket, op);
    if (status == HPC_OK && en->held != NULL) return hpc_held_use(en, key, what, scale, &l, ticket, op);
    if (status == HPC_OK) status = en->use->set_use(en, key, what, scale, op);
    return status == HPC_OK ? hpc_worker_start(en, key, HPC_PULL, 0, NULL, &l, ticket, op) : status;
}

int hpc_exchange_apply(hpc_exchange *ex, int key, double scale, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_APPLY, scale, timeout, ticket, "apply");
}

int hpc_exchange_skip(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_SKIP, 1, timeout, ticket, "skip");
}

int hpc_exchange_set_unit(hpc_exchange *ex, int key, double unit) {
    static const char op[] = "set_unit";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(en, key, op);
    int status = check_call(en, key, &unit, op);
    if (status != HPC_OK) return status;
    if (!(unit > 0 && isfinite(unit)))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the unit of key %s is %g; it must be positive and finite", op,
                        en->plan->keys[key].name, unit);
    if (en->held == NULL && hpc_key_has_pieces(en, key)) en->pieces[key].unit = unit;
    return HPC_OK;
}

int hpc_exchange_gather(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_GATHER, 1, timeout, ticket, "gather");
}

const float *hpc_exchange_gathered(const hpc_exchange *ex, int key) {
    const hpc_engine *en = hpc_engine_at(ex, &key);
    if (en != NULL && en->held != NULL) return hpc_held_gathered(en, key);
    if (en == NULL || en->use == NULL) return NULL;
    const int me = en->context->group.rank;
    if (en->gathered != NULL) return en->gathered[key];
    if (en->layout.places[me].gradients == HPC_NOWHERE) return NULL;
    return (const float *)(const void *)(hpc_own_part(en) + hpc_gathered_at(en, me, key));
}

int hpc_exchange_squares(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_SQUARES, 1, timeout, ticket, "squares");
}

int hpc_exchange_get_squares(hpc_exchange *ex, int key, double *sum) {
    static const char op[] = "get_squares";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    int status = check_call(en, key, sum, op);
    if (status == HPC_OK) *sum = en->held != NULL ? hpc_held_squares(en, key) : en->use->squares(en, key);
    return status;
}
