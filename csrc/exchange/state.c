/* The state of an exchange, which a trainer reads and sets while it has no call pending. For checkpoints: the rows that
 * this rank owns, and its encoders. For rules: their arguments, which travel with the next pushes (engine/args.h).
 * After a loss of ranks, when this rank's cores have stopped: the versions of its copies of parameters, and its updates
 * that perhaps no row has applied. */
#include "engine/state.h"

#include "discipline/clocks.h"
#include "engine/params.h"
#include "exchange/exchange.h"

/* ---- rows ---- */

/* Returns whether a rank is lost, so that pending pushes never end; also after a revoke, and if a rank that left has
 * closed the exchange but not its context. If so, stops this rank's cores. From then on rows do not change, and can be
 * saved for an exchange of the surviving ranks. */
static int is_over(hpc_scheme *sc) {
    const hpc_group *g = &sc->context->group;
    int lost = atomic_load(&g->revoked);
    for (int r = 0; r < g->size; r++) lost |= hpc_group_has_lost(g, r);
    if (!lost || hpc_group_usable(g, "rows") != HPC_OK) return 0;
    hpc_cores_stop(sc);
    return 1;
}

int hpc_scheme_under_way(hpc_scheme *sc) {
    return is_over(sc) ? -1 : hpc_worker_under_way(sc);
}

/* Returns HPC_OK if this rank owns the row and has no call pending. */
static int check_row(hpc_scheme *sc, int row, const char *op) {
    if (sc == NULL) return HPC_ERR_INVALID;
    if (!hpc_owns_row(sc, row))
        hpc_fail(HPC_ERR_INVALID, op, "%s: row %d of key %s is owned by rank %d, not by rank %d", op, row,
                 sc->plan->keys[sc->plan->rows[row].key].name, sc->plan->rows[row].owner, sc->context->group.rank);
    else if (is_over(sc) || (hpc_scheme_check(sc, op) == HPC_OK && hpc_worker_check_idle(sc, op) == HPC_OK))
        return HPC_OK;
    return HPC_ERR_INVALID;
}

int hpc_exchange_get_row(hpc_exchange *ex, int row, uint64_t *step, float *params, float *state) {
    hpc_scheme *sc = hpc_scheme_of_row(ex, &row, "get_row");
    const int status = check_row(sc, row, "get_row");
    if (status == HPC_OK) hpc_row_save(sc, row, step, params, state);
    return status;
}

int hpc_exchange_set_row(hpc_exchange *ex, int row, uint64_t step, const float *params, const float *state) {
    hpc_scheme *sc = hpc_scheme_of_row(ex, &row, "set_row");
    const int status = check_row(sc, row, "set_row");
    if (status == HPC_OK) hpc_row_restore(sc, row, step, params, state);
    return status;
}

int hpc_scheme_folded(hpc_scheme *sc, int rank, uint64_t *pushes) {
    static const char op[] = "get_folded";
    if (rank < 0 || rank >= sc->context->group.size)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is out of range; there are %d", op, rank,
                        sc->context->group.size);
    is_over(sc); /* if a rank is lost, this stops the cores, and so the counts */
    hpc_clocks_raise_begun(sc, rank, pushes);
    return HPC_OK;
}

/* ---- encoders ---- */

/* Returns the scheme of a key, and changes *key and *row (-1: no row) to their numbers in that scheme. If this rank has
 * no such row of the key, records an error and returns NULL. */
static hpc_scheme *scheme_of(const hpc_exchange *ex, int *key, int *row, const char *op) {
    const int asked = *row;
    hpc_scheme *sc = hpc_scheme_of(ex, key, op);
    if (sc == NULL || asked == -1) return sc;
    if (hpc_scheme_of_row(ex, row, op) == sc && hpc_owns_row(sc, *row) && sc->plan->rows[*row].key == *key) return sc;
    hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is no row of key %s that rank %d owns", op, asked,
             sc->plan->keys[*key].name, sc->context->group.rank);
    return NULL;
}

int64_t hpc_exchange_encoder_values(const hpc_exchange *ex, int key, int row) {
    const hpc_scheme *sc = scheme_of(ex, &key, &row, "encoder_values");
    return sc == NULL ? HPC_ERR_INVALID : hpc_encoder_values(sc, key, row);
}

/* Returns HPC_OK if an encoder of the key may be read or set now. */
static int check_encoder(hpc_scheme *sc, int key, const char *op) {
    int status = HPC_OK;
    if (sc == NULL) return HPC_ERR_INVALID;
    /* The pending call may have ended by now. */
    if (hpc_scheme_under_way(sc) >= 0) status = hpc_worker_check_idle(sc, op);
    return status == HPC_OK ? hpc_scheme_hear(sc, key) : status;
}

int hpc_exchange_get_encoder(hpc_exchange *ex, int key, int row, uint64_t *made, float *values) {
    static const char op[] = "get_encoder";
    hpc_scheme *sc = scheme_of(ex, &key, &row, op);
    const int status = check_encoder(sc, key, op);
    return status == HPC_OK ? hpc_encoder_copy(sc, key, row, made, values, 1, op) : status;
}

int hpc_exchange_set_encoder(hpc_exchange *ex, int key, int row, uint64_t made, const float *values) {
    static const char op[] = "set_encoder";
    hpc_scheme *sc = scheme_of(ex, &key, &row, op);
    const int status = check_encoder(sc, key, op);
    return status == HPC_OK ? hpc_encoder_copy(sc, key, row, &made, (float *)(uintptr_t)values, 0, op) : status;
}

/* ---- arguments ---- */

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

/* ---- after a loss ---- */

int hpc_exchange_get_heard(hpc_exchange *ex, uint64_t *heard, int n) {
    static const char op[] = "get_heard";
    if (ex == NULL || heard == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or heard is NULL", op);
    if (n != ex->n_rows) return hpc_fail(HPC_ERR_INVALID, op, "%s: n is %d; there are %d rows", op, n, ex->n_rows);
    for (int i = 0; i < ex->n_schemes; i++) {
        hpc_params_were_sent(ex->schemes[i]);
        hpc_scheme_hear_all(ex->schemes[i]);
        hpc_copies_heard(ex->schemes[i], heard);
        heard += ex->schemes[i]->plan->n_rows;
    }
    return HPC_OK;
}

static int get_pushed(const hpc_exchange *ex, int key, uint64_t *pushes, float *values, const char *op) {
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    return sc == NULL ? HPC_ERR_INVALID : hpc_sent_pieces(sc, key, pushes, values, op);
}

static int get_forwarded(const hpc_exchange *ex, int row, uint64_t *folds, float *values, const char *op) {
    hpc_scheme *sc = hpc_scheme_of_row(ex, &row, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    if (hpc_owns_row(sc, row)) return hpc_forwarded_pieces(sc, row, folds, values, op);
    return hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is owned by rank %d, not by rank %d", op, row,
                    sc->plan->rows[row].owner, sc->context->group.rank);
}

int hpc_exchange_get_sent(hpc_exchange *ex, int key, int row, uint64_t *count, float *values) {
    static const char op[] = "get_sent";
    if (count == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: count is NULL", op);
    return row == -1 ? get_pushed(ex, key, count, values, op) : get_forwarded(ex, row, count, values, op);
}
