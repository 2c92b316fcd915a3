/* The knowledge of a rank that is left when others are lost: how new its copies of parameters are, and which of its
 * updates may have been applied nowhere. Its cores have stopped (rows.c), so nothing changes meanwhile. */
#include <string.h>

#include "engine/answer.h"
#include "engine/bytes.h"
#include "engine/params.h"
#include "engine/pieces.h"
#include "engine/send.h"
#include "exchange/exchange.h"

/* ---- copies ---- */

/* Whether the answers of a share tell how new this rank's copy is. */
static int tells(const hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    const hpc_pushed *k = &sc->keys[share->key];
    if (sc->plan->rows[share->rows[0]].action == HPC_FORWARD) return 0;
    for (int i = 0; i < k->n_awaited; i++)
        if (k->awaited[i] == s) return 1;
    return 0;
}

static uint64_t heard_of(const hpc_scheme *sc, int s) {
    if (sc->heard != NULL) return sc->heard[s];
    const int signal = sc->discipline->traits & HPC_PULLS ? hpc_signal_second(sc, s) : hpc_signal_applied(sc, s);
    return atomic_load_explicit(hpc_own_signal(sc->window, signal), memory_order_acquire);
}

static int same_elements(const hpc_row *a, const hpc_row *b) {
    return a->key == b->key && a->offset == b->offset;
}

/* Rows of the same elements lie side by side: the version that one of them has told holds for all. */
static void find(hpc_scheme *sc, uint64_t *heard) {
    const hpc_plan *plan = sc->plan;
    hpc_params_were_sent(sc);
    hpc_scheme_hear_all(sc);
    for (int i = 0; i < plan->n_rows; i++) heard[i] = UINT64_MAX;
    for (int i = 0; i < plan->n_rows && hpc_scheme_works(sc); i++)
        if (tells(sc, sc->layout.share_of[i])) heard[i] = heard_of(sc, sc->layout.share_of[i]);
    for (int i = 1; i < plan->n_rows; i++)
        if (heard[i] == UINT64_MAX && same_elements(&plan->rows[i], &plan->rows[i - 1])) heard[i] = heard[i - 1];
    for (int i = plan->n_rows - 1; i-- > 0;)
        if (heard[i] == UINT64_MAX && same_elements(&plan->rows[i], &plan->rows[i + 1])) heard[i] = heard[i + 1];
}

int hpc_exchange_get_heard(hpc_exchange *ex, uint64_t *heard, int n) {
    static const char op[] = "get_heard";
    if (ex == NULL || heard == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or heard is NULL", op);
    if (n != ex->n_rows) return hpc_fail(HPC_ERR_INVALID, op, "%s: n is %d; there are %d rows", op, n, ex->n_rows);
    for (int i = 0; i < ex->n_schemes; i++) {
        find(ex->schemes[i], heard);
        heard += ex->schemes[i]->plan->n_rows;
    }
    return HPC_OK;
}

/* ---- updates ---- */

/* The last pieces that this rank has made are decoded: what no row has applied goes back into the residuals from which
 * it was taken. Reading changes nothing. */
static int may_go_back(const hpc_scheme *sc, int key, const hpc_encoder *encoder) {
    return encoder != NULL && encoder->codec != NULL && encoder->keeps && !sc->pieces[key].config.no_feedback;
}

/* Writes the elements of the pieces of push number n of a key; 0 where the encoder keeps no residual. Returns 0, or the
 * codec's status. */
static int read_push(hpc_scheme *sc, int key, uint64_t n, float *to) {
    memset(to, 0, (size_t)sc->plan->keys[key].count * sizeof *to);
    if (n == 0 || !hpc_key_has_pieces(sc, key) || !may_go_back(sc, key, &sc->pieces[key].encoder)) return 0;
    const hpc_key_pieces *its = &sc->pieces[key];
    const char *slot = hpc_slot_of_push(sc, key, n);
    int status = 0;
    for (int p = 0; p < its->n_ranges && status == 0; p++) {
        const hpc_pushed_range *range = &its->ranges[p];
        const size_t nbytes = its->codec->length(&its->config, slot + range->at, range->count);
        status = hpc_pieces_decode(its, to + range->offset, range->count, slot + range->at, nbytes, 1, &sc->packing);
    }
    return status;
}

/* The same of the last piece that a row has forwarded. */
static int read_fold(hpc_scheme *sc, const hpc_work *w, float *to) {
    const int key = w->row->key;
    memset(to, 0, (size_t)w->row->count * sizeof *to);
    if (!hpc_key_has_pieces(sc, key) || !may_go_back(sc, key, w->encoder)) return 0;
    if (atomic_load_explicit(&w->folded, memory_order_relaxed) == 0) return 0;
    const hpc_key_pieces *its = &sc->pieces[key];
    const size_t nbytes = its->codec->length(&its->config, w->encoded, w->row->count);
    return hpc_pieces_decode(its, to, w->row->count, w->encoded, nbytes, 1, &sc->packing);
}

static int check_decoded(const hpc_scheme *sc, int key, int status, const char *op) {
    if (status == 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d cannot read its own piece of key %s: %s", op,
                    sc->context->group.rank, sc->plan->keys[key].name, sc->pieces[key].codec->text(status));
}

static int get_pushed(const hpc_exchange *ex, int key, uint64_t *pushes, float *values, const char *op) {
    hpc_scheme *sc = hpc_scheme_of(ex, &key, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    const hpc_pushed *k = &sc->keys[key];
    *pushes = k->pushes + ((k->sending & HPC_PUSH) != 0); /* which is in its slot, whether all of it was sent or not */
    if (values != NULL && hpc_held_sent_nothing(sc, key, *pushes)) {
        memset(values, 0, (size_t)sc->plan->keys[key].count * sizeof *values);
        return HPC_OK;
    }
    return values == NULL ? HPC_OK : check_decoded(sc, key, read_push(sc, key, *pushes, values), op);
}

static int get_forwarded(const hpc_exchange *ex, int row, uint64_t *folds, float *values, const char *op) {
    hpc_scheme *sc = hpc_scheme_of_row(ex, &row, op);
    if (sc == NULL) return HPC_ERR_INVALID;
    if (sc->work_of[row] < 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: row %d is owned by rank %d, not by rank %d", op, row,
                        sc->plan->rows[row].owner, sc->context->group.rank);
    const hpc_work *w = &sc->work[sc->work_of[row]];
    *folds = atomic_load_explicit(&w->folded, memory_order_relaxed);
    return values == NULL ? HPC_OK : check_decoded(sc, w->row->key, read_fold(sc, w, values), op);
}

int hpc_exchange_get_sent(hpc_exchange *ex, int key, int row, uint64_t *count, float *values) {
    static const char op[] = "get_sent";
    if (count == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: count is NULL", op);
    return row == -1 ? get_pushed(ex, key, count, values, op) : get_forwarded(ex, row, count, values, op);
}
