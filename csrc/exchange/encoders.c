/* The residuals of encoders of pieces, and the counts of their work. */
#include <float.h>

#include "engine/counts.h"
#include "engine/state.h"
#include "exchange/exchange.h"

/* ---- the state ---- */

/* The scheme of a key and of a row of it (-1: of none); NULL, and an error: it has no such row here. */
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

/* HPC_OK if an encoder of the key may be looked at now. */
static int check_encoder(hpc_scheme *sc, int key, const char *op) {
    int status = HPC_OK;
    if (sc == NULL) return HPC_ERR_INVALID;
    if (hpc_scheme_under_way(sc) >= 0) status = hpc_worker_check_idle(sc, op); /* which may have ended by now */
    return status == HPC_OK ? hpc_scheme_hear(sc, key) : status;
}

int hpc_exchange_get_encoder(hpc_exchange *ex, int key, int row, uint64_t *made, float *values) {
    static const char op[] = "get_encoder";
    hpc_scheme *sc = scheme_of(ex, &key, &row, op);
    const int status = check_encoder(sc, key, op);
    return status == HPC_OK ? hpc_encoder_save(sc, key, row, made, values, op) : status;
}

int hpc_exchange_set_encoder(hpc_exchange *ex, int key, int row, uint64_t made, const float *values) {
    static const char op[] = "set_encoder";
    hpc_scheme *sc = scheme_of(ex, &key, &row, op);
    const int status = check_encoder(sc, key, op);
    return status == HPC_OK ? hpc_encoder_restore(sc, key, row, made, values, op) : status;
}

/* ---- thresholds ---- */

int hpc_exchange_set_delta(hpc_exchange *ex, int key, int of, double delta) {
    static const char op[] = "set_delta";
    enum { BOTH = HPC_DELTA_OF_PUSHES | HPC_DELTA_OF_FOLDS };
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    if (!(delta >= 0 && delta <= DBL_MAX))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: delta is %.9g; must be a finite number, 0 or more", op, delta);
    if ((of & ~BOTH) != 0 || of == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: of is %d; must be %d (pushes), %d (folds) or %d (both)", op, of,
                        HPC_DELTA_OF_PUSHES, HPC_DELTA_OF_FOLDS, BOTH);
    if (key >= 0) {
        hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
        int status = sc == NULL ? HPC_ERR_INVALID : hpc_check_delta(sc, key, op);
        if (status == HPC_OK) hpc_scheme_set_delta(sc, key, of, delta);
        return status;
    }
    int n = 0;
    for (int set = 0; set < 2; set++) /* nothing is set if a key follows */
        for (int i = 0; i < ex->n_schemes; i++)
            for (int k = 0; k < ex->schemes[i]->plan->n_keys; k++) {
                if (!hpc_has_delta(ex->schemes[i], k)) continue;
                int status = hpc_check_delta(ex->schemes[i], k, op);
                if (status != HPC_OK) return status;
                if (set) hpc_scheme_set_delta(ex->schemes[i], k, of, delta);
                n++;
            }
    if (n > 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: no key goes by a threshold", op);
}

int hpc_exchange_get_key_stats(const hpc_exchange *ex, int key, hpc_key_stats *stats) {
    const hpc_scheme *sc = hpc_scheme_of(ex, &key, "stats");
    if (sc == NULL) return HPC_ERR_INVALID;
    if (stats == NULL) return hpc_fail(HPC_ERR_INVALID, "stats", "stats: stats is NULL");
    hpc_counts_of_key(sc, key, stats);
    return HPC_OK;
}
