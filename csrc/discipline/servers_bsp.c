/* BSP on servers: a chunk is folded when every worker's update is there, and a pull waits for that fold. SSP(0) on
 * servers is the same. graph_bsp.c has BSP on a graph. */
#include "discipline/servers_bsp.h"

#include "discipline/discipline.h"
#include "engine/owner/signals.h"
#include "engine/owner/forward.h"
#include "engine/worker/send.h"

/* ---- answers ---- */

/* Answers all workers of a share whose rows are all folded: its inputs have been read, its outputs are written. */
static void answer_all(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    int signal = hpc_signal_applied(sc, (int)(share - sc->layout.shares));
    hpc_whole_begin_next(share);
    for (int i = 0; i < share->n_members; i++) hpc_share_answer(core, share->members[i], signal, share->version);
}

/* ---- events ---- */

/* Folds a row whose inputs are all there. After a failure nothing is answered any more, so that no rank believes that
 * its update was applied. */
static void work(hpc_core *core, hpc_work *w, int slot) {
    const hpc_inputs inputs = hpc_row_inputs(core, w, slot, -1);
    if (hpc_whole_work(core, w, &inputs) == 0) {
        hpc_row_count_received(core, w, -1);
        if (--w->share->left == 0) answer_all(core, w->share);
    }
    hpc_row_took(w, slot);
}

/* The same if inputs may have come without an update (a worker without a gradient). */
static void work_present(hpc_core *core, hpc_work *w, int slot) {
    const hpc_inputs inputs = hpc_row_present(core, w, slot);
    int failed = 0;
    if (inputs.n > 0)
        failed = hpc_whole_work(core, w, &inputs);
    else
        hpc_forward_empty(core, w);
    hpc_row_count_present(core, w, slot);
    if (!failed && --w->share->left == 0) answer_all(core, w->share);
    hpc_row_took(w, slot);
}

static void count(hpc_core *core, hpc_work *w, int slot, int input, int how) {
    if (hpc_scheme_has_failed(core->scheme) || !hpc_row_count_as(core, w, slot, input, how)) return;
    if (core->scheme->asked.split)
        work_present(core, w, slot);
    else
        work(core, w, slot);
}

/* The input is for the next fold: all rows of the share have made equally many folds, and no sender is further
 * ahead. */
void hpc_whole_empty_came(hpc_core *core, hpc_work *w, int input) {
    count(core, w, (int)(w->share->version % (uint64_t)core->scheme->layout.depth), input, HPC_CAME_EMPTY);
}

int hpc_whole_row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    count(core, w, slot, input, HPC_CAME);
    return 1;
}

/* ---- the ranks that a wait waits for ---- */

int hpc_whole_missing(const hpc_scheme *sc, const hpc_share *share, int slot, uint64_t fold, int *ranks, int n) {
    for (int i = 0; i < share->n_rows && n < sc->context->group.size; i++) {
        const hpc_work *w = hpc_work_of(sc, share->rows[i]);
        if (atomic_load_explicit(&w->folded, memory_order_relaxed) >= fold) continue;
        for (int e = 0; e < w->row->n_in; e++)
            if (hpc_row_mark_of(w, slot, e) == 0) n = hpc_add_rank(ranks, n, hpc_edge_sender(&w->row->in[e]));
    }
    return n;
}

int hpc_whole_slot(const hpc_scheme *sc, uint64_t ticket) {
    return (int)((ticket / 2 + (uint64_t)sc->layout.depth - 1) % (uint64_t)sc->layout.depth);
}

/* Rows that forward or relay count their own folds. */
int hpc_whole_missing_in(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    return hpc_whole_missing(sc, &sc->layout.shares[s], hpc_whole_slot(sc, ticket), hpc_share_next_fold(sc, s), ranks,
                             found);
}

/* ---- the value ---- */

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->quorum != row->n_in)
            return hpc_fail(HPC_ERR_CONFIG, "exchange",
                            "exchange: row %d has action %d and a quorum of %d of %d inputs; BSP waits for all of them",
                            i, row->action, row->quorum, row->n_in);
    }
    return HPC_OK;
}

const hpc_discipline hpc_discipline_bsp = {
    .name = "BSP",
    .check = check,
    .traits = HPC_WHOLE,
    .gate = &(const hpc_gate){.row_came = hpc_whole_row_came, .missing = hpc_whole_missing_in},
    .pace = &(
        const hpc_pace){.may_push = hpc_push_after_last, .send_share = hpc_push_in_turn, .is_late = hpc_whole_is_late},
};
