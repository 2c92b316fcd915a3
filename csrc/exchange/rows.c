/* The rows that this rank owns, while it has no call pending: for checkpoints. */
#include "exchange/exchange.h"

#include <string.h>

#include "engine/clocks.h"
#include "engine/graph.h"
#include "engine/params.h"

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

/* The row's work, if this rank owns the row and has no call pending; else NULL, with an error. Under ASYNC pushes of
 * other ranks may change a row at any time, so callers pause its core while they copy it. */
static hpc_work *find_work(hpc_scheme *sc, int row, const char *op) {
    if (sc->work_of[row] < 0)
        hpc_fail(HPC_ERR_INVALID, op, "%s: row %d of key %s is owned by rank %d, not by rank %d", op, row,
                 sc->plan->keys[sc->plan->rows[row].key].name, sc->plan->rows[row].owner, sc->context->group.rank);
    else if (is_over(sc) || (hpc_scheme_check(sc, op) == HPC_OK && hpc_worker_check_idle(sc, op) == HPC_OK))
        return &sc->work[sc->work_of[row]];
    return NULL;
}

/* Copies the rule's state between the core's order (block by block) and the caller's (slot by slot). out: to the
 * caller.
 */
static void copy_state(const hpc_work *w, float *to, const float *from, int out) {
    size_t count = (size_t)w->row->count, slots = (size_t)w->rule->rule.slots;
    for (size_t b = 0; b < count; b += HPC_BLOCK) {
        size_t n = count - b < HPC_BLOCK ? count - b : HPC_BLOCK;
        for (size_t s = 0; s < slots; s++) {
            size_t inside = b * slots + s * n, outside = s * count + b;
            memcpy(to + (out ? outside : inside), from + (out ? inside : outside), n * sizeof(float));
        }
    }
}

int hpc_exchange_get_row(hpc_exchange *ex, int row, uint64_t *step, float *params, float *state) {
    hpc_scheme *sc = hpc_scheme_of_row(ex, &row, "get_row");
    if (sc == NULL) return HPC_ERR_INVALID;
    const hpc_work *w = find_work(sc, row, "get_row");
    if (w == NULL) return HPC_ERR_INVALID;
    hpc_core_pause(&sc->cores[w->row->core]);
    if (step != NULL) *step = w->step;
    if (params != NULL && w->param != NULL) memcpy(params, w->param, (size_t)w->row->count * sizeof(float));
    if (state != NULL && w->state != NULL) copy_state(w, state, w->state, 1);
    hpc_core_resume(&sc->cores[w->row->core]);
    return HPC_OK;
}

int hpc_exchange_set_row(hpc_exchange *ex, int row, uint64_t step, const float *params, const float *state) {
    hpc_scheme *sc = hpc_scheme_of_row(ex, &row, "set_row");
    if (sc == NULL) return HPC_ERR_INVALID;
    hpc_work *w = find_work(sc, row, "set_row");
    if (w == NULL) return HPC_ERR_INVALID;
    hpc_core_pause(&sc->cores[w->row->core]);
    w->step = step;
    if (sc->graph != NULL) hpc_graph_restored(sc, w, step);
    if (sc->pace->restored != NULL) sc->pace->restored(sc, w, step);
    if (params != NULL && w->param != NULL) memcpy(w->param, params, (size_t)w->row->count * sizeof(float));
    if (state != NULL && w->state != NULL) copy_state(w, w->state, state, 0);
    hpc_core_resume(&sc->cores[w->row->core]);
    return HPC_OK;
}

int hpc_scheme_folded(hpc_scheme *sc, int rank, uint64_t *pushes) {
    static const char op[] = "get_folded";
    if (rank < 0 || rank >= sc->context->group.size)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is out of range; there are %d", op, rank,
                        sc->context->group.size);
    is_over(sc); /* no core counts on if a rank is lost */
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank) continue;
        hpc_core_pause(&sc->cores[share->core]);
        const uint64_t n = hpc_clocks_begun(sc, share, rank);
        hpc_core_resume(&sc->cores[share->core]);
        if (n > *pushes) *pushes = n;
    }
    return HPC_OK;
}
