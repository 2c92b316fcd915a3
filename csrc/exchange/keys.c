/* Finds the scheme of a key or a row, and the number of the key or row in that scheme. Returns the facts of a key. */
#include "engine/state.h"
#include "engine/bytes.h"
#include "exchange/exchange.h"

int hpc_fail_key(const hpc_exchange *ex, int key, const char *op) {
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    return hpc_fail(HPC_ERR_INVALID, op, "%s: key %d is out of range; the exchange has %d", op, key, ex->n_keys);
}

hpc_scheme *hpc_scheme_of_row(const hpc_exchange *ex, int *row, const char *op) {
    if (ex == NULL) {
        hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
        return NULL;
    }
    for (int i = 0, left = *row; i < ex->n_schemes && left >= 0; left -= ex->schemes[i++]->plan->n_rows)
        if (left < ex->schemes[i]->plan->n_rows) {
            *row = left;
            return ex->schemes[i];
        }
    hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is out of range; the exchange has %d", op, *row, ex->n_rows);
    return NULL;
}

/* ---- facts ---- */

int hpc_exchange_get_key_facts(const hpc_exchange *ex, int key, hpc_key_facts *facts) {
    const hpc_scheme *sc = hpc_scheme_of(ex, &key, "key_facts");
    if (sc == NULL) return HPC_ERR_INVALID;
    if (facts == NULL) return hpc_fail(HPC_ERR_INVALID, "key_facts", "key_facts: facts is NULL");
    *facts = hpc_facts_of_key(sc, key);
    for (int i = 0; ex->schemes[i] != sc; i++) facts->scheme++;
    return HPC_OK;
}
