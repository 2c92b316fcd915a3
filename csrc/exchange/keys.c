/* The look-up of keys and rows: from a number in the exchange to a scheme and the number there. */
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
