/* The knowledge of a rank that is left when others are lost: how new its copies of parameters are, and which of its own
 * updates may have been applied nowhere. Its cores have stopped (rows.c), so nothing changes meanwhile. */
#include <string.h>

#include "engine/answer.h"
#include "engine/params.h"
#include "engine/pieces_read.h"
#include "exchange/exchange.h"

/* ---- copies ---- */

/* Whether the answers of a share tell how new this rank's copy is. */
static int tells(const hpc_engine *en, int s) {
    const hpc_share *share = &en->layout.shares[s];
    const hpc_pushed *k = &en->keys[share->key];
    if (en->plan->rows[share->rows[0]].action == HPC_FORWARD) return 0;
    for (int i = 0; i < k->n_awaited; i++)
        if (k->awaited[i] == s) return 1;
    return 0;
}

static uint64_t heard_of(const hpc_engine *en, int s) {
    if (en->heard != NULL) return en->heard[s];
    const int signal = en->discipline->traits & HPC_PULLS ? hpc_signal_second(en, s) : hpc_signal_applied(en, s);
    return atomic_load_explicit(hpc_own_signal(en->window, signal), memory_order_acquire);
}

static int same_elements(const hpc_row *a, const hpc_row *b) {
    return a->key == b->key && a->offset == b->offset;
}

/* Rows of the same elements lie side by side: what one of them has told holds for all. */
static void find(hpc_engine *en, uint64_t *heard) {
    const hpc_plan *plan = en->plan;
    hpc_params_were_sent(en);
    hpc_engine_hear_all(en);
    for (int i = 0; i < plan->n_rows; i++) heard[i] = UINT64_MAX;
    for (int i = 0; i < plan->n_rows && hpc_engine_works(en); i++)
        if (tells(en, en->layout.share_of[i])) heard[i] = heard_of(en, en->layout.share_of[i]);
    for (int i = 1; i < plan->n_rows; i++)
        if (heard[i] == UINT64_MAX && same_elements(&plan->rows[i], &plan->rows[i - 1])) heard[i] = heard[i - 1];
    for (int i = plan->n_rows - 1; i-- > 0;)
        if (heard[i] == UINT64_MAX && same_elements(&plan->rows[i], &plan->rows[i + 1])) heard[i] = heard[i + 1];
}

int hpc_exchange_get_heard(hpc_exchange *ex, uint64_t *heard, int n) {
    static const char op[] = "get_heard";
    if (ex == NULL || heard == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or heard is NULL", op);
    if (n != ex->n_rows) return hpc_fail(HPC_ERR_INVALID, op, "%s: n is %d; there are %d rows", op, n, ex->n_rows);
    for (int i = 0; i < ex->n_engines; i++) {
        find(ex->engines[i], heard);
        heard += ex->engines[i]->plan->n_rows;
    }
    return HPC_OK;
}

/* ---- updates ---- */

static int check_decoded(const hpc_engine *en, int key, int status, const char *op) {
    if (status == 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d cannot read its own piece of key %s: %s", op,
                    en->context->group.rank, en->plan->keys[key].name, en->pieces[key].codec->text(status));
}

int hpc_exchange_get_pushed(hpc_exchange *ex, int key, uint64_t *pushes, float *values) {
    static const char op[] = "get_pushed";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    if (pushes == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: pushes is NULL", op);
    const hpc_pushed *k = &en->keys[key];
    *pushes = k->pushes + ((k->sending & HPC_PUSH) != 0); /* which is in its slot, whether all of it was sent or not */
    if (values != NULL && hpc_held_sent_nothing(en, key, *pushes)) {
        memset(values, 0, (size_t)en->plan->keys[key].count * sizeof *values);
        return HPC_OK;
    }
    return values == NULL ? HPC_OK : check_decoded(en, key, hpc_pieces_read_push(en, key, *pushes, values), op);
}

int hpc_exchange_get_forwarded(hpc_exchange *ex, int row, uint64_t *folds, float *values) {
    static const char op[] = "get_forwarded";
    hpc_engine *en = hpc_engine_of_row(ex, &row, op);
    if (en == NULL) return HPC_ERR_INVALID;
    if (folds == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: folds is NULL", op);
    if (en->work_of[row] < 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is owned by rank %d, not by rank %d", op, row,
                        en->plan->rows[row].owner, en->context->group.rank);
    const hpc_work *w = &en->work[en->work_of[row]];
    *folds = atomic_load_explicit(&w->folded, memory_order_relaxed);
    return values == NULL ? HPC_OK : check_decoded(en, w->row->key, hpc_pieces_read_fold(en, w, values), op);
}
