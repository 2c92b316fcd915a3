/* The rows that this rank owns, while it has no call pending: for checkpoints. */
#include "exchange/exchange.h"

#include "discipline/clocks.h"
#include "engine/state.h"

/* Whether a rank is lost, so that pending pushes never end; then this rank's cores stop. Rows stay as they are from
 * here on, and can be saved for an exchange of the ranks that are left. The same holds after a revoke, also where a
 * rank that left has closed the exchange but not its context. */
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

/* HPC_OK if this rank owns the row and has no call pending. Under ASYNC pushes of
 * other ranks may change a row at any time, so its core is paused while it is copied. */
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
    is_over(sc); /* no core counts on if a rank is lost */
    hpc_clocks_raise_begun(sc, rank, pushes);
    return HPC_OK;
}
