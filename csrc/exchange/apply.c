/* Calls for one key: get its gradient memory, start a push or a pull, and wait for a ticket (the number of a push or
 * pull). With fold and apply as two calls, also a worker's requests about a fold. They go to the owners that keep the
 * fold; if the worker holds its update (held.c), to the worker's own scheme. */
#include <math.h>

#include "engine/bytes.h"
#include "engine/layout/layout.h"
#include "engine/worker/send.h"
#include "exchange/exchange.h"

int hpc_exchange_start(hpc_exchange *ex, int key, int flags, const void *src, double timeout, uint64_t *ticket) {
    hpc_scheme *sc = hpc_scheme_of(ex, &key, "push");
    if (sc == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(sc, key, flags == HPC_PULL ? "pull" : flags == HPC_PUSH ? "push" : "push_pull");
    hpc_limit l = {timeout, 0};
    if (sc->held != NULL) return hpc_held_start(sc, key, flags, src, &l, ticket, "push");
    return hpc_worker_start(sc, key, flags, 0, src, &l, ticket, "push");
}

int hpc_exchange_push_pull(hpc_exchange *ex, int key, const void *src, double timeout) {
    static const char op[] = "push_pull";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(sc, key, op);
    hpc_limit l = {timeout, 0};
    uint64_t ticket = 0;
    int status = sc->held != NULL ? hpc_held_start(sc, key, HPC_PUSH | HPC_PULL, src, &l, &ticket, op)
                                  : hpc_worker_start(sc, key, HPC_PUSH | HPC_PULL, 0, src, &l, &ticket, op);
    if (status != HPC_OK) return status;
    if (!hpc_ticket_is_done(sc, key, ticket))
        status = hpc_ticket_wait(sc, key, ticket, l.deadline == 0 ? timeout : hpc_limit_left(sc, &l), op);
    return status == HPC_OK ? hpc_ticket_end(sc, key, ticket, op) : status;
}

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

/* ---- in two calls ---- */

/* Makes the checks that every call of this file begins with. Also checks that ticket is not NULL, so that a refused
 * call changes nothing. */
static int check_call(hpc_scheme *sc, int key, const void *out, const char *op) {
    int status = hpc_worker_check_call(sc, key, op);
    if (status != HPC_OK) return status;
    if (out == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: the place for the result is NULL", op);
    if (sc->use != NULL || sc->held != NULL) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the exchange was made without split: its pushes are applied at once", op);
}

int hpc_exchange_fold_nothing(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    static const char op[] = "fold";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(sc, key, op);
    int status = check_call(sc, key, ticket, op);
    if (status != HPC_OK) return status;
    hpc_limit l = {timeout, 0};
    return sc->held != NULL ? hpc_held_fold(sc, key, 1, NULL, &l, ticket, op)
                            : hpc_worker_start(sc, key, HPC_PUSH, HPC_PUSH_EMPTY, NULL, &l, ticket, op);
}

static int use(hpc_exchange *ex, int key, hpc_use what, double scale, double timeout, uint64_t *ticket,
               const char *op) {
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(sc, key, op);
    hpc_limit l = {timeout, 0};
    int status = check_call(sc, key, ticket, op);
    if (status == HPC_OK && sc->held != NULL) return hpc_held_use(sc, key, what, scale, &l, ticket, op);
    if (status == HPC_OK) status = sc->use->set_use(sc, key, what, scale, op);
    return status == HPC_OK ? hpc_worker_start(sc, key, HPC_PULL, 0, NULL, &l, ticket, op) : status;
}

int hpc_exchange_apply(hpc_exchange *ex, int key, double scale, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_APPLY, scale, timeout, ticket, "apply");
}

int hpc_exchange_skip(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_SKIP, 1, timeout, ticket, "skip");
}

int hpc_exchange_set_unit(hpc_exchange *ex, int key, double unit) {
    static const char op[] = "set_unit";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(sc, key, op);
    int status = check_call(sc, key, &unit, op);
    if (status != HPC_OK) return status;
    if (!(unit > 0 && isfinite(unit)))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: the unit of key %s is %g; it must be positive and finite", op,
                        sc->plan->keys[key].name, unit);
    if (sc->held == NULL && hpc_key_has_pieces(sc, key)) sc->pieces[key].unit = unit;
    return HPC_OK;
}

int hpc_exchange_gather(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_GATHER, 1, timeout, ticket, "gather");
}

const float *hpc_exchange_gathered(const hpc_exchange *ex, int key) {
    const hpc_scheme *sc = hpc_scheme_at(ex, &key);
    if (sc != NULL && sc->held != NULL) return hpc_held_gathered(sc, key);
    if (sc == NULL || sc->use == NULL) return NULL;
    const int me = sc->context->group.rank;
    if (sc->gathered != NULL) return sc->gathered[key];
    if (sc->layout.places[me].gradients == HPC_NOWHERE) return NULL;
    return (const float *)(const void *)(hpc_own_part(sc) + hpc_gathered_at(sc, me, key));
}

int hpc_exchange_squares(hpc_exchange *ex, int key, double timeout, uint64_t *ticket) {
    return use(ex, key, HPC_USE_SQUARES, 1, timeout, ticket, "squares");
}

int hpc_exchange_get_squares(hpc_exchange *ex, int key, double *sum) {
    static const char op[] = "get_squares";
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    int status = check_call(sc, key, sum, op);
    if (status == HPC_OK) *sum = sc->held != NULL ? hpc_held_squares(sc, key) : sc->use->squares(sc, key);
    return status;
}
