/* SSP on a graph (ASAP, section 6.2): a share (all rows of one key on one core) is folded as a whole when this rank has
 * pushed it and every in-neighbour is at most staleness steps behind. Under the rule average the fold takes the newest
 * update of each in-neighbour; under another rule it takes all updates that no fold has taken yet. An update is
 * answered when no later fold needs it, so a slot that may still be read is never written.
 *
 * On a graph of several phases only pushes that an in-neighbour sends to this rank count for how far it is behind. Each
 * update has the weight of the step in which it was pushed, and is folded once. Models too are folded once only,
 * because a sender may need the slot again before it sends this rank its next model. */
#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "discipline/split_state.h"
#include "engine/owner/signals.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    const int moves = f->in_place && hpc_plan_takes_float32(f->plan);
    const int more = 2 + moves; /* slots beyond the staleness: one for the update that is folded, one for the update
                                   that comes, and with in_place one for the model */
    int status = hpc_graph_check_split(f, "exchange");
    if (status == HPC_OK) status = hpc_graph_check_partial(f, "SSP", "exchange");
    if (status != HPC_OK) return status;
    if (f->staleness < 0 || f->staleness > HPC_PLAN_DEPTH - more)
        return hpc_fail(HPC_ERR_INVALID, "exchange", "exchange: staleness is %d; 0 to %d are possible on a graph%s",
                        f->staleness, HPC_PLAN_DEPTH - more, moves ? " with in_place" : "");
    if (f->staleness > f->plan->rows[0].depth - more)
        return hpc_fail(HPC_ERR_CONFIG, "exchange",
                        "exchange: the plan has depth %d; SSP(%d) on a graph%s needs %d or more",
                        f->plan->rows[0].depth, f->staleness, moves ? " with in_place" : "", f->staleness + more);
    return HPC_OK;
}

/* ---- the core ---- */

/* Returns whether the next fold of a share may be made: no update that it waits for is missing. */
static int is_time(const hpc_scheme *sc, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(sc, share);
    const uint64_t n = share->version + 1;
    if (hpc_clock_came(&share->clocks[share->owner]) < n) return 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const int rank = w->inputs[e].rank;
        if (hpc_clock_came(&share->clocks[rank]) <
            hpc_sends_until(sc, share->key, hpc_clock_behind(sc, n), share->owner, rank))
            return 0;
    }
    return 1;
}

/* Chooses the updates of an input: the newest one, or all that no fold has taken yet. */
static hpc_taken taking(const hpc_core *core, const hpc_work *w, const hpc_input *in) {
    const hpc_clock *from = &w->share->clocks[in->rank];
    const uint64_t applied = hpc_clock_applied(from);
    uint64_t newest = hpc_clock_came(from), first = applied + 1;
    if (in->rank == w->share->owner) newest = w->share->version + 1;
    if (in->rank == w->share->owner || hpc_row_averages(w)) first = newest;
    if (newest == 0 || (first <= applied && !hpc_row_repeats(core->scheme, w))) return (hpc_taken){0, 0, 0};
    return (hpc_taken){(int)(newest - first + 1), first - 1, first};
}

/* Counts each neighbour's input, and answers updates that no later fold needs. Under the rule average the next fold may
 * need the newest update again, so this update is not answered yet. */
static void end_fold(hpc_core *core, hpc_share *share) {
    hpc_scheme *sc = core->scheme;
    const hpc_work *w = hpc_first_work(sc, share);
    int whole = 0, signal = hpc_signal_applied(sc, (int)(share - sc->layout.shares));
    for (int e = 0; e < w->row->n_in; e++) {
        int rank = w->inputs[e].rank;
        hpc_clock *from = &share->clocks[rank];
        const uint64_t newest = hpc_clock_came(from), answered = newest - (newest > 0 && hpc_row_repeats(sc, w));
        if (rank == share->owner) continue;
        if (newest > hpc_clock_applied(from))
            hpc_share_count_received(sc, share, rank), whole++;
        else if (hpc_sends(sc, share->key, share->version + 1, share->owner, rank))
            hpc_count_absent(core, 0, newest != 0, newest == 0);
        atomic_store_explicit(&from->applied, newest, memory_order_relaxed);
        if (answered == from->answered) continue;
        from->answered = answered;
        hpc_share_answer(core, rank, signal, answered);
    }
    hpc_share_count_fold(core, whole);
    share->version++;
    hpc_share_answer(core, share->owner, signal, share->version);
    hpc_graph_end_fold(core, share);
}

static int fold(hpc_core *core, hpc_share *share) {
    const hpc_scheme *sc = core->scheme;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = hpc_work_of(sc, share->rows[i]);
        const hpc_inputs inputs =
            hpc_row_take(core, w, taking, share->version + 1, hpc_row_averages(w) ? HPC_SCALE_ALL : HPC_SCALE_NONE);
        int failed = hpc_graph_work_row(core, w, &inputs);
        if (failed) return failed;
    }
    end_fold(core, share);
    return 0;
}

static int work(hpc_core *core) {
    return hpc_graph_work(core, &(const hpc_graph_fold){is_time, fold});
}

/* ---- the worker ---- */

/* Called when a checkpoint is loaded. Ignores the loaded step: updates of earlier steps may still be on their way, so
 * phases go on by the numbers of pushes. */
static void restored(hpc_scheme *sc, const hpc_work *w, uint64_t step) {
    (void)step;
    hpc_graph_set_step(sc, w->row->key, 0, 0);
}

/* Adds the in-neighbours that are too far behind. */
static int missing(const hpc_scheme *sc, int s, uint64_t ticket, int *ranks, int found) {
    const hpc_share *share = &sc->layout.shares[s];
    for (int r = 0; r < sc->context->group.size; r++)
        if (r != share->owner && hpc_graph_is_late(sc, r, share->key, ticket, hpc_clock_came(&share->clocks[r])))
            found = hpc_add_rank(ranks, found, r);
    return found;
}

static const hpc_gate gate = {
    .row_came = hpc_graph_row_came, .other_came = hpc_graph_other_came, .work = work, .missing = missing};

const hpc_discipline hpc_discipline_ssp = {
    .name = "SSP",
    .check = check,
    .traits = HPC_OWN_PARAMS | HPC_UNREAD,
    .open = hpc_graph_open_clocks,
    .gate = &gate,
    .pace = &(const hpc_pace){.is_late = hpc_graph_is_late, .restored = restored},
};

const hpc_discipline hpc_discipline_split_ssp = {
    .name = "SSP in two calls",
    .check = check,
    .traits = HPC_OWN_PARAMS | HPC_UNREAD | HPC_PULLS | HPC_KEEPS_MEANS,
    .plan = hpc_split_plan_alone,
    .open = hpc_graph_open_clocks,
    .gate = &gate,
    .pace = &(const hpc_pace){HPC_SPLIT_PACE, .is_late = hpc_graph_is_late, .restored = restored},
    .use = &hpc_split_use,
};
