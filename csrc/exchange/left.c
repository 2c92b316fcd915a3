/* The knowledge of a rank that is left when others are lost: how new its copies of parameters are, and which of its
 * updates may have been applied nowhere. Its cores have stopped (rows.c), so nothing changes meanwhile. */
#include "engine/params.h"
#include "engine/state.h"
#include "exchange/exchange.h"

/* ---- copies ---- */

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

/* ---- updates ---- */

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
